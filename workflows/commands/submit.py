"""`dsindex submit`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from dsindex.errors import InputError
from workflows.cluster.submit import DESCRIPTION, add_arguments
from workflows.cluster.submit import run as run_submission
from workflows.commands.job_command import check_command, positional_config
from workflows.commands.options import UsageError

if TYPE_CHECKING:
    import argparse

__all__ = ["DESCRIPTION", "add_arguments", "run"]

EXIT_FAILED = 1
EXIT_USAGE = 2


def run(options: argparse.Namespace) -> int:
    """Check the job's command, submit it, and follow it; what is wrong with it is told as the command itself would."""
    if options.command_line != ["--version"]:
        command, job = options.command_line[0], options.job_options
        try:
            check_command(command, job, shipped=[os.path.basename(os.path.abspath(path)) for path in options.ship])
        except UsageError as error:
            sys.stderr.write(f"dsindex {command}: {error}\n")
            return EXIT_USAGE
        except InputError as error:
            sys.stderr.write(f"dsindex {command}: {error}\n")
            return EXIT_FAILED
        options.config_file = positional_config(job)
    return run_submission(options)
