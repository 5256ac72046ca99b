"""Compare a dataset with its source text: tokenize again, and report the first document that differs.

A piece is either a run of documents, found in the inputs through the provenance, or, without provenance, a range of an
input whose first document is known from counting the records before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import xxhash

from dsindex.datasets.provenance import count_rows, read_rows
from dsindex.engine.dispatch import run_in_order
from dsindex.engine.executors import Call
from dsindex.engine.input_paths import STANDARD_INPUT
from dsindex.engine.inputs import detect_form, find_parts
from dsindex.engine.output import PROVENANCE_SUFFIX
from dsindex.engine.worker import LaidOutDocuments, lay_out_documents, lay_out_pbin_documents
from dsindex.errors import BadRecordError, InputError, MissingObjectError, StoreError
from dsindex.options.config import PBIN_SUFFIX
from dsindex.store.reading import fingerprint_input, input_status, is_stored, is_there
from dsindex.text.forms import JSON_LINES, InputForm, TextPart
from dsindex.text.parts import read_part
from dsindex.text.sampling import ALL_RECORDS, Sample, sample_records
from dsindex.text.selection import (
    Selection,
    open_pattern,
    open_selection,
)
from dsindex.tools.verify_files import IndexedDocuments, PbinDocuments, read_runs
from dsindex.tools.verify_report import Check, RanCheck, Step, Verdict, load_recorded, read_pbin_options, run_checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.engine.executors import Executor
    from dsindex.engine.inputs import InputFormat
    from dsindex.engine.manifest import Content, Manifest, RecordedInput
    from dsindex.engine.progress import Reporter
    from dsindex.formats.pbin import PbinHeader
    from dsindex.options.datasets import VerifyConfig
    from dsindex.text.engines import Engine
    from dsindex.text.record_blocks import RecordBlock
    from dsindex.text.tokenizer import Tokenizer
    from dsindex.tools.verify_files import DocumentRun, Documents, IndexCounts, StoredDocuments
    from dsindex.tools.verify_report import Recorded


DOCUMENTS_PER_SLICE = 1 << 16
DOCUMENTS_PER_RUN = 16
"""Consecutive documents that a sample takes together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInput:
    """One input in its current state."""

    path: str
    size_bytes: int
    form: InputForm = JSON_LINES
    share: float | None = None
    """Share of its records that was kept; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """The settings that all pieces share; sent to every worker once."""

    dataset: str
    """A prefix, or the path of a `.pbin`."""
    pbin: PbinHeader | None
    """Header of the `.pbin`; None for an MMIDIDX pair."""
    inputs: tuple[SourceInput, ...]
    key: str
    selection: Selection | None = None
    """The records to keep and the values to read; `key` is its output."""
    tokenizer: Tokenizer
    engine: Engine
    dtype: str
    eod_id: int | None
    """Appended to documents; None to append nothing."""
    empty_documents: Literal["keep", "eod"] = "keep"
    """What a document without tokens becomes, as `lay_out_documents` says."""
    max_record_bytes: int | None
    quarantine: bool
    """Whether bad records were quarantined; otherwise there must be none."""
    provenance: str | None
    """Path of the provenance file, if there is one."""
    sample: Sample = ALL_RECORDS
    """The records that were kept."""

    @property
    def has_offsets(self) -> bool:
        """Whether records can be read where the provenance says, as only plain lines allow."""
        return all(file.form.can_seek for file in self.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSlice:
    """Documents [begin, end), or a sample of them."""

    begin: int
    end: int
    share: float
    """Share of the documents to compare, in (0, 1]."""
    run: DocumentRun | None = None
    """The same documents in a `.pbin`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRange:
    """A part of an input: the lines that begin in the byte range [begin, end), or row groups of a table."""

    input: int
    begin: int
    end: int
    first_document: int
    num_documents: int | None
    """Documents of its records; None if they have not been counted."""
    first_line: int
    """Number of the first line, from 1."""
    run: DocumentRun | None = None
    """Documents of a `.pbin` with which the range is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceResult:
    """The result of one piece."""

    documents: int
    """Number of documents compared, up to the first that differs."""
    difference: tuple[int, str] | None
    """The first document that differs, and how."""


def plan_slices(num_documents: int, share: float) -> list[DocumentSlice]:
    """Cut the documents into slices; a share of each slice is compared."""
    return [
        DocumentSlice(begin=begin, end=min(begin + DOCUMENTS_PER_SLICE, num_documents), share=share)
        for begin in range(0, num_documents, DOCUMENTS_PER_SLICE)
    ]


def choose_runs(piece: DocumentSlice) -> list[tuple[int, int]]:
    """Choose the documents to compare by a hash of their numbers, which is the same every time and everywhere.

    >>> choose_runs(DocumentSlice(begin=0, end=40, share=1.0))
    [(0, 40)]
    >>> choose_runs(DocumentSlice(begin=0, end=40, share=0.1))
    [(32, 40)]
    """
    if piece.share >= 1:
        return [(piece.begin, piece.end)]
    runs = range(piece.begin, piece.end, DOCUMENTS_PER_RUN)
    wanted = max(1, -(-int(len(runs) * piece.share * 1e6) // 10**6))
    chosen = sorted(sorted(runs, key=lambda run: xxhash.xxh3_64_intdigest(run.to_bytes(8, "big")))[:wanted])
    return [(begin, min(begin + DOCUMENTS_PER_RUN, piece.end)) for begin in chosen]


def choose_ranges(ranges: Sequence[SourceRange], share: float) -> list[SourceRange]:
    """Choose a share of ranges by a hash, as `choose_runs` does."""
    if share >= 1:
        return list(ranges)
    order = sorted(ranges, key=lambda piece: xxhash.xxh3_64_intdigest(f"{piece.input} {piece.begin}".encode()))
    chosen = order[: max(1, -(-int(len(order) * share * 1e6) // 10**6))]
    return sorted(chosen, key=lambda piece: (piece.input, piece.begin))


def count_records(piece: SourceRange, settings: SourceSettings) -> tuple[int, int]:
    """Return the numbers of lines and documents of a range.

    Texts are encoded only for a packed layout, or where the tokenizer's library may have failed on some.
    """
    lines = documents = 0
    for block in _read(piece, settings):
        lines += block.num_lines
        if settings.pbin is None and not settings.quarantine:
            documents += len(block.offsets)
        else:
            documents += len(_lay_out(block, piece, settings)[1].sequences_per_document)
    return lines, documents


def compare_slice(piece: DocumentSlice, settings: SourceSettings) -> SourceResult:
    """Tokenize the chosen documents of a slice again, reading them where the provenance points."""
    comparison = _Comparison(settings, piece.run)
    path = settings.provenance or ""
    num_rows = count_rows(path)
    for begin, end in choose_runs(piece):
        before, after = max(0, begin - 1), min(end + 1, num_rows)
        inputs, offsets, lines = read_rows(path, before, after)
        own = slice(begin - before, end - before)
        cuts = np.flatnonzero(np.diff(inputs[own])) + 1
        for first, last in pairwise([0, *cuts.tolist(), end - begin]):
            low, high = own.start + first, own.start + last
            number = int(inputs[low])
            start, stop, input_bytes = int(offsets[low]), int(offsets[high - 1]) + 1, settings.inputs[number].size_bytes
            if piece.share >= 1:  # read the text between documents as well, where none may be missing
                start = start if low and inputs[low - 1] == number else 0
                is_followed = high < len(inputs) and inputs[high] == number
                stop = int(offsets[high]) if is_followed else input_bytes
            source = SourceRange(
                input=number,
                begin=start,
                end=min(stop, input_bytes),
                first_document=begin + first,
                num_documents=last - first,
                first_line=1,
            )
            comparison.compare(source, offsets[low:high], lines[low:high])
            if comparison.difference is not None:
                return comparison.result()
    return comparison.result()


def compare_range(piece: SourceRange, settings: SourceSettings) -> SourceResult:
    """Tokenize a range again and compare it with its documents."""
    comparison = _Comparison(settings, piece.run)
    comparison.compare(piece, None, None)
    return comparison.result()


def _read(piece: SourceRange, settings: SourceSettings) -> Iterator[RecordBlock]:
    """Read a range's records; a bad one is an error unless the build quarantined bad records."""
    source = settings.inputs[piece.input]
    part = TextPart(
        path=source.path, begin=piece.begin, end=piece.end, form=source.form, expected_size=source.size_bytes
    )
    for block in read_part(
        part,
        keys=(settings.key,),
        selection=settings.selection,
        max_record_bytes=settings.max_record_bytes,
    ):
        _require_good(block, piece, settings)
        yield sample_records(block, (settings.sample,))


def _require_good(block: RecordBlock, piece: SourceRange, settings: SourceSettings) -> None:
    if block.bad and not settings.quarantine:
        raise BadRecordError(settings.inputs[piece.input].path, block.bad[0].offset, block.bad[0].reason)


def _lay_out(block: RecordBlock, piece: SourceRange, settings: SourceSettings) -> tuple[RecordBlock, LaidOutDocuments]:
    """Return the block without the records on which the tokenizer's library fails, and its documents."""
    from dsindex.text.encoders import encode_block

    block, encoded = encode_block(block, settings.tokenizer, settings.engine)
    _require_good(block, piece, settings)
    batch, per_record = encoded[settings.key]
    dtype = np.dtype(settings.dtype)
    if settings.pbin is not None:
        return block, lay_out_pbin_documents(batch, dtype=dtype, eod_id=settings.eod_id)
    empty = settings.empty_documents
    return block, lay_out_documents(batch, per_record, dtype=dtype, eod_id=settings.eod_id, empty_documents=empty)


class _Comparison:
    """Compares ranges until the first document that differs."""

    def __init__(self, settings: SourceSettings, run: DocumentRun | None) -> None:
        self._settings = settings
        self._stored: StoredDocuments
        if settings.pbin is None:
            self._stored = IndexedDocuments(settings.dataset)
        elif run is None:
            raise ValueError("expected the documents of a .pbin with the piece, got none")
        else:
            self._stored = PbinDocuments(settings.dataset, settings.pbin, run)
        self._documents = 0
        self.difference: tuple[int, str] | None = None

    def result(self) -> SourceResult:
        return SourceResult(documents=self._documents, difference=self.difference)

    def compare(self, piece: SourceRange, offsets: NDArray[np.int64] | None, lines: NDArray[np.int64] | None) -> None:
        """Compare a range's documents; `offsets` and `lines` are their provenance."""
        path = self._settings.inputs[piece.input].path
        document = piece.first_document
        for read in _read(piece, self._settings):
            block, got = _lay_out(read, piece, self._settings)
            # A record without tokens is no document of a `.pbin`.
            own = slice(None) if got.is_document is None else got.is_document
            block_offsets, block_lines = block.offsets[own], block.lines[own] + piece.first_line
            done = document - piece.first_document
            if offsets is not None and lines is not None:
                wrong = _first_unlike(block_offsets, offsets[done : done + len(block_offsets)])
                if wrong is not None:
                    self._differs(document + wrong, f"the provenance does not lead to its record in {path}")
                    return
                block_lines = lines[done : done + len(block_offsets)]
            room = max(0, self._stored.end - document)
            if len(block_offsets) > room:
                place = f"{path}, line {block_lines[room]}"
                self._differs(document + room, f"{place}, has a record, but the dataset ends before it")
                return
            found = self._first_difference(document, got)
            if found is not None:
                at, what = found
                self._documents += at
                self._differs(document + at, f"{path}, line {block_lines[at]}, gives {what}")
                return
            document += len(block_offsets)
            self._documents += len(block_offsets)
        if offsets is not None and document - piece.first_document != len(offsets):
            self._differs(document, f"{path} ends before its record")

    def _differs(self, document: int, what: str) -> None:
        again = "build" if self._settings.pbin is None else "pack"
        where = f"{self._settings.dataset}: document {document} differs from its source"
        remedy = f"restore the dataset's files, or {again} it again with --fresh"
        self.difference = document, f"{where}: {what}; {remedy}"

    def _first_difference(self, document: int, got: LaidOutDocuments) -> tuple[int, str] | None:
        """Compare documents with the dataset's from `document` on; return the first difference, if any."""
        stored = self._stored.read(document, len(got.sequences_per_document))
        if (
            np.array_equal(stored.sequences_per_document, got.sequences_per_document)
            and np.array_equal(stored.sequence_lengths, got.sequence_lengths)
            and np.array_equal(stored.tokens, got.tokens)
        ):
            return None
        for number, (there, here) in enumerate(zip(_split(stored), _split(got), strict=True)):
            if not all(map(np.array_equal, there, here)):
                return number, _describe_difference(there, here)
        return None


Document = tuple["NDArray[Any]", "NDArray[Any]"]


def _split(documents: Documents | LaidOutDocuments) -> Iterator[Document]:
    """Yield each document's sequence lengths and tokens."""
    sequence = token = 0
    for count in documents.sequences_per_document.tolist():
        own = documents.sequence_lengths[sequence : sequence + count]
        size = int(own.sum(dtype=np.int64))
        yield own, documents.tokens[token : token + size]
        sequence, token = sequence + count, token + size


def _describe_difference(there: Document, here: Document) -> str:
    if len(there[1]) != len(here[1]):
        return f"{len(here[1])} tokens where the dataset has {len(there[1])}"
    token = _first_unlike(here[1], there[1])
    if token is None:
        return f"sequences of {here[0].tolist()[:8]} tokens where the dataset has {there[0].tolist()[:8]}"
    return f"token {token} as {here[1][token]} where the dataset has {there[1][token]}"


def _first_unlike(left: NDArray[Any], right: NDArray[Any]) -> int | None:
    """Return the first index at which two arrays differ; a shorter one differs at its end."""
    size = min(len(left), len(right))
    wrong = np.flatnonzero(left[:size] != right[:size])
    if len(wrong):
        return int(wrong[0])
    return size if len(left) != len(right) and size < len(left) else None


# Find a dataset's source as recorded in its manifest, and tokenize it again on any executor.

RANGE_BYTES = 16 << 20
"""Size of a range of an input, if there is no provenance through which documents are found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSource:
    """The inputs, tokenizer and options with which a dataset was made."""

    settings: SourceSettings
    findings: tuple[str, ...]
    """Sentences about inputs that are missing or changed."""

    def without_provenance(self) -> RecordedSource:
        """Return the source without its provenance, which is damaged."""
        return replace(self, settings=replace(self.settings, provenance=None))


def open_recorded_source(
    prefix: str,
    manifest: Manifest | None,
    config: VerifyConfig,
    *,
    pbin: PbinHeader | None = None,
) -> RecordedSource:
    """Find the source of a dataset.

    Args:
        prefix: Path without suffix.
        manifest: The dataset's manifest, if there is one.
        config: Options of tokenizer and engine.
        pbin: Header of the `.pbin`; None for an MMIDIDX pair.

    Raises:
        InputError: If there is no manifest, the dataset was not made from text, or an object store is out of reach.
        FormatError: If the manifest is damaged.
        TokenizerError: If the tokenizer is missing or differs from the recorded one.
    """
    from dsindex.text.engines import choose_engine

    content = manifest.content if manifest is not None else None
    recorded = content.tokenizer if content is not None else None
    selection = _recorded_text(prefix, manifest, pbin)
    if manifest is None or content is None or recorded is None or selection is None:
        maker = "a build" if pbin is None else "`dsindex pack`"
        raise InputError(
            f"{prefix}: expected the manifest of {maker}, which names inputs and tokenizer, got none; without it the "
            f"dataset cannot be compared with its source (for a merged one, compare the datasets it was made of)"
        )
    options = content.options
    tokenizer = load_recorded(prefix, recorded, manifest, given=config.tokenizer_model)
    provenance = f"{prefix}.{PROVENANCE_SUFFIX}"
    inputs, findings = _find_inputs(content.inputs, manifest.run.plan)
    set_aside = options.on_bad_record == "quarantine" and any(file.quarantined != 0 for file in content.inputs)
    # Texts on which the reference fails are no problem for gigatoken, and would be documents now.
    is_by_reference = manifest.run.engine is not None and manifest.run.engine.name == tokenizer.library
    engine = "reference" if set_aside and is_by_reference and config.engine == "auto" else config.engine
    settings = SourceSettings(
        dataset=prefix if pbin is None else f"{prefix}{PBIN_SUFFIX}",
        pbin=pbin,
        inputs=inputs,
        key=selection.outputs[0],
        selection=selection,
        tokenizer=tokenizer,
        engine=choose_engine(tokenizer, engine, add_special_tokens=not options.tokenizer_hf_no_include_special_tokens),
        dtype=content.token_dtype,
        eod_id=content.eod_id,
        empty_documents=options.empty_documents or "keep",
        max_record_bytes=options.max_record_size,
        quarantine=set_aside,
        provenance=provenance if is_stored(provenance) else None,
        sample=Sample(low=options.leave_out or 0.0, high=options.sample or 1.0),
    )
    return RecordedSource(settings=settings, findings=tuple(findings))


def _recorded_text(prefix: str, manifest: Manifest | None, pbin: PbinHeader | None) -> Selection | None:
    """Return what a dataset was made from; None if it is unknown.

    Raises:
        InputError: If the dataset was made from conversations.
    """
    if manifest is None:
        return None
    content = manifest.content
    if content.options.instruction is not None:
        raise InputError(
            f"{prefix}: expected a dataset of texts, got one of `dsindex instruct`, which cannot be compared record by "
            f"record; run the same `dsindex instruct` with another --output-prefix and compare the digests in both "
            f"manifests"
        )
    if pbin is None:
        return _recorded_selection(content, manifest.run.plan)
    return open_pattern(read_pbin_options(prefix, content).jq_pattern)


def _recorded_selection(content: Content, plan: Mapping[str, Any]) -> Selection | None:
    """Return the selection of a build, whose first output is the dataset; None if it was not built from records.

    Raises:
        InputError: If a jq program in the manifest does not compile.
    """
    options = content.options
    key = options.json_key if options.token_ids is None else options.token_ids
    keys = options.json_keys or ([] if key is None else [key])
    if not keys or content.tokenizer is None:
        return None
    is_sampled = options.sample is not None or options.leave_out is not None
    has_bad = content.account is not None and content.account.quarantined > 0
    if (is_sampled or has_bad) and options.json_key is not None:
        # A record that is bad for another key was quarantined for all, and a sample depends on the texts of all keys.
        others = plan["settings"].get("json-keys")
        if isinstance(others, list) and options.json_key in others:
            keys = [*keys, *(other for other in others if isinstance(other, str) and other != options.json_key)]
    size = None if options.token_ids is None else content.tokenizer.vocabulary_size
    return open_selection(keys, where=options.where, join=options.join, vocabulary_size=size)


def _find_inputs(
    recorded: Sequence[RecordedInput], plan: Mapping[str, Any]
) -> tuple[tuple[SourceInput, ...], list[str]]:
    """Find the inputs, by their paths as given or else their absolute paths; return also sentences about changes."""
    absolute = [entry[0] for entry in plan["inputs"]]
    inputs, findings = [], []
    for number, file in enumerate(recorded):
        path = file.path
        is_piped = path == STANDARD_INPUT
        if (is_piped or not is_there(path)) and number < len(absolute):
            path = absolute[number]
        try:
            status = input_status(path)
            path, size_bytes = status.path, status.size_bytes
            fingerprint = fingerprint_input(path)
            form = detect_form(path, shown_as=file.path, wanted=cast("InputFormat", file.format or "jsonl"))
        except OSError as error:
            remedy = "store standard input there again" if is_piped else "restore it"
            findings.append(f"{path}: cannot be read ({error.strerror}); the dataset was made from it, {remedy}")
            continue
        except InputError as error:
            if isinstance(error, StoreError) and not isinstance(error, MissingObjectError):
                raise  # out of reach now, which says nothing about the dataset
            findings.append(str(error))
            continue
        if size_bytes != file.size_bytes or fingerprint != file.fingerprint:
            findings.append(
                f"{path}: expected the input of {file.size_bytes} bytes with fingerprint {file.fingerprint} as in the "
                f"manifest, got {size_bytes} bytes with {fingerprint}; it changed, restore the original"
            )
        inputs.append(SourceInput(path=path, size_bytes=size_bytes, form=form))
    return tuple(inputs), findings


def plan_ranges(settings: SourceSettings) -> list[SourceRange]:
    """Cut all inputs into ranges, whose first documents and lines are not yet known.

    Raises:
        InputError: If an input cannot be read.
    """
    ranges = []
    for number, file in enumerate(settings.inputs):
        parts = find_parts(file.path, file.form, shard_size=RANGE_BYTES)
        bounds = (*range(0, file.size_bytes, RANGE_BYTES), file.size_bytes) if parts is None else parts.bounds
        ranges += [
            SourceRange(input=number, begin=begin, end=end, first_document=0, num_documents=None, first_line=1)
            for begin, end in pairwise(bounds)
        ]
    return ranges


def open_for_comparison(
    recorded: Recorded, config: VerifyConfig, *, pbin: PbinHeader | None = None
) -> tuple[RecordedSource | None, Check]:
    """Find the source of a dataset, before any long work begins.

    Args:
        recorded: The dataset's manifest.
        config: Options of tokenizer and engine.
        pbin: Header of the `.pbin`; None for an MMIDIDX pair.

    Returns:
        The source, or None if the dataset cannot be compared; and a check with the reasons, such as changed inputs.

    Raises:
        InputError: If there is no manifest, or the dataset was not made from text.
        TokenizerError: If the tokenizer is missing or differs from the recorded one.
    """
    if recorded.content is None and recorded.is_there:
        note = "the manifest is damaged, so the dataset could not be compared with its source"
        return None, Check(notes=(note,))
    source = open_recorded_source(recorded.prefix, recorded.manifest, config, pbin=pbin)
    return (None if source.findings else source), Check(findings=source.findings)


def run_and_compare(
    checks: Sequence[Check],
    source: RecordedSource | None,
    *,
    provenance: Check,
    counts: IndexCounts | None,
    share: float,
    executor: Executor,
    reporter: Reporter,
) -> list[RanCheck]:
    """Run all checks of a dataset, then compare it with its source, if there is one.

    Args:
        checks: The checks, in the order of the report.
        source: The result of `open_for_comparison`.
        provenance: The one of `checks` that must succeed before documents are found through the provenance.
        counts: Counts of the index; None if it is damaged.
        share: Share of the documents to compare, in (0, 1].
        executor: Runs the calls.
        reporter: Shows progress.
    """
    ran = run_checks(checks, executor=executor, reporter=reporter)
    if source is None:
        return ran
    if not any(each.check is provenance and each.is_sound for each in ran):
        source = source.without_provenance()
    return [*ran, compare_with_source(source, counts, share=share, executor=executor, reporter=reporter)]


def compare_with_source(
    source: RecordedSource, counts: IndexCounts | None, *, share: float, executor: Executor, reporter: Reporter
) -> RanCheck:
    """Tokenize again and find the first document that differs, if the dataset's index is intact.

    Args:
        source: The result of `open_for_comparison`.
        counts: Counts of the index; None if it is damaged.
        share: Share of the documents to compare, in (0, 1], chosen by a hash of their numbers.
        executor: Runs the calls.
        reporter: Shows progress.
    """
    if counts is None:
        note = "the index is damaged, so the dataset could not be compared with its source"
        return RanCheck(check=Check(notes=(note,)), verdict=Verdict())
    settings, num_documents = source.settings, counts.num_documents
    function: Callable[..., SourceResult] = compare_range
    pieces: Iterable[DocumentSlice | SourceRange]
    missing: list[str] = []
    if settings.provenance is not None and settings.has_offsets:
        function, slices = compare_slice, plan_slices(num_documents, share)
        pieces, bounds = slices, [(piece.begin, piece.end) for piece in slices]
    else:
        ranges, wanted = number_ranges(settings, executor=executor, reporter=reporter)
        if wanted != num_documents:
            missing.append(
                f"{settings.dataset}: expected the {wanted} documents of the inputs, got {num_documents}; "
                f"run the job again with --fresh"
            )
        pieces = chosen = choose_ranges(ranges, share)
        bounds = [(piece.first_document, piece.first_document + (piece.num_documents or 0)) for piece in chosen]

    def judge(results: Iterable[SourceResult]) -> Verdict:
        """Report the first document that differs and the number of other pieces that differ."""
        compared, differences = 0, []
        for result in results:
            compared += result.documents
            if result.difference is not None:
                differences.append(result.difference)
        first = [min(differences)[1]] if differences else []
        if len(differences) > 1:
            first[0] += f" (and {len(differences) - 1} other pieces differ as well)"
        checked = (
            f"against the source: {compared:,} of {num_documents:,} documents tokenized again"
            f" with {settings.engine.describe()}"
        )
        findings = (*first, *missing)
        return Verdict(failed=(checked,), findings=findings) if findings else Verdict(checked=(checked,))

    steps = (
        Step(call=Call(name=f"compare[{n}]", place=f"piece {n}", function=function, arguments=(piece,)), size=1)
        for n, piece in enumerate(_with_runs(settings, pieces, bounds))
    )
    check = Check(steps=steps, size=len(bounds), shared=settings, judge=judge)
    [ran] = run_checks([check], executor=executor, reporter=reporter, stage="compare", unit="pieces")
    return ran


def _with_runs(
    settings: SourceSettings, pieces: Iterable[DocumentSlice | SourceRange], bounds: Sequence[tuple[int, int]]
) -> Iterator[DocumentSlice | SourceRange]:
    """Add the index entries of pieces of a `.pbin`; workers read those of an MMIDIDX pair themselves."""
    if settings.pbin is None:
        yield from pieces
        return
    for piece, run in zip(pieces, read_runs(settings.dataset, settings.pbin, bounds), strict=True):
        yield replace(piece, run=run)


def number_ranges(settings: SourceSettings, *, executor: Executor, reporter: Reporter) -> tuple[list[SourceRange], int]:
    """Count the documents of all ranges; return the ranges with their first documents and lines, and the total."""
    ranges = plan_ranges(settings)
    shared = executor.share(settings)
    reporter.stage("count", total=len(ranges), unit="pieces")
    calls = (
        Call(name=f"count[{number}]", place=f"piece {number}", function=count_records, arguments=(piece, shared))
        for number, piece in enumerate(ranges)
    )
    numbered = []
    document, line, before = 0, 1, 0
    counts = run_in_order(executor, calls, on_idle=reporter.tick)
    for piece, (num_lines, num_documents) in zip(ranges, counts, strict=True):
        reporter.advance(1)
        line = line if piece.input == before else 1
        numbered.append(replace(piece, first_document=document, num_documents=num_documents, first_line=line))
        document, line, before = document + num_documents, line + num_lines, piece.input
    return numbered, document
