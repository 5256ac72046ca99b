"""The driver of `dsindex verify FILE.pbin`: checks a `.pbin` against its manifest and its source."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.datasets.exports import export_folder_of
from dsindex.engine.executors import Call
from dsindex.engine.manifest import manifest_path
from dsindex.engine.start import make_executor
from dsindex.errors import FormatError
from dsindex.formats import PICKLE_START
from dsindex.formats.pbin import (
    CURRENT_VERSION,
    DATA_LENGTH_BYTES,
    JOIN_SHORTFALL,
    PBIN_VERSIONS,
    TOKEN_SIZE_BYTES,
    TOKEN_SIZES,
    PbinHeader,
    open_tokens,
    read_pbin_header,
)
from dsindex.formats.pickled_pairs import read_pairs
from dsindex.options.config import PBIN_SUFFIX, UsageError
from dsindex.store.reading import is_stored
from dsindex.store.storage import open_file
from dsindex.store.urls import as_prefix
from dsindex.tools.verify import run_verify, verify_export
from dsindex.tools.verify_files import IndexCounts, read_runs
from dsindex.tools.verify_report import (
    Check,
    Recorded,
    Step,
    Verdict,
    VerifyReport,
    check_counts,
    check_files,
    check_provenance,
    check_quarantine,
    check_record_counts,
    check_tokens,
    make_report,
    read_pbin_options,
    read_recorded,
    report_absence,
)
from dsindex.tools.verify_same import check_same
from dsindex.tools.verify_source import open_for_comparison, run_and_compare

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dsindex.engine.manifest import Content
    from dsindex.engine.progress import Reporter
    from dsindex.options.datasets import VerifyConfig
    from dsindex.tools.verify_files import DocumentRun


# Check the structure of a `.pbin`: its header, every entry of its index, and EOD at the end of documents.
#
# The index is read as a stream, so memory does not depend on the number of documents. Source: docs/formats.md,
# section 3.

DOCUMENTS_PER_ENDS = 1 << 18
"""Documents whose ends are checked in one call, which receives their lengths: 2 MiB."""
_SHOWN = 3
_REMEDY = "restore the file, or pack it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class PbinEndsPiece:
    """Consecutive documents of a `.pbin`, whose last tokens must be EOD."""

    path: str
    header: PbinHeader
    run: DocumentRun
    eod_id: int


def verify_pbin_header(path: str, *, version_name: str | None) -> tuple[PbinHeader | None, list[str]]:
    """Detect the version of a `.pbin` and check its header against the file.

    Args:
        path: The file.
        version_name: The version in the manifest; None if it is unknown.

    Returns:
        The header (None for a file that fits no version), and findings. If the manifest has the version and only the
        index is damaged, there is a header and no finding.
    """
    try:
        header = read_pbin_header(path)
    except FormatError as error:
        return _judge_damage(path, error, version_name)
    if version_name is None or version_name == header.version.name:
        return header, []
    with contextlib.suppress(FormatError):  # a file without documents fits two versions
        return read_pbin_header(path, version=PBIN_VERSIONS[version_name]), []
    finding = (
        f"{path}: expected a .pbin of version {version_name} as in the manifest, got version {header.version.name}"
    )
    return header, [f"{finding}; the manifest belongs to another file"]


def _judge_damage(path: str, error: FormatError, version_name: str | None) -> tuple[PbinHeader | None, list[str]]:
    """Describe why a file is not a `.pbin` of the version in the manifest, or of one with a token size."""
    try:
        with open_file(path) as file:
            head = file.read(DATA_LENGTH_BYTES + TOKEN_SIZE_BYTES)
            size_bytes = os.fstat(file.fileno()).st_size
    except OSError:
        return None, [f"{error}; {_REMEDY}"]
    versions = (CURRENT_VERSION, PBIN_VERSIONS["2024-01-30"])
    for version in versions if version_name is None else (PBIN_VERSIONS[version_name],):
        if len(head) < version.header_bytes:
            continue
        data_bytes = int(np.frombuffer(head, f"{version.byte_order}u8", 1)[0])
        token_bytes = TOKEN_SIZE_BYTES
        if version.names_token_size:
            token_bytes = int(np.frombuffer(head, f"{version.byte_order}u4", 1, DATA_LENGTH_BYTES)[0])
        if token_bytes not in TOKEN_SIZES:
            continue
        header = PbinHeader(version=version, token_bytes=token_bytes, data_bytes=data_bytes)
        misfit = _describe_misfit(path, header, size_bytes)
        if misfit is None and version_name is not None:
            return header, []  # the index is checked separately
        if misfit is None:
            misfit = _describe_index(path, header)
        return None, [f"{path}: {misfit}; the file was cut off or changed, {_REMEDY}"]
    what = (
        f"expected the header of a .pbin, {DATA_LENGTH_BYTES} bytes with the size of all tokens and "
        f"{TOKEN_SIZE_BYTES} with that of one (1, 2 or 4), got {head.hex() or 'nothing'}"
    )
    return None, [f"{path}: {what}; {_REMEDY}"]


def _describe_misfit(path: str, header: PbinHeader, size_bytes: int) -> str | None:
    """Describe how a file contradicts its header; None if it does not."""
    end = header.index_offset
    if end >= size_bytes:
        return f"expected tokens up to byte {end}, as its header says, and an index, got a file of {size_bytes} bytes"
    if header.data_bytes % header.token_bytes:
        return f"expected whole tokens of {header.token_bytes} bytes, got {header.data_bytes} bytes in its header"
    with open_file(path) as file:
        file.seek(end)
        begin = file.read(1)
    if begin != PICKLE_START:
        return f"expected its index at byte {end}, where its header says that the tokens end, got {begin.hex()}"
    return None


def _describe_index(path: str, header: PbinHeader) -> str:
    """Describe why the beginning of an index fits no version."""
    try:
        first = next(iter(read_pairs(path, offset=header.index_offset)[:, 0].tolist()), None)
    except FormatError as error:
        return str(error).removeprefix(f"{path}: ")
    return f"expected its first document at offset 0, or that of its first token in the file, got {first}"


def verify_pbin_index(path: str, header: PbinHeader) -> tuple[IndexCounts | None, list[str]]:
    """Check that the documents of an index cover the tokens, in order, without gap or overlap.

    Returns:
        The counts (None for a damaged index), and findings.
    """
    first, tokens_end = header.version.first_offset, header.version.first_offset + header.data_bytes
    documents = empty = joints = length_bytes = 0
    end, fits_a_join = first, True
    wrong: list[str] = []
    try:
        for pairs in filter(len, [read_pairs(path, offset=header.index_offset)]):
            offsets, lengths = pairs[:, 0], pairs[:, 1]
            ends = offsets + lengths  # exceeds int64 only if a length is found to be too large
            before = np.concatenate(([end], ends[:-1]))
            short = before - offsets
            too_long = lengths > header.data_bytes
            outside = (offsets < first) | too_long | (offsets > tokens_end - lengths)
            torn = lengths % header.token_bytes != 0
            fits_a_join &= not np.any(too_long | torn | (short < 0) | (short % JOIN_SHORTFALL != 0))
            joints += int(np.count_nonzero(short))
            for at in np.flatnonzero(outside | torn | (short != 0))[: _SHOWN - len(wrong)].tolist():
                number, (offset, length) = documents + at, pairs[at].tolist()
                if torn[at]:
                    what = f"document {number} to be whole tokens of {header.token_bytes} bytes, got {length} bytes"
                elif outside[at]:
                    limits = f"from offset {first} to {tokens_end}"
                    what = f"document {number} within the tokens, {limits}, got {length} bytes at offset {offset}"
                elif number == 0:
                    what = f"document 0 at offset {before[at]}, where the tokens begin, got {offset}"
                else:
                    why = "the two overlap" if offset < before[at] else "the bytes between belong to no document"
                    place = f"offset {before[at]}, where document {number - 1} ends"
                    what = f"document {number} at {place}, got {offset}: {why}"
                wrong.append(f"{path}: expected {what}; its index was changed, {_REMEDY}")
            documents += len(pairs)
            empty += int(np.count_nonzero(lengths == 0))
            length_bytes += int(np.minimum(lengths, header.data_bytes + 1).sum())
            end = int(ends[-1])
    except FormatError as error:
        return None, [f"{error}; {_REMEDY}"]
    if joints and fits_a_join and length_bytes == header.data_bytes:
        low = f"the offsets are {JOIN_SHORTFALL} bytes too low after each of {joints} joints"
        remedy = "join its parts again: dsindex pack --merge"
        return None, [f"{path}: {low}, as Modalities leaves them when it joins files; {remedy}"]
    if not wrong and end != tokens_end:
        what = f"the last document to end at offset {tokens_end}, where the tokens end, got {end}"
        wrong.append(f"{path}: expected {what}; its index was changed, {_REMEDY}")
    if wrong:
        return None, wrong
    counts = IndexCounts(
        num_sequences=documents,
        num_documents=documents,
        num_tokens=header.num_tokens,
        num_empty_documents=empty,
        token_dtype=header.dtype.newbyteorder("=").name,
    )
    return counts, []


def verify_pbin_ends(piece: PbinEndsPiece) -> list[str]:
    """Find documents that have tokens and do not end with EOD. The index must be intact."""
    lengths = piece.run.lengths
    has_tokens = np.flatnonzero(lengths)
    ends = piece.run.first_token + np.cumsum(lengths)[has_tokens] - 1
    try:
        values: NDArray[Any] = open_tokens(piece.path, piece.header)[ends]
    except FormatError as error:
        return [str(error)]
    wrong = np.flatnonzero(values != piece.eod_id)
    return [
        f"{piece.path}: expected document {piece.run.first_document + has_tokens[at]} to end with EOD "
        f"({piece.eod_id}), got {values[at]}; its tokens or its index were changed, {_REMEDY}"
        for at in wrong[:_SHOWN]
    ]


_SUFFIX = PBIN_SUFFIX.removeprefix(".")


def run_pbin_verify(path: str, config: VerifyConfig, *, reporter: Reporter) -> VerifyReport:
    """Verify one `.pbin`: always its structure; the rest as far as a manifest and options allow.

    Raises:
        InputError: If `--against-source` asks for a check that is impossible.
        TokenizerError: If the tokenizer for `--against-source` is not the one that the file was made with.
    """
    absence = report_absence(path, [path, manifest_path(path.removesuffix(PBIN_SUFFIX))])
    if absence is not None:
        return absence
    recorded, version_name = _read_recorded(path)
    header, findings = verify_pbin_header(path, version_name=version_name)
    name = "the header against the file, and its version" if header is not None else None
    checks = [recorded.check, Check(name=name, findings=tuple(findings))]
    source = None
    if config.against_source and header is not None:
        source, opened = open_for_comparison(recorded, config, pbin=header)
        checks.append(opened)
    elif config.against_source:
        checks.append(Check(notes=("the header is damaged, so the file could not be compared with its source",)))
    counts, findings = verify_pbin_index(path, header) if header is not None else (None, [])
    name = "every entry of the index against the tokens" if counts is not None else None
    checks.append(Check(name=name, findings=tuple(findings)))
    content, provenance = recorded.content, Check()
    account = content.account if content is not None else None
    if counts is not None:
        num_without_row = account.empty_documents if account is not None else 0
        provenance = check_provenance(recorded, num_documents=counts.num_documents, num_without_row=num_without_row)
        if content is not None:
            checks.append(check_counts(path, content, counts))
            checks.append(check_record_counts(path, content, counts, keeps_empty=False))
            checks.append(check_quarantine(recorded))
    if is_stored(path):
        dtype = header.dtype.str if header is not None else "u1"
        tokens = (header.version.header_bytes, header.index_offset) if header is not None else (0, 0)
        judge = partial(_judge_eod, path, header)
        checks.append(check_tokens(recorded, suffix=_SUFFIX, dtype=dtype, tokens=tokens, judge_num_eod=judge))
    checks += check_files(recorded, token_suffix=_SUFFIX, structural=(_SUFFIX,))
    checks.append(check_same(path, config.same_as))
    if content is not None and content.eod_id is not None and header is not None and counts is not None:
        checks.append(_check_ends(path, content.eod_id, header, counts.num_documents))
    checks.append(provenance)
    selection = source.settings.selection if source is not None else None
    executor = make_executor(config, holds_gil=selection is not None and selection.needs_jq)
    try:
        executor.require_seen([path])
        ran = run_and_compare(
            checks,
            source,
            provenance=provenance,
            counts=counts,
            share=config.sample,
            executor=executor,
            reporter=reporter,
        )
    finally:
        executor.close()
    version = header.version.name if header is not None else None
    return make_report(path, ran, counts=counts, version=version)


def _read_recorded(path: str) -> tuple[Recorded, str | None]:
    """Read the manifest; return it with the version of the `.pbin` that it records."""
    prefix = path.removesuffix(PBIN_SUFFIX)
    recorded = read_recorded(prefix, token_suffix=_SUFFIX)
    if recorded.content is None:
        return recorded, None
    try:
        return recorded, read_pbin_options(prefix, recorded.content).pbin_era
    except FormatError as error:
        return Recorded(prefix=prefix, is_there=True, check=Check(findings=(str(error),))), None


def _judge_eod(path: str, header: PbinHeader | None, content: Content, num_eod: int) -> Verdict:
    """Check the number of EOD tokens: one per document and those from text, which may coincide."""
    if header is None or content.eod_id is None or content.eod_in_text is None:
        return Verdict()
    low, high = max(content.documents, content.eod_in_text), content.documents + content.eod_in_text
    wanted = f"{low}" if low == high else f"{low} to {high}"
    finding = (
        f"{path}: expected {wanted} EOD tokens (one at the end of each document, {content.eod_in_text} "
        f"from text, which may be the same), got {num_eod}; its content changed, restore it or pack it again"
    )
    return Verdict.of("the number of EOD tokens", finding, is_sound=low <= num_eod <= high)


def _check_ends(path: str, eod_id: int, header: PbinHeader, num_documents: int) -> Check:
    bounds = (
        (begin, min(begin + DOCUMENTS_PER_ENDS, num_documents)) for begin in range(0, num_documents, DOCUMENTS_PER_ENDS)
    )
    pieces = (
        PbinEndsPiece(path=path, header=header, run=run, eod_id=eod_id) for run in read_runs(path, header, bounds)
    )
    call = partial(Call, place=path, function=verify_pbin_ends)
    return Check(
        name="every document with tokens ends with EOD",
        steps=(Step(call=call(name=f"ends[{piece.run.first_document}]", arguments=(piece,))) for piece in pieces),
    )


def verify_dataset(given: str, config: VerifyConfig, *, reporter: Reporter) -> VerifyReport:
    """Verify one dataset: a `.pbin`, the folder of an export, or an MMIDIDX pair by its prefix or one of its files."""
    if given.endswith(PBIN_SUFFIX):
        return run_pbin_verify(given, config, reporter=reporter)
    if os.path.isdir(given) and export_folder_of(given) is not None:
        if config.cache is not None or config.against_source:
            msg = f"--cache and --against-source are for datasets, not for the export {given}; leave one of them out"
            raise UsageError(msg)
        return verify_export(given, reporter=reporter)
    return run_verify(as_prefix(given), config, reporter=reporter)
