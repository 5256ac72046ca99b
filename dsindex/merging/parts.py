"""What is merged: whole datasets, and runs of bytes of their files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.errors import FormatError
from dsindex.formats.mmididx import (
    IndexHeader,
    read_header,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run of bytes in a file that becomes part of the output."""

    path: str
    identity: str
    """Identifies the file's bytes, whatever its path; files of different attempts have different identities."""
    offset: int
    size_bytes: int
    swapped_bytes: int = 1
    """Size of the items whose byte order is reversed; 1 to copy the bytes unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One MMIDIDX dataset to merge."""

    bin_path: str
    idx_path: str
    identity: str
    """Identifies the bytes of both files, as for a piece."""
    bin_bytes: int
    header: IndexHeader

    @property
    def piece(self) -> Piece:
        """Return the whole `.bin` as a piece."""
        return Piece(path=self.bin_path, identity=self.identity, offset=0, size_bytes=self.bin_bytes)


def open_part(prefix: str) -> Part:
    """Open one dataset for merging.

    Args:
        prefix: Path without `.bin` or `.idx`.

    Raises:
        FormatError: If its index is damaged or its `.bin` missing.
    """
    header = read_header(f"{prefix}.idx")
    try:
        bin_bytes = os.path.getsize(f"{prefix}.bin")
    except OSError as error:
        msg = f"{prefix}.bin: cannot be read ({error.strerror}); a dataset is a .bin and an .idx"
        raise FormatError(msg) from error
    return Part(
        bin_path=f"{prefix}.bin",
        idx_path=f"{prefix}.idx",
        identity=prefix,  # the plan of a merge records the versions of its inputs
        bin_bytes=bin_bytes,
        header=header,
    )


def merged_header(parts: Sequence[Part]) -> IndexHeader:
    """Return the header of the merged index.

    Raises:
        FormatError: If the parts differ in token type or in having modes, naming the first that does.
        ValueError: If there are no parts.
    """
    if not parts:
        msg = "expected at least one part to merge, got none"
        raise ValueError(msg)
    first = parts[0]
    # A dataset without sequences looks the same with and without modes.
    filled = next((part for part in parts if part.header.num_sequences), first)
    for part in parts:
        if part.header.dtype != first.header.dtype:
            msg = (
                f"{part.idx_path}: expected tokens of type {first.header.dtype} as in {first.idx_path}, "
                f"got {part.header.dtype}; datasets of different token types cannot be merged"
            )
            raise FormatError(msg)
        if part.header.num_sequences and part.header.has_modes != filled.header.has_modes:
            has, lacks = (part, filled) if part.header.has_modes else (filled, part)
            msg = (
                f"{lacks.idx_path}: expected sequence modes as in {has.idx_path}, got none; "
                f"datasets with and without modes cannot be merged"
            )
            raise FormatError(msg)
    return IndexHeader(
        dtype=first.header.dtype,
        num_sequences=sum(part.header.num_sequences for part in parts),
        num_boundaries=sum(part.header.num_documents for part in parts) + 1,
        has_modes=filled.header.has_modes,
    )
