"""Choose the displays of a job: a bar in a terminal or a log, a file, and Ray's metrics."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dsindex.objects.urls import ObjectUrl
from workflows.progress.displays import BarDisplay, JsonDisplay, PlainDisplay
from workflows.progress.json_lines import use_json_lines
from workflows.progress.reporter import Reporter

if TYPE_CHECKING:
    from workflows.execution.calls import Executor
    from workflows.progress.snapshot import Display


def displays_of_job(work_dir: str, executor: Executor, *, output: str | None = None) -> list[Display]:
    """Return the displays of a job with a work folder besides standard error: a file, and Ray's metrics.

    Args:
        work_dir: The work folder.
        executor: The executor of the job's tasks.
        output: The absolute prefix of the job's output, which names the build; None: the work folder.
    """
    from workflows.progress.progress_file import FolderFile, ObjectFile, ProgressFile

    output = output or work_dir
    if isinstance(work_dir, ObjectUrl):
        file = ObjectFile(work_dir)
        displays: list[Display] = [ProgressFile(file.write, output=output, finish=file.finish)]
    else:
        displays = [ProgressFile(FolderFile(work_dir).write, output=output)]
    if executor.kind == "ray":
        from workflows.progress.metrics import RayMetrics  # Ray takes 0.7 s to import

        displays.append(RayMetrics(build=output))
    return displays


def make_reporter(*, log_json: bool = False) -> Reporter:
    """Return a reporter on standard error: JSON lines on request, a bar in a terminal, otherwise plain lines."""
    if log_json:
        use_json_lines()
        return Reporter(JsonDisplay())
    return Reporter(BarDisplay() if sys.stderr.isatty() else PlainDisplay())
