"""`python -m workflows …` is `dsindex …`: the entry point for schedulers."""

import sys

from workflows.cli import main

if __name__ == "__main__":
    sys.exit(main())
