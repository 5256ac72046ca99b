"""Which displays a job has: a terminal's bar or a log, a file, and Ray's metrics."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from workflows.progress.displays import BarDisplay, JsonDisplay, PlainDisplay
from workflows.progress.reporter import Reporter

if TYPE_CHECKING:
    from workflows.execution.calls import Executor
    from workflows.progress.snapshot import Display


def displays_of_job(work_dir: str, executor: Executor) -> list[Display]:
    """Return what a job with a work folder shows itself on, beside standard error: a file, and Ray's metrics."""
    from workflows.progress.progress_file import ProgressFile

    displays: list[Display] = [ProgressFile(work_dir)]
    if executor.kind == "ray":
        from workflows.progress.metrics import RayMetrics  # Ray takes 0.7 s to import

        displays.append(RayMetrics())
    return displays


def make_reporter(*, log_json: bool = False) -> Reporter:
    """Choose what people see: JSON lines on request, a bar in a terminal, else plain lines; all on standard error."""
    if log_json:
        return Reporter(JsonDisplay())
    return Reporter(BarDisplay() if sys.stderr.isatty() else PlainDisplay())
