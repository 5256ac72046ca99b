"""Command lines of `submit` and its companions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows.cluster import submit
from workflows.options.parser import Parser

if TYPE_CHECKING:
    import argparse


def parse(verb: str, *words: str) -> argparse.Namespace:
    parser = Parser(prog="dsindex")
    commands = parser.add_subparsers()
    submit.add_arguments(commands.add_parser("submit"))
    for name in ("status", "logs", "stop"):
        submit.add_job_arguments(commands.add_parser(name), follow=name == "logs")
    return parser.parse_args([verb, *words])
