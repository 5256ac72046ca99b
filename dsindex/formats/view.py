"""Views: an `.idx` of pieces of another dataset, beside a symbolic link to its `.bin`.

The pieces may lie anywhere in the `.bin`, so a view is told by its record, `PREFIX.view.json`:
{"version": 1, "source": prefix, "consumed_samples": N, "sequence_length": L}. Written by `dsindex rest`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from dsindex.errors import FormatError
from dsindex.json_text import decode_json, encode_json
from dsindex.store.storage import read_own

VERSION = 1
MOST_BYTES = 1 << 20
"""Limit on the size of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the record of a view tells."""

    source: str
    """Prefix of the dataset that it shows."""
    consumed_samples: int
    """Samples of the run that were read before."""
    sequence_length: int
    """Tokens of these samples."""

    def to_bytes(self) -> bytes:
        """Return the record."""
        fields = {
            "version": VERSION,
            "source": self.source,
            "consumed_samples": self.consumed_samples,
            "sequence_length": self.sequence_length,
        }
        return encode_json(fields, indent=True, newline=True)


def view_path(prefix: str) -> str:
    """Return the path of a view's record."""
    return f"{prefix}.view.json"


def read_view(prefix: str) -> View | None:
    """Read the record of a view; None if the dataset is none.

    Raises:
        FormatError: If the record is damaged.
    """
    path = view_path(prefix)
    if not os.path.isfile(path):
        return None
    try:
        content = decode_json(read_own(path, most_bytes=MOST_BYTES))
        source, consumed, length = (content[key] for key in ("source", "consumed_samples", "sequence_length"))
        if content["version"] == VERSION and isinstance(source, str) and type(consumed) is int and type(length) is int:
            return View(source=source, consumed_samples=consumed, sequence_length=length)
        problem = "other fields"
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        problem = repr(error)
    raise FormatError(f"{path}: expected the record of a view, got {problem}; write the view again: dsindex rest")
