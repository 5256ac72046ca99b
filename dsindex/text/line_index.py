"""Find the lines of a JSONL file that are JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import BadRecordError, InputError
from dsindex.store.errors import reading
from dsindex.store.read import input_status, opened_input
from dsindex.text.input_format import TextPart

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_BYTES = 4 << 20


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


def find_lines(path: str, *, drop_faulty_entries: bool = False) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    """Find the lines of a file that are JSON; a blank line is not.

    Args:
        path: The file.
        drop_faulty_entries: Leave other lines out; otherwise the first one is an error.

    Returns:
        (offset, length) in bytes of each line, shape [lines, 2], and (1-based line, offset) of those left out.

    Raises:
        InputError: If the file is empty, cannot be read or changes during the run.
        BadRecordError: At the first faulty line.
    """
    from dsindex.text.streams import read_lines  # readers of a finished index need no decompressor

    with reading(path):
        part = TextPart.of(input_status(path))
    kept, num_lines = [np.empty((0, 2), np.int64)], 0
    faulty: list[tuple[int, int]] = []
    with opened_input(part) as file:
        if part.size_bytes == 0 and not drop_faulty_entries:  # Modalities counts an empty file as one faulty line
            raise InputError(f"{path}: the file is empty", hint="index it with --drop-faulty-entries")
        for block in read_lines(part, file, block_bytes=BLOCK_BYTES, max_line_bytes=part.size_bytes):
            pairs = np.stack((block.offsets, block.sizes), axis=1)
            # A BOM is part of its line: json.loads must judge it.
            wrong = [number for number in range(len(pairs)) if not is_json(block.line(number))]
            if wrong and not drop_faulty_entries:
                what = "not JSON" if block.line(wrong[0]).strip(b"\r") else "a blank line"
                reason = f"{what}; fix it, or leave such lines out with --drop-faulty-entries"
                raise BadRecordError(path, int(pairs[wrong[0], 0]), reason, num_lines + wrong[0] + 1)
            faulty += [(num_lines + number + 1, int(pairs[number, 0])) for number in wrong]
            num_lines += len(pairs)
            kept.append(np.delete(pairs, wrong, axis=0))
    return np.concatenate(kept), faulty
