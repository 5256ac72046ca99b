"""`dsindex clean`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.amounts import count, format_size
from workflows.commands.options import UsageError
from workflows.commands.stores import add_store_arguments
from workflows.jobs.clean import find_leftovers, remove_leftovers
from workflows.options.config import validated_access
from workflows.progress.standard_streams import write_lines

if TYPE_CHECKING:
    import argparse

    from workflows.jobs.clean import Leftovers

DESCRIPTION = """\
Show what a build that nobody will continue left behind: the work folder with its shards, partial
files beside the outputs, and in buckets uploads that were begun, which the store keeps and bills.
With --yes, remove it. Finished outputs are never touched, nor is anything that dsindex did not
write. A build whose driver runs is refused."""
EXAMPLES = ("dsindex clean s3://bucket/data/docs", "dsindex clean out/docs --yes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex clean`."""
    parser.add_argument("place", metavar="PREFIX", help="the job's --output-prefix or --output, or its --work-dir")
    parser.add_argument("--yes", action="store_true", help="remove what is shown")
    add_store_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Show what is left of a build, and remove it if asked."""
    try:
        access = validated_access(options.endpoint_url, options.region)
    except ValueError as error:
        msg = f"--endpoint-url: {error}"
        raise UsageError(msg) from error
    leftovers = find_leftovers(options.place, access)
    write_lines(describe_leftovers(leftovers))
    if options.yes:
        remove_leftovers(leftovers, access)
    write_lines("removed\n" if options.yes else "nothing was removed: --yes removes it\n")
    return 0


def describe_leftovers(leftovers: Leftovers) -> str:
    """Return what is left of a build as text."""
    state = "the kept work of a finished job" if leftovers.finished else "an unfinished job"
    output = f", whose output is {leftovers.output}" if leftovers.output else ""
    shards = f"{count(leftovers.num_shards, 'finished shard')}, "
    lines = [
        f"{leftovers.work_dir}: {state}{output}",
        f"  {shards}{count(leftovers.num_files, 'file')}, {format_size(leftovers.num_bytes)}",
    ]
    lines += [f"  partial file: {path}" for path in leftovers.partials]
    lines += [f"  unfinished upload: {url}" for url in leftovers.uploads]
    return "\n".join(lines) + "\n"
