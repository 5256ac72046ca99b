"""`dsindex stop`."""

from __future__ import annotations

from workflows.cluster.submit import add_job_arguments, run_stop

DESCRIPTION = """\
Stop a submitted job. Its work folder keeps finished shards: submit the same command again to continue."""
EXAMPLES = ("dsindex stop raysubmit_Zs3tYq9 --address http://head:8265",)

add_arguments = add_job_arguments
run = run_stop
