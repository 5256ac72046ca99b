"""`dsindex logs`."""

from __future__ import annotations

from functools import partial

from workflows.cluster.submit import add_job_arguments, run_logs

DESCRIPTION = """\
The log of a submitted job; --follow goes on until the job ends, with its exit code."""

add_arguments = partial(add_job_arguments, follow=True)
run = run_logs
