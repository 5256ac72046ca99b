"""`dsindex raw-index`: the raw index of a JSONL file, as Modalities writes it."""

from __future__ import annotations

from dataclasses import dataclass

from dsindex.formats.pickled_pairs import raw_index_path, write_pairs
from dsindex.runtime.plan import make_plan
from dsindex.runtime.publish import write_new_files
from dsindex.store.errors import reading
from dsindex.store.read import input_status
from dsindex.store.urls import absolute
from dsindex.text.streams import find_lines

MAX_REPORTED = 10
"""Most dropped lines that are reported by position; all of them are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawIndexAccount:
    """Line counts of an indexed file, which has num_entries + num_dropped lines."""

    index_path: str
    num_entries: int
    num_dropped: int
    dropped: tuple[tuple[int, int], ...]
    """(1-based line, byte offset) of the first MAX_REPORTED dropped lines."""


def create_raw_index(path: str, index_path: str | None = None, *, drop_faulty_entries: bool = False) -> RawIndexAccount:
    """Write the raw index of a JSONL file, byte-identical to Modalities' own; the file appears complete or not at all.

    A line is faulty if json.loads rejects it; blank lines are faulty too.

    Args:
        path: The JSONL file.
        index_path: Where to write; if None, next to the file with the suffix `.idx`. An existing file is never
            overwritten: an identical index is kept, and any other file is an error.
        drop_faulty_entries: Leave out faulty lines; otherwise the first one is an error.

    Raises:
        InputError: If the file cannot be read or changes during the run.
        BadRecordError: At the first faulty line.
        OutputError: If `index_path` exists with other content, or cannot be written.
    """
    target = raw_index_path(path) if index_path is None else index_path
    with reading(path):
        plan = make_plan({"raw-index": drop_faulty_entries}, [input_status(absolute(path))])
    pairs, faulty = find_lines(path, drop_faulty_entries=drop_faulty_entries)
    with write_new_files(target, [target], plan) as files, files.open(target) as file:
        write_pairs(file, pairs)
    return RawIndexAccount(
        index_path=target, num_entries=len(pairs), num_dropped=len(faulty), dropped=tuple(faulty[:MAX_REPORTED])
    )
