"""The program `dsindex`, also as `python -m dsindex …`: the entry point for schedulers."""

from __future__ import annotations

import gc
import os


def program() -> None:
    """Run the command line, set up for short start-up: a fifth of the CPU time of a small build.

    numpy's BLAS would start threads that spin for a while, and no command multiplies matrices. The collector would walk
    all imported classes again and again; what a job leaves in cycles is little, and collected less often.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(COLLECTED_AFTER, 10, 10)
    from dsindex.cli.main import program as run  # imports numpy

    run()


COLLECTED_AFTER = 10_000
"""Objects after which the youngest are collected, in place of 700."""

if __name__ == "__main__":
    program()
