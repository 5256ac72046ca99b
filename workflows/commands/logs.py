"""`dsindex logs`."""

from __future__ import annotations

from functools import partial

from workflows.cluster.submit import add_job_arguments, run_logs

DESCRIPTION = """\
Show the log of a submitted job. --follow shows it until the job ends, and exits with its exit code."""
EXAMPLES = ("dsindex logs raysubmit_Zs3tYq9 --follow --address http://head:8265",)

add_arguments = partial(add_job_arguments, follow=True)
run = run_logs
