"""Checks of a dataset's own files: index, tokens, ends of documents, provenance, quarantine and digests.

Each works on a piece, holds a few MiB at a time, and returns findings.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dsindex.datasets.provenance import count_rows, read_rows
from dsindex.errors import FormatError, InputError, MissingObjectError
from dsindex.formats.mmididx import check_index, read_index
from dsindex.formats.pbin import PBIN_VERSIONS, read_document_lengths, read_pbin_header
from dsindex.index.cache import count_tokens
from dsindex.store.reading import digest_file, is_stored, open_readable, open_stored, stored_size
from dsindex.store.storage import DIGEST_BLOCK_BYTES, combine_digests
from dsindex.text.forms import TABLES
from dsindex.tools.kinds import open_store
from dsindex.tools.results import DatasetCounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.engine.manifest import Content, Manifest, RecordedInput
    from dsindex.formats.mmididx import SequenceIndex
    from dsindex.store.storage import Readable
    from dsindex.tools.kinds import Subject

DOCUMENTS_PER_PIECE = 1 << 20
ROWS_AT_ONCE = 1 << 20
CHUNK_BYTES = 4 << 20
SHOWN = 3
"""Findings of one piece that are shown."""
REMEDY = "restore it, or build the dataset again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """An intact index."""

    counts: DatasetCounts
    dtype: str
    """Token type on disk."""
    tokens: tuple[int, int]
    """The first byte of the tokens, and one past the last."""
    version: str | None = None
    """Of a `.pbin`."""

    @property
    def num_documents(self) -> int:
        """Number of documents, including empty ones."""
        return self.counts.documents


def verify_structure(subject: Subject, manifest: Manifest | None) -> tuple[Structure | None, list[str]]:
    """Check every entry of an index against the tokens; return None for a damaged one, and the findings."""
    try:
        if subject.kind == "pbin":
            era = None if manifest is None else manifest.content.options.pbin_era
            return _read_pbin(subject.path, era), []
        return _read_pair(subject.path), []
    except (FormatError, InputError) as error:
        return None, [f"{error}; {REMEDY}"]
    except OSError as error:
        return None, [f"{subject.path}: cannot be read ({error.strerror}); {REMEDY}"]


def _read_pair(prefix: str) -> Structure:
    is_there = is_stored(f"{prefix}.idx") or os.path.lexists(f"{prefix}.idx")
    if not is_there and is_stored(f"{prefix}.bin"):
        why = "preprocess_data.py of Megatron-LM left this of all --json-keys but the last until May 2026"
        raise FormatError(f"{prefix}.idx: is missing beside its .bin: a writer was stopped before its end, or {why}")
    try:
        with open_readable(f"{prefix}.bin") as file:
            bin_bytes = file.size_bytes
    except OSError as error:
        raise FormatError(f"{prefix}.bin: cannot be read ({error.strerror})") from error
    index = read_index(f"{prefix}.idx")
    check_index(f"{prefix}.idx", index, bin_size_bytes=bin_bytes)
    counts = DatasetCounts(
        documents=index.header.num_documents,
        empty_documents=_count_empty(index),
        sequences=index.header.num_sequences,
        tokens=count_tokens(index.sequence_lengths),
        token_type=str(index.dtype),
    )
    return Structure(counts=counts, dtype=index.dtype.str, tokens=(0, bin_bytes))


def _count_empty(index: SequenceIndex) -> int:
    empty = 0
    for begin in range(0, index.header.num_documents, ROWS_AT_ONCE):
        boundaries = index.document_indices[begin : begin + ROWS_AT_ONCE + 1]
        empty += int(np.count_nonzero(boundaries[1:] == boundaries[:-1]))
    return empty


def _read_pbin(path: str, era: str | None) -> Structure:
    header = read_pbin_header(path, version=None if era is None else PBIN_VERSIONS[era])
    lengths = read_document_lengths(path, header)
    counts = DatasetCounts(
        documents=len(lengths),
        empty_documents=int(np.count_nonzero(lengths == 0)),
        sequences=len(lengths),
        tokens=header.num_tokens,
        token_type=header.dtype.newbyteorder("=").name,
    )
    tokens = (header.version.header_bytes, header.index_offset)
    return Structure(counts=counts, dtype=header.dtype.str, tokens=tokens, version=header.version.name)


def find_foreign_counts(path: str, content: Content, structure: Structure) -> list[str]:
    """Compare the counts of the index with the manifest."""
    counts = structure.counts
    pairs = {
        "sequences": (content.sequences, counts.sequences),
        "documents": (content.documents, counts.documents),
        "tokens": (content.tokens, counts.tokens),
        "token_dtype": (content.token_dtype, counts.token_type),
    }
    return [
        f"{path}: expected {name} {expected} as in the manifest, got {got}; the manifest belongs to other files"
        for name, (expected, got) in pairs.items()
        if expected != got
    ]


def find_wrong_sums(path: str, content: Content, structure: Structure) -> list[str]:
    """Check that the record counts of the manifest add up to the documents."""
    account, counts = content.record_counts, structure.counts
    with_tokens, empty = counts.documents - counts.empty_documents, account.empty_documents
    if content.options.empty_documents == "eod":  # their tokens are EOD
        with_tokens, empty = counts.documents - account.empty_documents, 0
    elif structure.version is not None:  # a record without tokens is no document of a .pbin
        empty = 0
    sums = [
        ("lines = records + blank", account.lines, account.records + account.blank),
        (
            "records = kept + filtered + quarantined",
            account.records,
            account.kept + account.filtered + account.quarantined,
        ),
        ("kept = documents with tokens + empty", account.kept, account.documents_with_tokens + account.empty_documents),
        ("documents with tokens = those of the index", account.documents_with_tokens, with_tokens),
        ("empty documents = those of the index", empty, counts.empty_documents),
        ("lines = lines of all inputs", account.lines, sum(file.lines or 0 for file in content.inputs)),
        ("kept = records kept of all inputs", account.kept, sum(file.kept or 0 for file in content.inputs)),
    ]
    return [
        f"{path}: the record counts do not add up: expected {what}, got {left} and {right}; "
        f"the manifest was changed, or belongs to other files"
        for what, left, right in sums
        if left != right
    ]


# Tokens, byte by byte: digests of blocks, ids outside the vocabulary, the number of EOD.


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPiece:
    """Bytes [begin, end) of a file with tokens: one digest block."""

    path: str
    begin: int
    end: int
    tokens: tuple[int, int]
    """The first byte of the file's tokens, and one past the last; empty if they are not known."""
    dtype: str
    vocabulary_size: int | None
    eod_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPieceResult:
    """What was read of one piece."""

    digest: bytes | None
    """None if it could not be read."""
    num_eod: int = 0
    findings: tuple[str, ...] = ()


def cut_tokens(path: str, content: Content | None, structure: Structure | None) -> list[tuple[TokenPiece]]:
    """Cut a file with tokens into pieces."""
    size_bytes = stored_size(path)
    tokenizer = content.tokenizer if content is not None else None
    return [
        (
            TokenPiece(
                path=path,
                begin=begin,
                end=min(begin + DIGEST_BLOCK_BYTES, size_bytes),
                tokens=(0, 0) if structure is None else structure.tokens,
                dtype="u1" if structure is None else structure.dtype,
                vocabulary_size=None if tokenizer is None else tokenizer.vocabulary_size,
                eod_id=None if content is None else content.eod_id,
            ),
        )
        for begin in range(0, size_bytes, DIGEST_BLOCK_BYTES)
    ]


def verify_tokens(piece: TokenPiece) -> TokenPieceResult:
    """Digest a piece, find ids outside the vocabulary, and count EOD."""
    digest, findings, num_eod, dtype = xxhash.xxh3_128(), list[str](), 0, np.dtype(piece.dtype)
    buffer = memoryview(bytearray(min(CHUNK_BYTES, piece.end - piece.begin)))
    try:
        with open_readable(piece.path) as file:
            file.expect_forwards(piece.begin, piece.end)
            for begin in range(piece.begin, piece.end, CHUNK_BYTES):
                chunk = buffer[: min(CHUNK_BYTES, piece.end - begin)]
                _fill(file, chunk, begin)
                digest.update(chunk)
                first = max(begin, piece.tokens[0])
                size_bytes = max(0, min(begin + len(chunk), piece.tokens[1]) - first)
                tokens = np.frombuffer(chunk, dtype, size_bytes // dtype.itemsize, min(first - begin, len(chunk)))
                if piece.eod_id is not None:
                    num_eod += int(np.count_nonzero(tokens == piece.eod_id))
                limit = piece.vocabulary_size
                if limit is not None and tokens.size and not 0 <= tokens.min() <= tokens.max() < limit:
                    at = int(np.flatnonzero((tokens >= limit) | (tokens < 0))[0])
                    what = f"got {tokens[at]} at byte {first + at * dtype.itemsize}"
                    findings.append(f"{piece.path}: expected token ids from 0 to {limit - 1}, {what}; {REMEDY}")
    except (OSError, EOFError) as error:
        unread = f"{piece.path}: cannot be read at bytes {piece.begin} to {piece.end} ({error}); {REMEDY}"
        return TokenPieceResult(digest=None, findings=(*findings[:SHOWN], unread))
    return TokenPieceResult(digest=digest.digest(), num_eod=num_eod, findings=tuple(findings[:SHOWN]))


def _fill(file: Readable, chunk: memoryview[int], begin: int) -> None:
    done = 0
    while done < len(chunk):
        count = file.read_into(chunk[done:], begin + done)
        if not count:
            raise EOFError(f"expected {len(chunk)} bytes at offset {begin}, got {done}")
        done += count


def judge_tokens(
    path: str, content: Content | None, structure: Structure | None, results: Iterator[TokenPieceResult]
) -> Iterator[str]:
    """Yield the findings of all pieces, and compare digest and number of EOD with the manifest."""
    digests, num_eod = [], 0
    for result in results:
        yield from result.findings
        digests.append(result.digest)
        num_eod += result.num_eod
    blocks = [digest for digest in digests if digest is not None]
    if content is None or len(blocks) < len(digests):
        return
    [recorded] = [file for suffix, file in content.digests.items() if path.endswith(f".{suffix}")]
    digest = combine_digests(blocks)
    if digest != recorded.digest:
        yield f"{path}: expected the digest {recorded.digest}, got {digest}; its content changed, {REMEDY}"
    if structure is None or content.eod_id is None or content.account is None or content.eod_in_text is None:
        return
    low = high = content.account.documents_with_tokens + content.eod_in_text
    if structure.version is not None:  # EOD at the end of a text is not repeated in a .pbin
        low, high = max(content.documents, content.eod_in_text), content.documents + content.eod_in_text
    elif content.options.empty_documents == "eod":
        low = high = low + content.account.empty_documents
    if not low <= num_eod <= high:
        wanted = f"{low}" if low == high else f"{low} to {high}"
        yield f"{path}: expected {wanted} EOD tokens, got {num_eod}; its content changed, {REMEDY}"


def cut_documents(subject: Subject, num_documents: int, eod_id: int) -> list[tuple[Subject, int, int, int]]:
    """Cut a dataset into runs of documents; a `.pbin` is one, as its index can only be read as a whole."""
    step = max(1, num_documents) if subject.kind == "pbin" else DOCUMENTS_PER_PIECE
    bounds = range(0, num_documents, step)
    return [(subject, begin, min(begin + step, num_documents), eod_id) for begin in bounds]


def verify_ends(subject: Subject, begin: int, end: int, eod_id: int) -> list[str]:
    """Find documents that have tokens and do not end with EOD."""
    try:
        store = open_store(subject, check=False)
        ends = store.ends(begin, end)
        has_tokens = np.flatnonzero(np.diff(ends, prepend=store.end(begin - 1)))
        values = store.tokens[ends[has_tokens] - 1]
    except FormatError as error:
        return [str(error)]
    wrong = np.flatnonzero(values != eod_id)[:SHOWN]
    return [
        f"{subject.path}: expected document {begin + has_tokens[at]} to end with EOD ({eod_id}), "
        f"got {values[at]}; its tokens or boundaries were changed, {REMEDY}"
        for at in wrong.tolist()
    ]


# Other files.


def verify_digest(path: str, file: Any) -> list[str]:  # noqa: ANN401 - a StoredFile or an ExportedFile
    """Compare a file with its size and digest in a manifest."""
    expected = getattr(file, "digest", None) or file.xxh3_128
    if not is_stored(path):
        is_other = os.path.lexists(path)
        what = "expected a regular file, got another" if is_other else "is missing, but the manifest lists it"
        return [f"{path}: {what}; {REMEDY}"]
    size_bytes = stored_size(path)
    if size_bytes != file.size_bytes:
        return [f"{path}: expected {file.size_bytes} bytes as in the manifest, got {size_bytes}; {REMEDY}"]
    try:
        got = digest_file(path)
    except InputError as error:
        return [str(error)]
    if got == expected:
        return []
    return [f"{path}: expected the digest {expected}, got {got}; its content changed, {REMEDY}"]


def verify_quarantine(path: str, expected: int) -> list[str]:
    """Compare the number of lines of a quarantine file with the manifest."""
    import pyarrow as pa

    lines = 0
    try:
        with open_stored(path) as file, pa.input_stream(file, compression="zstd") as stream:
            while chunk := stream.read(1 << 20):
                lines += chunk.count(b"\n")
    except (OSError, MissingObjectError, pa.ArrowException) as error:
        return [f"{path}: cannot be read as a quarantine file ({error}); {REMEDY}"]
    if lines == expected:
        return []
    return [f"{path}: expected {expected} quarantined records as in the manifest, got {lines}; {REMEDY}"]


def verify_rows(path: str, num_documents: int, without_row: int, inputs: Sequence[RecordedInput]) -> list[str]:
    """Check that a provenance has a row for each document, in the order of inputs and lines, and inside the inputs.

    Args:
        path: The file, which is read once.
        num_documents: Documents of the dataset.
        without_row: Records that were kept, but are no documents.
        inputs: What the manifest says of the inputs.
    """
    kept, last = np.zeros(len(inputs), np.int64), np.array([[-1], [0], [0]], np.int64)
    try:
        if (num_rows := count_rows(path)) != num_documents:
            return [f"{path}: expected a row for each of {num_documents} documents, got {num_rows}; {REMEDY}"]
        for begin in range(0, num_rows, ROWS_AT_ONCE):
            columns = read_rows(path, begin, min(begin + ROWS_AT_ONCE, num_rows))
            rows = np.concatenate((last, np.stack([column.astype(np.int64) for column in columns])), axis=1)
            if (wrong := _first_wrong_row(rows, inputs)) is not None:
                got = "input {}, offset {}, line {}".format(*rows[:, wrong + 1].tolist())
                what = "expected inputs and lines in order, inside the inputs of the manifest"
                return [f"{path}: {what}, got {got} for document {begin + wrong}; {REMEDY}"]
            kept += np.bincount(rows[0, 1:], minlength=len(inputs))
            last = rows[:, -1:]
    except FormatError as error:
        return [f"{error}; {REMEDY}"]
    return [
        f"{path}: expected {file.kept} documents from {file.path} as in the manifest"
        + (f" (or up to {without_row} fewer, which have no tokens)" if without_row else "")
        + f", got {rows}; {REMEDY}"
        for file, rows in zip(inputs, kept.tolist(), strict=True)
        if file.kept is not None and not file.kept - without_row <= rows <= file.kept
    ][:SHOWN]


def _first_wrong_row(rows: NDArray[np.int64], inputs: Sequence[RecordedInput]) -> int | None:
    """Return the first of rows [input, offset, line] that cannot be; the first column is the row before them."""
    numbers, offsets, lines = rows[:, 1:]
    steps = np.diff(rows, axis=1)
    # All rows of a row group of a table have its number as their offset.
    is_ahead = (steps[0] > 0) | ((steps[0] == 0) & (steps[1] >= 0) & (steps[2] > 0))
    known = np.clip(numbers, 0, len(inputs) - 1)
    most = 2**63 - 1
    last_lines = np.array([most if file.lines is None else file.lines for file in inputs], np.int64)[known]
    ends = np.array([_text_end(file, most) for file in inputs], np.int64)[known]
    is_inside = (known == numbers) & (offsets >= 0) & (offsets < ends) & (lines >= 1) & (lines <= last_lines)
    # Line 1 of a text is at byte 0, and every line takes at least its newline.
    is_inside &= (ends == most) | (lines - 1 <= offsets)
    wrong = np.flatnonzero(~(is_ahead & is_inside))
    return int(wrong[0]) if len(wrong) else None


def _text_end(file: RecordedInput, most: int) -> int:
    """Return the size of an input's text; the most there can be for a table, or if it is not recorded."""
    size_bytes = file.size_bytes if file.text_bytes is None else file.text_bytes
    return most if size_bytes is None or file.format in TABLES else size_bytes
