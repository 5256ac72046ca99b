"""`dsindex stop`."""

from __future__ import annotations

from workflows.cluster.submit import add_job_arguments, run_stop

DESCRIPTION = """\
Stop a submitted job. Finished shards stay in its work folder: the same command continues."""

add_arguments = add_job_arguments
run = run_stop
