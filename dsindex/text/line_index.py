"""Find the lines of a JSONL file that are JSON, and write them as a raw index."""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import BadRecordError, InputError, OutputError
from dsindex.formats.pickled_pairs import write_pairs
from dsindex.formats.raw_index import raw_index_path
from dsindex.store.errors import unreadable
from dsindex.store.local import atomic_writer, open_file, require_path
from dsindex.store.read import input_status, opened_input
from dsindex.text.input_format import TextPart

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_BYTES = 4 << 20
MAX_REPORTED = 10
"""Dropped lines that are reported by position; all of them are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawIndexAccount:
    """Line counts of an indexed file, which has num_entries + num_dropped lines."""

    index_path: str
    num_entries: int
    num_dropped: int
    dropped: tuple[tuple[int, int], ...]
    """(1-based line, byte offset) of the first MAX_REPORTED dropped lines."""


def is_json(line: bytes) -> bool:
    """Tell whether json.loads accepts a line, as Modalities asks.

    msgspec is several times as fast and stricter: it refuses NaN, a BOM, UTF-16 and lone surrogates.

    >>> is_json(b'{"a": NaN}'), is_json(b""), is_json(b"{'a': 1}")
    (True, False, False)
    """
    import msgspec  # an environment that only reads datasets may lack it

    try:
        msgspec.json.decode(line)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        try:
            json.loads(line)
        except (ValueError, RecursionError):
            return False
    return True


def create_raw_index(path: str, index_path: str | None = None, *, drop_faulty_entries: bool = False) -> RawIndexAccount:
    """Write the raw index of a JSONL file, byte-identical to Modalities' own; the file appears complete or not at all.

    A line is faulty if json.loads refuses it; this includes blank lines.

    Args:
        path: The JSONL file.
        index_path: Where to write; if None, beside the file with the suffix `.idx`. An existing file is never
            replaced: an identical index is kept, and anything else is an error.
        drop_faulty_entries: Leave faulty lines out; otherwise the first one is an error.

    Raises:
        InputError: If the file cannot be read or changes during the run.
        BadRecordError: At the first faulty line.
        OutputError: If `index_path` is another file, or cannot be written.
    """
    target = raw_index_path(path) if index_path is None else index_path
    require_path(target)
    pairs, faulty = _find_lines(path, drop_faulty_entries=drop_faulty_entries)
    content = BytesIO()
    write_pairs(content, pairs)
    try:  # the suffix is also that of MMIDIDX, and --output may name the file itself
        with open_file(target) as file:
            same = file.read(len(content.getbuffer()) + 1) == content.getbuffer()
    except FileNotFoundError:
        with atomic_writer(target) as file:
            file.write(content.getbuffer())
    except OSError as error:
        raise OutputError(f"{target}: exists and cannot be read ({error.strerror}); choose --output") from error
    else:
        if not same:
            msg = f"{target}: expected no file or the same index; remove it if it is an old index, or choose --output"
            raise OutputError(msg)
    return RawIndexAccount(
        index_path=target, num_entries=len(pairs), num_dropped=len(faulty), dropped=tuple(faulty[:MAX_REPORTED])
    )


def find_lines(path: str) -> NDArray[np.int64]:
    """Return what `create_raw_index` would write: (offset, length) in bytes of each line, shape [lines, 2].

    Raises:
        InputError: If the file is empty, cannot be read or changes during the run.
        BadRecordError: At the first faulty line.
    """
    return _find_lines(path, drop_faulty_entries=False)[0]


def _find_lines(path: str, *, drop_faulty_entries: bool) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    """Return the lines that are JSON, and number and offset of those that are not."""
    from dsindex.text.streams import LongLine, read_lines  # readers of a finished index need no decompressor

    try:
        part = TextPart.of(input_status(path))
    except OSError as error:
        raise unreadable(path, error) from error
    kept, num_lines = [np.empty((0, 2), np.int64)], 0
    faulty: list[tuple[int, int]] = []
    with opened_input(part) as file:
        if part.size_bytes == 0 and not drop_faulty_entries:  # Modalities counts an empty file as one faulty line
            msg = f"{path}: expected at least one line, got an empty file; index it with --drop-faulty-entries"
            raise InputError(msg)
        for block in read_lines(part, file, block_bytes=BLOCK_BYTES, max_line_bytes=part.size_bytes):
            if isinstance(block, LongLine):
                continue  # none is longer than the file
            pairs = np.stack((block.offsets, block.ends - block.starts), axis=1)
            # A BOM is part of its line: json.loads must judge it.
            wrong = [number for number in range(len(pairs)) if not is_json(block.line(number))]
            if wrong and not drop_faulty_entries:
                what = "something else" if block.line(wrong[0]).strip(b"\r") else "a blank line"
                reason = f"expected JSON, got {what}; correct it, or leave such lines out with --drop-faulty-entries"
                raise BadRecordError(path, int(pairs[wrong[0], 0]), reason, num_lines + wrong[0] + 1)
            faulty += [(num_lines + number + 1, int(pairs[number, 0])) for number in wrong]
            num_lines += len(pairs)
            kept.append(np.delete(pairs, wrong, axis=0))
    return np.concatenate(kept), faulty
