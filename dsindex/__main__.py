"""`python -m dsindex …`, the same as `dsindex …`: the entry point for schedulers."""

from dsindex.cli.main import program

if __name__ == "__main__":
    program()
