"""`dsindex submit`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from dsindex.errors import DsindexError
from workflows.cluster.submit import DESCRIPTION, add_arguments, check_standard_input
from workflows.cluster.submit import run as run_submission
from workflows.commands.job_command import check_command, positional_config
from workflows.commands.options import UsageError
from workflows.progress.standard_streams import show_lines

if TYPE_CHECKING:
    import argparse

__all__ = ["DESCRIPTION", "add_arguments", "run"]

EXIT_FAILED = 1
EXIT_USAGE = 2


def run(options: argparse.Namespace) -> int:
    """Check the job's command, submit it, and follow it; what is wrong with it is told as the command itself would."""
    check_standard_input(options.command_line)
    if options.command_line != ["--version"]:
        command, job = options.command_line[0], options.job_options
        try:
            check_command(command, job, shipped=[os.path.basename(os.path.abspath(path)) for path in options.ship])
        except UsageError as error:
            _say(command, error)
            return EXIT_USAGE
        except DsindexError as error:
            _say(command, error)
            return EXIT_FAILED
        options.config_file = positional_config(job)
    return run_submission(options)


def _say(command: str, error: Exception) -> None:
    sys.stderr.write(show_lines(f"dsindex {command}: {error}") + "\n")
