"""The program `dsindex`, also as `python -m dsindex …`: the entry point for schedulers."""

from __future__ import annotations

import gc
import os
import signal
import sys


def program() -> None:
    """Run the command line, set up for short start-up: a fifth of the CPU time of a small build.

    numpy's BLAS would start threads that spin for a while, and no command multiplies matrices. The garbage collector
    would walk all imported classes again and again. It runs less often, since a job leaves little garbage in cycles.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(COLLECTED_AFTER, 10, 10)
    on_interrupt = signal.getsignal(signal.SIGINT)
    if on_interrupt is signal.default_int_handler:  # a shell makes its background jobs ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a traceback of imports helps nobody
    try:
        from dsindex.cli.main import program as run
    except ModuleNotFoundError as error:
        from dsindex.errors import missing_package

        sys.exit(f"error: {missing_package(error) or error}")
    signal.signal(signal.SIGINT, on_interrupt)
    run()


COLLECTED_AFTER = 250_000
"""Number of new objects after which Python collects the youngest ones; its default is 700."""

if __name__ == "__main__":
    program()
