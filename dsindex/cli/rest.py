"""`dsindex rest`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.cli.options import read_config
from dsindex.execution.progress.standard_streams import write_lines
from dsindex.options.index import RestConfig

if TYPE_CHECKING:
    import argparse


DESCRIPTION = """\
Write datasets that have what a job has not read after so many samples, to go on with another
sequence length. They are views: an .idx of the unread pieces beside a link to the .bin, which has to
stay. In a later epoch, they have what is left of that epoch.

`dsindex index --data-path W R_A W R_B --seq-length L --consumed-samples N` then builds the caches of
the job that goes on. With the same sequence length, use --continue-from there, which needs no views."""
EXAMPLES = (
    r"""dsindex rest out/cache --consumed-samples 400000 --global-batch-size 256 \
  --output-prefix out/rest""",
)
OPTIONS = (RestConfig,)


def run(options: argparse.Namespace) -> int:
    """Write the views and print what they have."""
    from dsindex.jobs.rest import run_rest  # loads what a help text does not need

    write_lines(run_rest(read_config(options, RestConfig)).lines())
    return 0
