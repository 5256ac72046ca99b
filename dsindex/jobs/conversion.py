"""Convert MMIDIDX to `.pbin` and back without loss: the same tokens and documents, including empty ones.

A `.pbin` stores documents but not sequences, and the size of a token but not its type. So a document must be one
sequence, or none if it is empty, unless it is flattened on purpose. Converting back yields the type that Megatron uses
for the size (1 byte uint8, 2 bytes uint16, 4 bytes int32) unless another one is requested, as for a uint16 dataset that
went through the version `spec`, which has only tokens of 4 bytes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.amounts import count
from dsindex.engine.report import Report, show_datasets
from dsindex.errors import FormatError, InputError, LimitError
from dsindex.formats.mmididx import IndexBuilder, SequenceIndex, check_index, read_index
from dsindex.formats.new_file import TokenRun, copy_tokens, refuse_existing
from dsindex.formats.pbin import (
    CURRENT_VERSION,
    PBIN_VERSIONS,
    PbinHeader,
    join_pbin_files,
    read_document_lengths,
    read_pbin_header,
    token_run,
    write_pbin,
)
from dsindex.store.reading import stored_size
from dsindex.store.storage import atomic_writer
from dsindex.store.urls import as_prefix

if TYPE_CHECKING:
    from typing import Any

    from dsindex.formats.pbin import PbinVersion
    from dsindex.options.datasets import ConvertCommand

TYPE_OF_SIZE: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<i4")}
"""MMIDIDX token type by token size in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertResult(Report):
    """The result of a conversion."""

    outputs: tuple[str, ...]
    num_documents: int
    num_tokens: int
    dtype: np.dtype[Any]
    """Token type of the output."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The dataset that was written."""
        path = self.outputs[0]
        return (path if len(self.outputs) == 1 else path.removesuffix(".bin"),)

    def __repr__(self) -> str:
        return show_datasets(self, [(self.prefixes[0], self.num_documents, self.num_tokens)])

    def lines(self) -> list[str]:
        """Return the closing summary."""
        line = (
            f"{' and '.join(self.outputs)}: {count(self.num_documents, 'document')}, "
            f"{count(self.num_tokens, 'token')} of type {self.dtype}"
        )
        return [line]


def convert_dataset(config: ConvertCommand) -> ConvertResult:
    """Convert one dataset; the names determine the formats.

    Raises:
        DsindexError: If it cannot be converted as asked; final names then never refer to incomplete files.
    """
    source, destination = config.source, config.destination
    version = PBIN_VERSIONS[config.pbin_era] if config.pbin_era else None
    if not source.endswith(".pbin"):
        return convert_to_pbin(
            as_prefix(source), destination, version=version or CURRENT_VERSION, flatten=config.flatten
        )
    if destination.endswith(".pbin"):
        return convert_version(source, destination, version=version or CURRENT_VERSION)
    dtype = np.dtype(config.token_type) if config.token_type else None
    return convert_to_indexed(source, as_prefix(destination), version=version, dtype=dtype)


def convert_to_pbin(
    prefix: str, output: str, *, version: PbinVersion = CURRENT_VERSION, flatten: bool = False
) -> ConvertResult:
    """Write a `.pbin` with the documents of an MMIDIDX dataset.

    Args:
        prefix: Path of the dataset without `.bin` or `.idx`.
        output: The new `.pbin`, which must not exist.
        version: Version of the new file.
        flatten: Join the sequences of each document, instead of refusing what a `.pbin` cannot represent.

    Raises:
        FormatError: If the dataset is damaged, or cannot be represented as a `.pbin`.
        OutputError: If the output exists or cannot be written.
    """
    idx_path, bin_path = f"{prefix}.idx", f"{prefix}.bin"
    index = read_index(idx_path)
    try:
        bin_bytes = stored_size(bin_path)
    except OSError as error:
        raise InputError(f"{bin_path}: cannot be read ({error.strerror}); a dataset is a .bin and an .idx") from error
    check_index(idx_path, index, bin_size_bytes=bin_bytes)
    if index.dtype not in TYPE_OF_SIZE.values():
        names = ", ".join(map(str, TYPE_OF_SIZE.values()))
        msg = f"{idx_path}: expected tokens of a type that can be restored from a .pbin ({names}), got {index.dtype}"
        raise FormatError(msg)
    if index.sequence_modes is not None:
        raise FormatError(f"{idx_path}: expected a dataset without sequence modes, which a .pbin cannot store")
    if not flatten:
        _check_one_sequence(idx_path, index)
    token_bytes = index.dtype.itemsize if version.names_token_size else 4
    num_tokens = bin_bytes // index.dtype.itemsize
    header = PbinHeader(version=version, token_bytes=token_bytes, data_bytes=num_tokens * token_bytes)
    begins = np.append(index.sequence_pointers, bin_bytes)[index.document_indices]
    run = TokenRun(path=bin_path, offset=0, dtype=index.dtype, num_tokens=num_tokens)
    write_pbin(output, header, [run], np.diff(begins) // index.dtype.itemsize)
    return ConvertResult(
        outputs=(output,), num_documents=index.header.num_documents, num_tokens=num_tokens, dtype=header.dtype
    )


def _check_one_sequence(idx_path: str, index: SequenceIndex) -> None:
    """Check that every document is one sequence with tokens, or none: only then is the conversion reversible."""
    counts = np.diff(index.document_indices)
    several = np.flatnonzero(counts > 1)
    if len(several):
        raise FormatError(
            f"{idx_path}: expected documents of one sequence, got {counts[several[0]]} in document {several[0]}; "
            f"a .pbin has no sequences, join them with --flatten"
        )
    empty = np.flatnonzero(index.sequence_lengths == 0)
    if len(empty):
        raise FormatError(
            f"{idx_path}: expected sequences with tokens, got none in sequence {empty[0]}, which a .pbin cannot "
            f"distinguish from a document without sequences; accept that with --flatten"
        )


def convert_to_indexed(
    path: str,
    prefix: str,
    *,
    version: PbinVersion | None = None,
    dtype: np.dtype[Any] | None = None,
) -> ConvertResult:
    """Write an MMIDIDX dataset with the documents of a `.pbin`: one sequence each, none for an empty document.

    Args:
        path: The `.pbin`.
        prefix: Path of the new dataset without `.bin` or `.idx`, neither of which may exist.
        version: Version of the `.pbin`; detected if None.
        dtype: The token type; None for that of TYPE_OF_SIZE.

    Raises:
        FormatError: If the file is damaged, or an id does not fit the token type.
        LimitError: If a document has more tokens than MMIDIDX can store.
        OutputError: If the output exists or cannot be written.
    """
    header = read_pbin_header(path, version=version)
    wanted = TYPE_OF_SIZE[header.token_bytes] if dtype is None else dtype.newbyteorder("<")
    idx_path, bin_path = f"{prefix}.idx", f"{prefix}.bin"
    refuse_existing((bin_path, idx_path), inputs=[path])
    lengths = read_document_lengths(path, header)
    filled = lengths > 0
    builder = IndexBuilder(wanted, folder=os.path.dirname(prefix) or ".")
    try:
        builder.add_documents(lengths[filled], filled.astype(np.int64))
        with atomic_writer(idx_path) as idx_file, atomic_writer(bin_path) as bin_file:
            copy_tokens(bin_file, token_run(path, header), wanted)
            builder.write(idx_file)
    except OverflowError as error:
        raise LimitError(f"{path}: {error}") from error
    finally:
        builder.close()
    return ConvertResult(
        outputs=(bin_path, idx_path),
        num_documents=builder.num_documents,
        num_tokens=header.num_tokens,
        dtype=wanted,
    )


def convert_version(path: str, output: str, *, version: PbinVersion) -> ConvertResult:
    """Write a copy of a `.pbin` in another version.

    Raises:
        FormatError: If the file is damaged.
        LimitError: If the version cannot hold tokens of this size.
        OutputError: If the output exists or cannot be written.
    """
    header = join_pbin_files([path], output, version=version)
    num_documents = len(read_document_lengths(output, header))
    return ConvertResult(
        outputs=(output,), num_documents=num_documents, num_tokens=header.num_tokens, dtype=header.dtype
    )
