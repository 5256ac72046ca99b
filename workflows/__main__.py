"""`python -m workflows …`, the same as `dsindex …`: the entry point for schedulers."""

from workflows.cli import program

if __name__ == "__main__":
    program()
