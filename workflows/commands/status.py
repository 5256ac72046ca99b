"""`dsindex status`."""

from __future__ import annotations

from workflows.cluster.submit import add_job_arguments, run_status

DESCRIPTION = """\
Show the state of a submitted job; once the job has ended, exit with its exit code."""
EXAMPLES = ("dsindex status raysubmit_Zs3tYq9 --address http://head:8265",)

add_arguments = add_job_arguments
run = run_status
