"""`dsindex clean`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.amounts import count, format_size
from dsindex.cli.options import read_config
from dsindex.execution.progress.standard_streams import write_lines
from dsindex.jobs.clean import find_leftovers, remove_leftovers
from dsindex.json_text import show_name
from dsindex.options.config import StoreConfig
from dsindex.options.declare import option

if TYPE_CHECKING:
    import argparse

    from dsindex.jobs.clean import Leftovers

DESCRIPTION = """\
Show what a build that nobody will continue left behind: the work folder with its shards, partial
files beside the outputs, and in buckets uploads that were begun, which the store keeps and bills.
With --yes, remove it. Finished outputs are never touched, nor is anything that dsindex did not
write. A build whose driver runs is refused. A copied or moved work folder owns nothing outside of it."""
EXAMPLES = ("dsindex clean s3://bucket/data/docs", "dsindex clean out/docs --yes")


class CleanConfig(StoreConfig):
    """`dsindex clean`: what a build left behind."""

    place: str = option(..., "the job's --output-prefix or --output, or its --work-dir", "PREFIX", positional=True)
    yes: bool = option(default=False, help="remove what is shown")


OPTIONS = (CleanConfig,)


def run(options: argparse.Namespace) -> int:
    """Show what is left of a build, and remove it if asked."""
    config = read_config(options, CleanConfig)
    leftovers = find_leftovers(config.place, config.access)
    write_lines(describe_leftovers(leftovers))
    if config.yes:
        remove_leftovers(leftovers, config.access)
    write_lines(["removed" if config.yes else "nothing was removed: --yes removes it"])
    return 0


def describe_leftovers(leftovers: Leftovers) -> list[str]:
    """Return what is left of a build as text."""
    state = "the kept work of a finished job" if leftovers.finished else "an unfinished job"
    output = f", whose output is {show_name(leftovers.output)}" if leftovers.output else ""
    shards = f"{count(leftovers.num_shards, 'finished shard')}, "
    lines = [
        f"{leftovers.work_dir}: {state}{output}",
        f"  {shards}{count(leftovers.num_files, 'file')}, {format_size(leftovers.num_bytes)}",
    ]
    if leftovers.copy_of is not None:
        place = show_name(leftovers.copy_of) or "another folder"
        lines.append(f"  a copy of {place}, or moved from there: what the job began outside of it stays")
    lines += [f"  partial file: {show_name(path)}" for path in leftovers.partials]
    lines += [f"  lock: {show_name(lock)}" for lock in leftovers.locks]
    lines += [f"  unfinished upload: {url}" for url in leftovers.uploads]
    return lines
