"""`python -m workflows …` is `dsindex …`: the entry point for schedulers."""

from workflows.cli import program

if __name__ == "__main__":
    program()
