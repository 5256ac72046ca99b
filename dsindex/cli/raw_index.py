"""`dsindex raw-index`."""

from __future__ import annotations

from typing import Any

from dsindex.amounts import count
from dsindex.engine.standard_streams import write_lines
from dsindex.options.datasets import RawIndexConfig

DESCRIPTION = """\
Write the raw index of a JSONL file: where each line begins and how long it is, as Modalities'
`create_raw_index` writes it, byte for byte.

Every line must be JSON by the rules of Python's json.loads; a blank line is faulty. The first
faulty line is an error, unless --drop-faulty-entries leaves such lines out of the index.

An existing file is never replaced; if it is the same index already, the command succeeds."""
EXAMPLES = ("dsindex raw-index docs.jsonl --output docs.idx",)
OPTIONS = (RawIndexConfig,)


def run(values: dict[str, Any]) -> int:
    """Index one file and print its line counts."""
    from dsindex import functions  # loads what a help text does not need

    account = functions.raw_index(**values)
    lines = [
        f"{account.index_path}: {count(account.num_entries, 'line')}, {account.num_dropped:,} faulty ones left out"
    ]
    lines += [f"  left out: {values['file']}, line {line} (byte {offset})" for line, offset in account.dropped]
    if account.num_dropped > len(account.dropped):
        lines.append(f"  and {account.num_dropped - len(account.dropped):,} more")
    write_lines(lines)
    return 0
