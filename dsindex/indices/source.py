"""The source of an index: the sequence lengths in an `.idx`, and a fingerprint that detects changes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dsindex.errors import FormatError, InputError
from dsindex.formats.mmididx import read_index
from dsindex.objects.urls import absolute, is_url
from dsindex.readable import input_status, is_stored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

PIECE = 1 << 22
"""Sequence lengths read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFingerprint:
    """The state of a dataset's files when an index was built from them."""

    prefix: str
    idx_bytes: int
    idx_modified_ns: int
    bin_bytes: int | None
    """Size of the `.bin`; None if there was none beside the `.idx`."""
    bin_modified_ns: int | None
    begin: int
    """First sequence that the index draws from."""
    end: int
    """One past the last sequence."""
    lengths_digest: str
    """XXH3-128 of the lengths of these sequences, int32 little-endian: all that an index depends on."""

    def as_record(self) -> dict[str, Any]:
        """Return the fingerprint in a form for JSON."""
        return asdict(self)


def read_lengths(prefix: str, begin: int, end: int) -> NDArray[np.int32]:
    """Read the lengths of sequences [begin, end) into memory and check that none is negative.

    Raises:
        FormatError: If the `.idx` is damaged, has fewer sequences, or a negative length.
    """
    path = f"{prefix}.idx"
    index = read_index(path)
    if end > index.header.num_sequences:
        msg = f"{path}: expected at least {end} sequences, got {index.header.num_sequences}; it changed, run again"
        raise FormatError(msg)
    lengths = np.array(index.sequence_lengths[begin:end], dtype=np.int32, order="C")
    if len(lengths) and lengths.min() < 0:
        sequence = begin + int(np.argmax(lengths < 0))
        msg = f"{path}: expected no length below 0, got {lengths[sequence - begin]} for sequence {sequence}"
        raise FormatError(msg)
    return lengths


def count_tokens(sequence_lengths: NDArray[np.int32]) -> int:
    """Return the sum of lengths in int64, computed in pieces so that a mapped file does not stay in memory.

    >>> count_tokens(np.array([2**31 - 1, 2**31 - 1], np.int32))
    4294967294
    """
    pieces = range(0, len(sequence_lengths), PIECE)
    return sum(int(sequence_lengths[at : at + PIECE].sum(dtype=np.int64)) for at in pieces)


def fingerprint(prefix: str, begin: int, end: int, lengths: NDArray[np.int32]) -> SourceFingerprint:
    """Return a fingerprint of the files and lengths that an index is built from.

    Raises:
        InputError: If the `.idx` is missing, or cannot be read.
    """
    path = f"{prefix}.idx"
    try:
        idx = _look_at(path)
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror}); make it readable and run the same command again"
        raise InputError(msg) from error
    tokens = _state(f"{prefix}.bin")
    return SourceFingerprint(
        prefix=absolute(prefix),
        idx_bytes=idx[0],
        idx_modified_ns=idx[1],
        bin_bytes=None if tokens is None else tokens[0],
        bin_modified_ns=None if tokens is None else tokens[1],
        begin=begin,
        end=end,
        lengths_digest=xxhash.xxh3_128_hexdigest(lengths.astype("<i4", copy=False).data),
    )


def source_changes(prefix: str, recorded: Mapping[str, Any]) -> list[str]:
    """Return sentences about how a dataset differs from its recorded fingerprint; empty if it does not.

    Lengths are only read if a size or a time differs: a copied or touched file with the same lengths still fits.
    """
    idx = _state(f"{prefix}.idx")
    if idx is None:
        return [f"{prefix}.idx is missing, so it is unknown whether the cache still fits"]
    begin, end = int(recorded["begin"]), int(recorded["end"])
    changes = []
    if idx != (recorded["idx_bytes"], recorded["idx_modified_ns"]):
        try:
            now = fingerprint(prefix, begin, end, read_lengths(prefix, begin, end))
        except FormatError as error:
            return [f"the cache was built from another {prefix}.idx ({error})"]
        if now.lengths_digest != recorded["lengths_digest"]:
            changes.append(f"its sequences {begin} to {end} have other lengths, so the cache leads to wrong tokens")
        elif idx[0] != recorded["idx_bytes"]:
            changes.append(f"it has {idx[0]} bytes and had {recorded['idx_bytes']}: the split is cut elsewhere now")
    sentences = [f"{prefix}.idx changed since the cache was built ({what}); build it again" for what in changes]
    tokens = _state(f"{prefix}.bin")
    bin_bytes = None if tokens is None else tokens[0]
    if bin_bytes != recorded["bin_bytes"] and None not in (bin_bytes, recorded["bin_bytes"]):
        was = recorded["bin_bytes"]
        sentences.append(f"{prefix}.bin changed since the cache was built (it has {bin_bytes} bytes and had {was})")
    return sentences


def _state(path: str) -> tuple[int, int] | None:
    """Return what `_look_at` does; None if it is not there."""
    if is_url(path) and not is_stored(path):
        return None
    try:
        return _look_at(path)
    except OSError:
        return None


def _look_at(path: str) -> tuple[int, int]:
    """Return size and time of a file, or size and a hash of the version of an object.

    Raises:
        OSError: If a file cannot be looked at.
        InputError: If an object cannot.
    """
    status = input_status(path)
    version = xxhash.xxh3_64_intdigest(status.version.encode()) >> 1 if is_url(path) else int(status.version)
    return status.size_bytes, version
