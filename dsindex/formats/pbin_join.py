"""Join `.pbin` files with correct offsets, and repair files that Modalities joined with wrong ones.

Modalities' own join leaves the offsets of file k (from 0) 12·k bytes too low: it subtracts each file's header once too
often. The tokens are intact, so the true offsets follow from the lengths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import FormatError
from dsindex.formats.pbin import CURRENT_VERSION, PbinHeader, PbinIndexWriter, read_document_lengths, read_pbin_header
from dsindex.formats.raw_index import run_in_threads
from dsindex.formats.safe_pickle import read_pairs
from dsindex.formats.token_copy import TokenRun, write_token_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.formats.pbin import PbinVersion
    from dsindex.formats.raw_index import RunTasks
    from dsindex.storage import DigestingWriter

JOIN_SHORTFALL = 12
"""Bytes by which each preceding file lowers the offsets."""


def join_pbin_files(
    paths: Sequence[str], output: str, *, version: PbinVersion = CURRENT_VERSION, run_tasks: RunTasks = run_in_threads
) -> PbinHeader:
    """Write the documents of several `.pbin` files, of any versions, one file after the other.

    Args:
        paths: In output order.
        output: The new file, which must not exist.
        version: Version of the new file.
        run_tasks: Runs the copies.

    Returns:
        The header of the new file.

    Raises:
        FormatError: If a file is damaged, or token sizes differ, which means different vocabularies.
        OutputError: If the output exists or cannot be written.
        ValueError: If there are no files.
    """
    if not paths:
        msg = "expected at least one .pbin to merge, got none"
        raise ValueError(msg)
    headers = [read_pbin_header(path) for path in paths]
    for path, header in zip(paths, headers, strict=True):
        if header.token_bytes != headers[0].token_bytes:
            msg = (
                f"{path}: expected tokens of {headers[0].token_bytes} bytes as in {paths[0]}, "
                f"got {header.token_bytes}; files of different vocabularies cannot be merged"
            )
            raise FormatError(msg)
    merged = PbinHeader(
        version=version, token_bytes=headers[0].token_bytes, data_bytes=sum(header.data_bytes for header in headers)
    )

    def write_index(file: DigestingWriter) -> None:
        index = PbinIndexWriter(file.write, merged)
        for path, header in zip(paths, headers, strict=True):
            for lengths in read_document_lengths(path, header):
                index.add(lengths)
        index.close()

    runs = [token_run(path, header) for path, header in zip(paths, headers, strict=True)]
    write_token_file(
        output, runs, dtype=merged.dtype, head=merged.to_bytes(), write_tail=write_index, run_tasks=run_tasks
    )
    return merged


def repair_joined(path: str, output: str, *, run_tasks: RunTasks = run_in_threads) -> int:
    """Write a repaired copy of a `.pbin` that Modalities joined with offsets that are too low.

    The copy is written only if the damage is unambiguous: the lengths add up to all tokens, the first document begins
    at the right offset, and the shortfall of the offsets grows by 12 bytes at each joint.

    Args:
        path: The damaged file, which is not changed.
        output: The new file, which must not exist.
        run_tasks: Runs the copies.

    Returns:
        Number of joints repaired; 0 for an intact file, of which no copy is written.

    Raises:
        FormatError: If the file is damaged in another way.
        OutputError: If the output exists or cannot be written.
    """
    header = read_pbin_header(path)
    num_joints = _count_joints(path, header)
    if num_joints == 0:
        return 0

    def write_index(file: DigestingWriter) -> None:
        index = PbinIndexWriter(file.write, header)
        for pairs in read_pairs(path, offset=header.index_offset):
            index.add(pairs[:, 1] // header.token_bytes)
        index.close()

    write_token_file(
        output,
        [token_run(path, header)],
        dtype=header.dtype,
        head=header.to_bytes(),
        write_tail=write_index,
        run_tasks=run_tasks,
    )
    return num_joints


def token_run(path: str, header: PbinHeader) -> TokenRun:
    """Return all tokens of a `.pbin` as one run."""
    return TokenRun(path=path, offset=header.version.header_bytes, dtype=header.dtype.str, num_tokens=header.num_tokens)


def _count_joints(path: str, header: PbinHeader) -> int:
    """Return the number of joints after which offsets are too low; any other damage is an error."""
    end = header.version.first_offset
    shortfall = num_joints = 0
    for pairs in read_pairs(path, offset=header.index_offset):
        lengths = pairs[:, 1]
        ends = end + np.cumsum(lengths)
        missing = ends - lengths - pairs[:, 0]
        steps = np.diff(missing, prepend=shortfall)
        if (
            np.any(lengths > header.data_bytes)
            or np.any(lengths % header.token_bytes)
            or np.any(steps < 0)
            or np.any(steps % JOIN_SHORTFALL)
        ):
            msg = f"{path}: expected offsets that a join made too low, got other damage; pack the data again"
            raise FormatError(msg)
        num_joints += int(np.count_nonzero(steps))
        if len(pairs):
            end, shortfall = int(ends[-1]), int(missing[-1])
    if end - header.version.first_offset != header.data_bytes:
        msg = (
            f"{path}: expected documents of {header.data_bytes} bytes, got {end - header.version.first_offset}; "
            f"it cannot be repaired, pack the data again"
        )
        raise FormatError(msg)
    return num_joints
