"""Count what a mixture can draw from: the tokens of each dataset's part in the train split."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.errors import InputError
from dsindex.formats.mmididx import read_header
from dsindex.indices.splits import SPLIT_NAMES, WHOLE
from dsindex.indices.task import PartTask, count_parts

if TYPE_CHECKING:
    from dsindex.indices.needed_caches import PartCounts
    from dsindex.indices.splits import SplitMatrix

MASK_SUFFIX = "_loss_mask"
TEXT_SUFFIX = "_text_document"
WHOLE_IN_TRAIN: SplitMatrix = (WHOLE, None, None)
"""The parts of a dataset that only train draws from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCounts:
    """The size of a dataset of a mixture."""

    prefix: str
    """As typed."""
    num_documents: int
    """Documents of the whole dataset."""
    part: PartCounts
    """What the split draws from."""
    empty_splits: tuple[str, ...]
    """Splits other than train that have a share of the dataset, but none of its tokens."""
    has_mask: bool
    """Whether it is instruction data, whose loss mask lies beside it."""


def count_source(prefix: str, matrix: SplitMatrix) -> SourceCounts:
    """Count a dataset and its part in the train split.

    Raises:
        InputError: If there is no such dataset, it has no tokens in the part, or it is no dataset of tokens.
        FormatError: If its `.idx` is damaged.
    """
    idx = f"{prefix}.idx"
    if not os.path.isfile(idx):
        near = [found.removesuffix(".idx") for found in sorted(glob.glob(f"{glob.escape(prefix)}_*.idx"))]
        hint = f"did you mean {', '.join(near[:4])}?" if near else "use a path without .bin and .idx"
        msg = f"{idx}: no such file; {hint}"
        raise InputError(msg)
    header = read_header(idx)
    stem = prefix.removesuffix(MASK_SUFFIX)
    if stem != prefix and os.path.isfile(f"{stem}{TEXT_SUFFIX}.idx"):
        msg = f"{idx}: expected tokens, got the loss mask of instruction data; use {stem}{TEXT_SUFFIX}"
        raise InputError(msg)
    if header.dtype.kind not in "iu":
        msg = f"{idx}: expected a dataset of tokens, which are integers, got {header.dtype}; leave it out"
        raise InputError(msg)
    train, *others = count_parts(PartTask(prefix=prefix, parts=matrix))
    if train is None or train.tokens <= 0:
        where = "" if matrix == WHOLE_IN_TRAIN else f" in the train split of its {header.num_sequences:,} sequences"
        msg = f"{idx}: expected tokens to draw, got a dataset without any{where}; leave it out"
        raise InputError(msg)
    stem = prefix.removesuffix(TEXT_SUFFIX)
    return SourceCounts(
        prefix=prefix,
        num_documents=header.num_documents,
        part=train,
        empty_splits=tuple(
            name
            for name, counts in zip(SPLIT_NAMES[1:], others, strict=True)
            if counts is not None and counts.tokens == 0
        ),
        has_mask=stem != prefix and os.path.isfile(f"{stem}{MASK_SUFFIX}.idx"),
    )
