"""The packing as a file: an MMIDIDX of int32 whose sequences are blocks and whose entries are sequence numbers.

It depends only on the lengths of all sequences in order, not on how the job was cut into shards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import LimitError
from dsindex.formats.mmididx import LENGTH
from dsindex.instruction.block_layout import lay_out_blocks
from dsindex.merging.index import read_lengths
from dsindex.shards.attempt import Attempt

if TYPE_CHECKING:
    from dsindex.merging.parts import Part
    from dsindex.storage import StoredFile

LAYOUT_DTYPE = np.dtype("<i4")
MAX_SEQUENCES = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingTask:
    """Task of packing the sequences of one split into blocks."""

    name: str
    """Name of the files to write."""
    parts: tuple[Part, ...]
    """The shards' tokens, in output order."""
    sequence_length: int
    """L: tokens per block."""
    work_dir: str
    """The work folder, which holds the files of attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingResult:
    """The result of one attempt."""

    num_blocks: int
    num_sequences: int
    """Number of token sequences, each of which is in one block."""
    num_tokens: int
    bin: StoredFile
    idx: StoredFile


def write_packing(task: PackingTask) -> PackingResult:
    """Assign sequences to blocks by best fit and write the packing, in about 40 bytes of memory per sequence.

    Raises:
        LimitError: If there are more sequences than int32 can number.
        InputError: If an index is missing or shorter than its header says.
        OutputError: If the work folder cannot be written.
    """
    num_sequences = sum(part.header.num_sequences for part in task.parts)
    if num_sequences > MAX_SEQUENCES:
        raise LimitError(
            f"{task.name}: expected at most {MAX_SEQUENCES:,} sequences to pack, got {num_sequences:,}; "
            "build from fewer inputs at a time"
        )
    lengths = np.concatenate([np.empty(0, LENGTH), *read_lengths(task.parts)])
    plan = lay_out_blocks(lengths, sequence_length=task.sequence_length)
    with Attempt(task.work_dir, folder="shards/packing", name=task.name) as attempt:
        with attempt.errors_named():
            part = attempt.open_part("blocks", LAYOUT_DTYPE)
            part.add(
                plan.conversations.astype(LAYOUT_DTYPE), np.diff(plan.block_starts), np.ones(plan.num_blocks, np.int64)
            )
            bin_file, idx_file = part.finish()
        attempt.commit()
    return PackingResult(
        num_blocks=plan.num_blocks,
        num_sequences=num_sequences,
        num_tokens=plan.num_tokens,
        bin=bin_file,
        idx=idx_file,
    )
