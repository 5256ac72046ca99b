"""`dsindex status`."""

from __future__ import annotations

from workflows.cluster.submit import add_job_arguments, run_status

DESCRIPTION = """\
How a submitted job goes: its state, and, once it ended, its exit code as this command's own."""

add_arguments = add_job_arguments
run = run_status
