"""Shows the results of commands: lines for people, or one JSON object."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Protocol

from dsindex.engine.standard_streams import write_json, write_lines


class Shown(Protocol):
    """A result that says what it holds."""

    def lines(self) -> list[str]:
        """Return all facts for people."""
        ...


def show(result: Shown, code: int = 0) -> int:
    """Write a result to standard output, in colour and wrapped if that is a terminal; return the exit code."""
    write_lines(result.lines())
    return code


def show_json(result: Any, code: int = 0, **more: object) -> int:  # noqa: ANN401 - any dataclass
    """Write a result as one JSON object on one line; return the exit code."""
    write_json(sys.stdout, {**more, **dataclasses.asdict(result)})
    return code
