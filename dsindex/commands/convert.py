"""Convert MMIDIDX to `.pbin` and back without loss, even of empty documents; join `.pbin` files; shuffle documents.

A `.pbin` stores documents but not sequences, and the size of a token but not its type. So a document must have one
sequence, or none if it is empty, unless `--flatten` joins its sequences. Converting back yields the type that Megatron
uses for the size (1 byte uint8, 2 bytes uint16, 4 bytes int32) unless another type is requested, for example for a
uint16 dataset that went through the version `spec`, whose tokens all have 4 bytes. Files appear complete, and never
replace other files.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import numpy as np

from dsindex.commands.results import JobResult, MadeDataset
from dsindex.datasets.documents import GATHERED_DOCUMENTS, Documents, ShuffledDocuments, documents_of, shuffle_items
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.packed import PbinDocuments
from dsindex.errors import FormatError, LimitError, OutputError
from dsindex.formats.dtypes import cast_tokens
from dsindex.formats.manifest import manifest_path
from dsindex.formats.mmididx import IndexBuilder
from dsindex.formats.pbin import (
    CURRENT_VERSION,
    PBIN_VERSIONS,
    PbinHeader,
    read_document_lengths,
    read_pbin_header,
    write_pbin_index,
)
from dsindex.runtime.plan import make_plan
from dsindex.runtime.publish import write_new_files
from dsindex.store.read import input_status, is_stored
from dsindex.store.urls import absolute, prefix_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from dsindex.formats.manifest import Plan
    from dsindex.formats.pbin import PbinVersion
    from dsindex.options.datasets import ConvertCommand
    from dsindex.store.local import DigestingWriter

TYPE_OF_SIZE: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<i4")}
"""MMIDIDX token type by token size in bytes."""
COPY_TOKENS = 1 << 20
"""Number of tokens held in memory at once."""


class ConvertResult(JobResult):
    """The result of a conversion."""


def convert_dataset(config: ConvertCommand) -> ConvertResult:
    """Convert one dataset; the file names determine the formats.

    Raises:
        DsindexError: If it cannot be converted as requested; no file under a final name is then incomplete.
    """
    source, destination, seed = config.source, config.destination, config.shuffle_documents
    version = PBIN_VERSIONS[config.pbin_era] if config.pbin_era else None
    if not source.endswith(".pbin"):
        prefix = prefix_of(source)
        if not destination.endswith(".pbin"):
            return shuffle_indexed([prefix], prefix_of(destination), seed or 0)
        return convert_to_pbin(
            prefix, destination, version=version or CURRENT_VERSION, flatten=config.flatten, seed=seed
        )
    if destination.endswith(".pbin"):
        return convert_version(source, destination, version=version or CURRENT_VERSION, seed=seed)
    dtype = np.dtype(config.token_type) if config.token_type else None
    return convert_to_indexed(source, prefix_of(destination), version=version, dtype=dtype, seed=seed)


def convert_to_pbin(
    prefix: str, output: str, *, version: PbinVersion = CURRENT_VERSION, flatten: bool = False, seed: int | None = None
) -> ConvertResult:
    """Write a `.pbin` with the documents of an MMIDIDX dataset.

    Args:
        prefix: Path of the dataset without `.bin` or `.idx`.
        output: The new `.pbin`, which must not exist.
        version: Version of the new file.
        flatten: Join the sequences of each document, instead of refusing documents that a `.pbin` cannot represent.
        seed: Seed for a random order of the documents; None to keep their order.

    Raises:
        FormatError: If the dataset is damaged, or cannot be represented as a `.pbin`.
        OutputError: If the output exists or cannot be written.
    """
    dataset = IndexedDataset(prefix)
    _require_representable(dataset, f"{prefix}.idx", flatten=flatten)
    token_bytes = dataset.dtype.itemsize if version.names_token_size else 4
    header = PbinHeader(version=version, token_bytes=token_bytes, data_bytes=dataset.num_tokens * token_bytes)
    _write_pbin(output, header, [documents_of(dataset)], seed)
    return _make_result(output, (dataset.num_documents, len(dataset), dataset.num_tokens), header.dtype)


def _require_representable(dataset: IndexedDataset, idx_path: str, *, flatten: bool) -> None:
    """Check that a `.pbin` can represent a dataset without loss.

    Raises:
        FormatError: If it cannot.
    """
    if dataset.dtype not in TYPE_OF_SIZE.values():
        names = ", ".join(map(str, TYPE_OF_SIZE.values()))
        problem = f"tokens of type {dataset.dtype} could not be restored from a .pbin, only {names}"
        raise FormatError(f"{idx_path}: {problem}")
    if dataset.sequence_modes is not None:
        raise FormatError(f"{idx_path}: a .pbin cannot store sequence modes")
    joined_documents = np.flatnonzero(np.diff(dataset.document_indices) > 1)
    if len(joined_documents) and not flatten:
        problem = f"document {joined_documents[0]} has several sequences, which a .pbin cannot store"
        raise FormatError(f"{idx_path}: {problem}", hint="join them with --flatten")
    empty_sequences = np.flatnonzero(dataset.sequence_lengths == 0)
    if len(empty_sequences) and not flatten:
        problem = f"sequence {empty_sequences[0]} has no tokens, and a .pbin stores it as a document without sequences"
        raise FormatError(f"{idx_path}: {problem}", hint="accept that with --flatten")


def convert_to_indexed(
    path: str,
    prefix: str,
    *,
    version: PbinVersion | None = None,
    dtype: np.dtype[Any] | None = None,
    seed: int | None = None,
) -> ConvertResult:
    """Write an MMIDIDX dataset with the documents of a `.pbin`: one sequence each, none for an empty document.

    Args:
        path: The `.pbin`.
        prefix: Path of the new dataset without `.bin` or `.idx`, neither of which may exist.
        version: Version of the `.pbin`; detected if None.
        dtype: The token type; None for the type in TYPE_OF_SIZE.
        seed: Seed for a random order of the documents; None to keep their order.

    Raises:
        FormatError: If the file is damaged, or an id does not fit the token type.
        LimitError: If a document has more tokens than MMIDIDX can store.
        OutputError: If the output exists or cannot be written.
    """
    header = read_pbin_header(path, version=version)
    token_type = TYPE_OF_SIZE[header.token_bytes] if dtype is None else dtype.newbyteorder("<")
    idx_path, bin_path = f"{prefix}.idx", f"{prefix}.bin"
    parts = [_pbin_documents(path, header)]
    lengths = _output_lengths(parts, seed)
    has_tokens = lengths > 0
    plan = _plan_copy(prefix, {"convert": token_type.str}, [path], seed)
    with (
        write_new_files(prefix, [bin_path, idx_path], plan) as files,
        contextlib.closing(IndexBuilder(token_type, folder=os.path.dirname(prefix) or ".")) as builder,
    ):
        try:
            builder.add_documents(lengths[has_tokens], has_tokens.astype(np.int64))
        except OverflowError as error:
            raise LimitError(f"{path}: {error}") from error
        with files.open(bin_path) as bin_file:
            _copy_tokens(bin_file, parts, token_type, seed)
        with files.open(idx_path) as idx_file:
            builder.write(idx_file)
    return _make_result(prefix, (len(lengths), int(has_tokens.sum()), header.num_tokens), token_type)


def shuffle_indexed(prefixes: Sequence[str], output: str, seed: int) -> ConvertResult:
    """Write the documents of MMIDIDX datasets of one token type in a random order.

    Raises:
        FormatError: If a dataset is damaged, or has sequence modes.
        OutputError: If the output exists or cannot be written.
    """
    datasets = list(map(IndexedDataset, prefixes))
    for dataset in datasets:
        if dataset.sequence_modes is not None:
            raise FormatError(f"{dataset.prefix}: datasets with sequence modes cannot be shuffled")
    dtype, documents = datasets[0].dtype, ShuffledDocuments(list(map(documents_of, datasets)), seed)
    plan = _plan_copy(output, {}, [f"{prefix}.bin" for prefix in prefixes], seed)
    with (
        write_new_files(output, [f"{output}.bin", f"{output}.idx"], plan) as files,
        contextlib.closing(IndexBuilder(dtype, folder=os.path.dirname(output) or ".")) as builder,
    ):
        for begin in range(0, documents.num_documents, GATHERED_DOCUMENTS):
            sources = documents.sources(begin, min(begin + GATHERED_DOCUMENTS, documents.num_documents))
            sequences = [
                datasets[part].sequence_lengths[slice(*datasets[part].document_indices[number : number + 2])]
                for part, number in sources.tolist()
            ]
            builder.add_documents(np.concatenate(sequences).astype(np.int64), np.array(list(map(len, sequences))))
        with files.open(f"{output}.bin") as bin_file:
            _copy_tokens(bin_file, documents.parts, dtype, seed)
        with files.open(f"{output}.idx") as idx_file:
            builder.write(idx_file)
    return _make_result(output, (builder.num_documents, builder.num_sequences, builder.num_tokens), dtype)


def convert_version(path: str, output: str, *, version: PbinVersion, seed: int | None = None) -> ConvertResult:
    """Write the documents of a `.pbin` in another version of the format.

    Raises:
        FormatError: If the file is damaged.
        LimitError: If the version cannot hold tokens of this size.
        OutputError: If the output exists or cannot be written.
    """
    header = join_pbin_files([path], output, version=version, seed=seed)
    num_documents = len(read_document_lengths(output, header))
    return _make_result(output, (num_documents, num_documents, header.num_tokens), header.dtype)


def join_pbin_files(
    paths: Sequence[str], output: str, *, version: PbinVersion = CURRENT_VERSION, seed: int | None = None
) -> PbinHeader:
    """Write the documents of several `.pbin` files, of any versions, one file after the other.

    Offsets are correct, unlike in Modalities' own join: it subtracts each file's header once too often, which leaves
    the offsets of file k (from 0) 12·k bytes too low.

    Args:
        paths: The files, in output order.
        output: The new file, which must not exist.
        version: Version of the new file.
        seed: Seed for a random order of the documents of all files; None to keep their order.

    Returns:
        The header of the new file.

    Raises:
        FormatError: If a file is damaged, or token sizes differ, which means that vocabularies differ.
        OutputError: If the output exists or cannot be written.
        ValueError: If there are no files.
    """
    if not paths:
        raise ValueError("there are no .pbin files to merge")
    headers = [read_pbin_header(path) for path in paths]
    for path, header in zip(paths, headers, strict=True):
        if header.token_bytes != headers[0].token_bytes:
            sizes = f"tokens of {header.token_bytes} bytes, and {paths[0]} of {headers[0].token_bytes}"
            raise FormatError(f"{path} has {sizes}: files of different vocabularies cannot be merged")
    data_bytes = sum(header.data_bytes for header in headers)
    joined_header = PbinHeader(version=version, token_bytes=headers[0].token_bytes, data_bytes=data_bytes)
    _write_pbin(output, joined_header, list(map(_pbin_documents, paths, headers)), seed)
    return joined_header


def _pbin_documents(path: str, header: PbinHeader) -> Documents:
    return documents_of(PbinDocuments(path, version=header.version))


def _output_lengths(parts: Sequence[Documents], seed: int | None) -> NDArray[np.int64]:
    """Return the number of tokens of each document, in output order."""
    lengths = np.concatenate([np.empty(0, np.int64), *(chunk for part in parts for chunk in part.lengths())])
    return lengths if seed is None else np.concatenate([lengths[:0], *shuffle_items(lengths, seed)])


def _write_pbin(output: str, header: PbinHeader, parts: Sequence[Documents], seed: int | None) -> None:
    plan = _plan_copy(output, {"convert": header.version.name}, [part.path for part in parts], seed)
    with write_new_files(output, [output], plan) as files, files.open(output) as file:
        file.write(header.to_bytes())
        _copy_tokens(file, parts, header.dtype, seed)
        write_pbin_index(file, header, _output_lengths(parts, seed))


def _plan_copy(output: str, settings: dict[str, Any], paths: Sequence[str], seed: int | None) -> Plan:
    """Return the plan of an output without a manifest.

    Raises:
        OutputError: If documents are shuffled, and a manifest with this name exists, which lists them in another order.
    """
    if seed is not None and is_stored(path := manifest_path(output.removesuffix(".pbin"))):
        raise OutputError(f"{path}: this is another dataset with the same name", hint="choose another name")
    return make_plan({**settings, "shuffle-documents": seed}, [input_status(absolute(path)) for path in paths])


def _copy_tokens(file: DigestingWriter, parts: Sequence[Documents], dtype: np.dtype[Any], seed: int | None) -> None:
    """Append tokens, cast to another type, in bounded memory."""
    documents = ShuffledDocuments(parts, seed or 0)
    chunks = (
        part.tokens[begin : begin + COPY_TOKENS] for part in parts for begin in range(0, len(part.tokens), COPY_TOKENS)
    )
    for chunk in chunks if seed is None else documents.tokens(0, documents.num_documents):
        try:
            tokens = cast_tokens(chunk.astype(chunk.dtype.newbyteorder("="), copy=False), dtype.newbyteorder("="))
        except OverflowError as error:
            raise FormatError(f"{parts[0].path}: {error}", hint="choose a larger token type") from error
        file.write(np.ascontiguousarray(tokens.astype(dtype, copy=False)).view(np.uint8).data)


def _make_result(path: str, counts: tuple[int, int, int], dtype: np.dtype[Any]) -> ConvertResult:
    documents, sequences, tokens = counts
    dataset = MadeDataset(
        prefix=path, num_documents=documents, num_sequences=sequences, num_tokens=tokens, token_dtype=dtype.name
    )
    return ConvertResult(datasets=(dataset,))
