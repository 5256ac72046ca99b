"""Trace training samples to documents, lines and text, and documents and lines to samples and steps."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dsindex.amounts import count
from dsindex.datasets.blended import BlendedDataset
from dsindex.datasets.exports import export_folder_of
from dsindex.datasets.gpt import GPTDataset, expect_scattered_reads
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import Packs, packing_prefix, read_layout
from dsindex.datasets.opening import open_dataset
from dsindex.datasets.origins import DocumentOrigin, Origins, PartDocument, find_document_origins, find_parts
from dsindex.datasets.samples import Batches, trace_samples
from dsindex.engine.export_folder import read_export_manifest
from dsindex.engine.manifest import read_manifest
from dsindex.engine.report import Report
from dsindex.errors import FormatError, InputError, UsageError
from dsindex.instruction.blocks import BlockLayout
from dsindex.option_problems import show_value
from dsindex.options.mix_amounts import show_percent
from dsindex.store.reading import is_stored
from dsindex.tools.phases import count_read_tokens
from dsindex.tools.verify_source import TracedTexts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dsindex.datasets.origins import PartOfDataset, SourceLine
    from dsindex.datasets.samples import Occurrence, SampleTrace, TracedPart
    from dsindex.engine.export_folder import ExportContent
    from dsindex.options.datasets import TraceConfig
    from dsindex.tools.phases import ReadTokens

Samples = GPTDataset | BlendedDataset | Packs
CHARACTERS_PER_TOKEN = 4
"""Roughly; how much of a document is shown where its tokens have no text."""
MOST_SAMPLES = 100_000
"""Samples that are traced at once, each of which is held in memory."""
SHOWN_VALUES = 5
"""Values of a field in the summary of several samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPart:
    """A run of a sample's tokens, as the report shows it."""

    prefix: str
    dataset: int
    """Number of the dataset in the blend."""
    document: int
    begin: int
    """First token, within the document."""
    end: int
    """One past the last token."""
    source: SourceLine | None
    part: PartDocument | None
    """The document in the dataset that was merged into this one."""
    text: str | None
    """The text of the first tokens; None if there is no tokenizer."""
    tokens: tuple[int, ...]
    """The first tokens, of which `text` is the text."""
    document_text: str | None
    """The beginning of the document in its input; None if `text` is there, or the input moved or changed."""
    fields: dict[str, Any] | None
    """Fields of the record that were asked for; None if the record cannot be read."""

    def lines(self) -> list[str]:
        """Return the part as text."""
        line = f"  {self.prefix}, document {self.document}, tokens {self.begin}:{self.end}{_describe_origin(self)}"
        shown = [line, *(f"    {name} {_show_field(value)}" for name, value in (self.fields or {}).items())]
        more = "…" if self.end - self.begin > len(self.tokens) else ""
        if self.text is not None:
            shown.append(f"    {json.dumps(self.text, ensure_ascii=False)}{more}")
        elif self.tokens:
            shown.append(f"    tokens {' '.join(map(str, self.tokens))}{more}")
            if self.document_text is not None:
                shown.append(f"    of the document {json.dumps(self.document_text, ensure_ascii=False)}")
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSample:
    """A sample in the report."""

    sample: int
    step: int | None
    rank: int | None
    parts: tuple[ShownPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDataset:
    """What samples have of a dataset."""

    prefix: str
    num_samples: int
    num_tokens: int
    num_documents: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TraceResult(Report):
    """What was traced: TracedSamples, TracedDocuments or ConsumedTokens."""

    num_samples: int
    """Samples of the cache, or packs."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TracedSamples(TraceResult):
    """Where samples come from."""

    samples: tuple[ShownSample, ...]
    datasets: tuple[ShownDataset, ...]
    """What the samples have of each dataset, the most tokens first."""
    field_tokens: dict[str, dict[str, int]]
    """Field → its values, as text → tokens of documents that have it, the most first."""
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the samples as text, after a summary if there are several."""
        lines = self._summary() if len(self.samples) > 1 else []
        for sample in self.samples:
            tokens = sum(part.end - part.begin for part in sample.parts)
            place = _place(sample.step, sample.rank)
            documents = count(len({(part.dataset, part.document) for part in sample.parts}), "document")
            lines.append(
                f"sample {sample.sample} of {self.num_samples:,}{place}: {count(tokens, 'token')}, {documents}"
            )
            lines += [line for part in sample.parts for line in part.lines()]
        return [*lines, *(f"note: {note}" for note in self.notes)]

    def _summary(self) -> list[str]:
        total = max(1, sum(each.num_tokens for each in self.datasets))
        steps = [each.step for each in self.samples if each.step is not None]
        span = sorted({min(steps), max(steps)}) if steps else []
        place = f"{'steps' if len(span) > 1 else 'step'} {' to '.join(map(str, span))}: " if span else ""
        lines = [f"{place}{count(len(self.samples), 'sample')}, {count(total, 'token')}"]
        for each in self.datasets:
            own = f"{show_percent(each.num_tokens / total)}, {count(each.num_tokens, 'token')}"
            samples, documents = count(each.num_samples, "sample"), count(each.num_documents, "document")
            lines.append(f"  {each.prefix}: {own}, {samples}, {documents}")
        for name, tokens in self.field_tokens.items():
            top = [f"{value} {show_percent(number / total)}" for value, number in list(tokens.items())[:SHOWN_VALUES]]
            top += [f"and {len(tokens) - SHOWN_VALUES:,} more values"] if len(tokens) > SHOWN_VALUES else []
            lines.append(f"  {name}: {', '.join(top) if tokens.keys() - {'null'} else 'no record has it'}")
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownOccurrence:
    """Tokens of a document in a sample."""

    sample: int
    step: int | None
    rank: int | None
    epoch: int
    begin: int
    """First token, within the document."""
    end: int
    """One past the last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedDocument:
    """A document and the samples that have it."""

    prefix: str
    dataset: int
    document: int
    num_tokens: int
    source: SourceLine | None
    part: PartDocument | None
    """The document in the dataset that was merged into this one."""
    occurrences: tuple[ShownOccurrence, ...]

    def lines(self, num_samples: int) -> list[str]:
        """Return the document as text."""
        size = count(self.num_tokens, "token")
        found = [
            f"  epoch {each.epoch}: sample {each.sample}{_place(each.step, each.rank)}, tokens {each.begin}:{each.end}"
            for each in self.occurrences
        ]
        return [
            f"{self.prefix}, document {self.document}: {size}{_describe_origin(self)}",
            *(found or [f"  in none of the {count(num_samples, 'sample')}"]),
        ]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConsumedTokens(TraceResult):
    """How often the tokens of each dataset were read."""

    consumed: int
    datasets: tuple[ReadTokens, ...]

    def lines(self) -> list[str]:
        """Return what was read as text."""
        lines = [f"after {self.consumed:,} of {count(self.num_samples, 'sample')}:"]
        for each in self.datasets:
            lines.append(f"{each.prefix}: {count(each.num_samples, 'sample')}")
            total = max(1, sum(each.tokens_by_times.values()))
            lines += [
                f"  read {times} time{'s' * (times != 1)}: {count(tokens, 'token')}, {show_percent(tokens / total)}"
                for times, tokens in each.tokens_by_times.items()
            ]
        return lines


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TracedDocuments(TraceResult):
    """Which samples have documents."""

    documents: tuple[TracedDocument, ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the documents as text."""
        lines = [line for document in self.documents for line in document.lines(self.num_samples)]
        return [*lines, *(f"note: {note}" for note in self.notes)]


def run_trace(config: TraceConfig) -> TracedSamples | TracedDocuments | ConsumedTokens:
    """Trace what the options ask for.

    Raises:
        UsageError: If sizes of batches contradict each other, or a document or line is spelled wrong.
        InputError: If there is nothing of the kind.
        FormatError: If the cache, a manifest or provenance is damaged.
        TokenizerError: If another tokenizer is given than a dataset was made with.
    """
    batches = _batches(config)
    texts = TracedTexts(config.tokenizer_model)
    document = None if config.document is None else _parse_place(config.document, "--document", "[PREFIX:]N")
    line = None if config.line is None else _parse_place(config.line, "--line", "FILE:LINE")
    cache = config.cache
    samples = open_samples(cache, split=config.split, prefixes=config.prefix)
    if isinstance(samples, Packs) and (config.consumed is not None or batches is not None):
        raise InputError(f"{cache}: packs have no steps, as trainers shuffle them; give --sample, --document or --line")
    if config.consumed is not None and not isinstance(samples, Packs):
        return trace_consumed(samples, config.consumed)
    if document is not None:
        prefix, number = document
        return trace_document(samples, number, prefix=prefix or None, batches=batches, texts=texts)
    if line is not None:
        return trace_line(samples, line[0], line[1], batches=batches, texts=texts)
    numbers: Sequence[int] = config.sample or ()
    if config.step is not None and batches is not None:
        first, last = config.step
        if (last - first + 1) * batches.global_batch_size > MOST_SAMPLES:
            most = MOST_SAMPLES // batches.global_batch_size
            raise UsageError(f"--step: expected at most {most:,} steps of this size, got {last - first + 1:,}")
        try:
            steps = [
                batches.samples(step, len(samples), rank=config.data_parallel_rank) for step in range(first, last + 1)
            ]
        except ValueError as error:
            raise InputError(f"{cache}: {error}") from error
        numbers = [number for step in steps for number in step]
    return trace_forward(
        samples, numbers, texts=texts, batches=batches, shown_tokens=config.text_tokens, fields=config.fields
    )


def _batches(config: TraceConfig) -> Batches | None:
    """Return how samples are dealt out to steps, if that is given.

    Raises:
        UsageError: If the sizes contradict each other.
    """
    if config.global_batch_size is None:
        return None
    try:
        return Batches(
            global_batch_size=config.global_batch_size,
            micro_batch_size=config.micro_batch_size,
            data_parallel_size=config.data_parallel_size,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def _parse_place(given: str, flag: str, form: str) -> tuple[str, int]:
    """Return what is before the last colon, and the number after it."""
    name, _, number = given.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,18}", number) or (flag == "--line" and (not name or int(number) < 1)):
        raise UsageError(f"{flag}: expected {form}, got {show_value(given)}")
    return name, int(number)


def _describe_origin(of: ShownPart | TracedDocument) -> str:
    part = "" if of.part is None else f", document {of.part.document} of {of.part.prefix}"
    return part if of.source is None else f"{part}, from {of.source.path}, line {of.source.line}"


def _place(step: int | None, rank: int | None) -> str:
    return ("" if step is None else f", step {step}") + ("" if rank is None else f", rank {rank}")


def _show_field(value: Any) -> str:  # noqa: ANN401 - any JSON value
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def open_samples(path: str, *, split: str | None, prefixes: Sequence[str] | None) -> Samples:
    """Open an index cache without reading all of it, or the packs of instruction data.

    Raises:
        InputError: If the path is neither, or the split has none.
        FormatError: If they or their data are damaged.
    """
    packs = _open_packs(path, split, prefixes)
    if packs is not None:
        return packs
    found = open_dataset(path, split=split, prefix=prefixes, check=False)
    if not isinstance(found, Samples):
        raise InputError(
            f"{path}: expected the folder of an index cache, one of its descriptions, or packs of `dsindex instruct`, "
            "got a dataset without samples; `dsindex index` builds a cache"
        )
    return found


_PACKING = re.compile(r"(.+)_packing_([0-9]{1,9})(?:_pad([0-9]{1,9}))?(?:\.idx|\.bin|\.manifest\.json)?")
_PACKS_FOLDER = re.compile(r"(.+)_bridge_([0-9]{1,9})(?:_pad([0-9]{1,9}))?")


def _open_packs(path: str, split: str | None, prefixes: Sequence[str] | None) -> Packs | None:
    """Open `P_packing_L`, or an export with packs; None for anything else."""
    if prefixes is not None and len(prefixes) != 1:
        return None
    match = _PACKING.fullmatch(path)
    if match is not None and is_stored(f"{packing_prefix(match[1], int(match[2]), int(match[3] or 1))}.idx"):
        if split is not None:
            raise InputError(f"{path}: expected no --split, as these packs are of one; leave it out")
        return _read_packs(match[1], f"{match[1]}_text_document" if prefixes is None else prefixes[0], match)
    folder = export_folder_of(path)
    manifest = None if folder is None else read_export_manifest(folder)
    return None if folder is None or manifest is None else _open_export(folder, manifest.content, split, prefixes)


def _open_export(folder: str, content: ExportContent, split: str | None, prefixes: Sequence[str] | None) -> Packs:
    if content.sequence_length is None:
        raise InputError(
            f"{folder}: expected packs, got the export {content.kind}, whose rows are conversations in order"
        )
    match = _PACKS_FOLDER.fullmatch(os.path.abspath(folder))
    name = "validation" if split == "valid" else split or "train"
    if name not in content.splits:
        known = ", ".join(content.splits)
        raise InputError(f"{folder}: expected a split among {known}, got {name}; choose one by --split")
    if match is None:
        raise InputError(f"{folder}: expected the name that `dsindex instruct` gave the folder; rename it")
    own = f"{'valid' if name == 'validation' else name}_text_document"
    source = own if own in content.sources else "text_document"
    prefix = f"{match[1]}_{source}" if prefixes is None else prefixes[0]
    found, made_of = read_manifest(prefix), content.sources.get(source, {})
    digests = {} if found is None else {suffix: file.digest for suffix, file in found.content.digests.items()}
    if any(suffix not in made_of or digests.get(suffix) != made_of[suffix].xxh3_128 for suffix in ("bin", "idx")):
        got = "no manifest" if found is None else "another one"
        raise InputError(f"{prefix}: expected the dataset that {folder} was made of, got {got}; name it by --prefix")
    rows = [os.path.join(folder, file) for file in sorted(content.digests) if file.startswith(f"{name}-")]
    return _read_rows(rows, IndexedDataset(prefix, check=False), content.sequence_length)


def _read_packs(base: str, prefix: str, match: re.Match[str]) -> Packs:
    dataset, length, multiple = IndexedDataset(prefix, check=False), int(match[2]), int(match[3] or 1)
    path = packing_prefix(base, length, multiple)
    return Packs(dataset, read_layout(path, dataset.sequence_lengths, sequence_length=length, pad_to_multiple=multiple))


def _read_rows(files: Sequence[str], dataset: IndexedDataset, sequence_length: int) -> Packs:
    """Return the packs of the export `bridge` by the numbers of sequences in its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers, counts = [np.empty(0, np.int32)], [np.zeros(1, np.int64)]
    for path in files:
        try:
            column = pq.read_table(path, columns=["sequences"])["sequences"].combine_chunks()
            numbers.append(column.flatten().to_numpy().astype(np.int32))
            counts.append(np.diff(column.offsets.to_numpy()).astype(np.int64))
        except (OSError, pa.ArrowException, ValueError, KeyError, AttributeError) as error:
            raise FormatError(f"{path}: cannot be read as packs ({error}); export again") from error
    conversations = np.concatenate(numbers)
    if len(conversations) and not 0 <= conversations.min() <= conversations.max() < len(dataset):
        raise FormatError(f"{files[0]}: expected sequences of {dataset.prefix}, got others; export again")
    return Packs(
        dataset,
        BlockLayout(
            sequence_length=sequence_length,
            conversations=conversations,
            block_starts=np.cumsum(np.concatenate(counts)),
            num_tokens=int(dataset.sequence_lengths[conversations].sum(dtype=np.int64)),
        ),
    )


def trace_forward(
    samples: Samples,
    numbers: Iterable[int],
    *,
    texts: TracedTexts,
    batches: Batches | None = None,
    shown_tokens: int,
    fields: Sequence[str] = (),
) -> TracedSamples:
    """Trace samples to documents, lines and text.

    Args:
        samples: The index cache, or packs.
        numbers: Numbers of samples.
        texts: Decodes tokens and reads records.
        batches: How samples are dealt out to steps; None if this is not known.
        shown_tokens: Tokens of each part that are shown.
        fields: Fields of the records that are shown: names, paths or jq, as the keys of a build.

    Raises:
        InputError: If there is no such sample.
        FormatError: If the cache, a manifest or provenance is damaged.
        TokenizerError: If another tokenizer is given than a dataset was made with.
    """
    wanted = list(numbers)
    for number in wanted:
        if not 0 <= number < len(samples):
            raise InputError(f"expected a sample from 0 to {len(samples) - 1}, got {number}")
    for own in samples.datasets if isinstance(samples, BlendedDataset) else [samples]:
        tokens, lengths, *_ = own.dataset.token_columns()
        mapped = [tokens] if isinstance(tokens, np.ndarray) else []
        index = [] if isinstance(own, Packs) else [own.document_index, own.sample_index]
        expect_scattered_reads(*mapped, lengths, *index)
    located = {number: samples.locate(number) for number in wanted}
    sources = {each.data.prefix: cast("IndexedDataset", each.data) for each in located.values()}
    found = trace_samples(located[number] for number in wanted)
    lines = [(_maker(part), part.source) for each in found for part in each.parts if part.source is not None]
    values = texts.read_fields(lines, fields) if fields else {}
    shown, notes = [], dict[str, None]()
    for trace in found:
        notes |= dict.fromkeys(trace.notes)
        shown.append(_show_sample(sources, trace, texts, batches, shown_tokens, values))
    return _summarize(len(samples), shown, (*notes, *texts.notes), fields)


def _summarize(
    num_samples: int, shown: Sequence[ShownSample], notes: tuple[str, ...], fields: Sequence[str]
) -> TracedSamples:
    tokens, owners, documents = Counter[str](), Counter[str](), Counter[str]()
    known = {name: Counter[str]() for name in fields}
    for sample in shown:
        owners.update({part.prefix for part in sample.parts})
        for part in sample.parts:
            tokens[part.prefix] += part.end - part.begin
            for name, value in (part.fields or {}).items():
                known[name][_show_field(value)] += part.end - part.begin
    documents.update(prefix for prefix, _ in {(part.prefix, part.document) for each in shown for part in each.parts})
    return TracedSamples(
        num_samples=num_samples,
        samples=tuple(shown),
        datasets=tuple(
            ShownDataset(prefix=prefix, num_samples=owners[prefix], num_tokens=number, num_documents=documents[prefix])
            for prefix, number in tokens.most_common()
        ),
        field_tokens={name: dict(counter.most_common()) for name, counter in known.items()},
        notes=notes,
    )


def _maker(part: TracedPart) -> str:
    """Return the dataset whose build read the record of a part."""
    return part.prefix if part.part is None else part.part.prefix


def _show_sample(
    sources: Mapping[str, IndexedDataset],
    trace: SampleTrace,
    texts: TracedTexts,
    batches: Batches | None,
    shown_tokens: int,
    values: Mapping[tuple[str, SourceLine], dict[str, Any]],
) -> ShownSample:
    parts = []
    for part in trace.parts:
        tokens = (
            sources[part.prefix].get(part.sequence, part.sequence_offset, min(part.num_tokens, shown_tokens)).tolist()
        )
        text = texts.decode(part.prefix, tokens)
        document_text = None
        if part.source is not None:
            made = _maker(part)
            texts.check_input(made, part.source.input)
            if text is None and shown_tokens:
                document_text = _cut(texts.read(made, part.source), shown_tokens * CHARACTERS_PER_TOKEN)
        parts.append(
            ShownPart(
                prefix=part.prefix,
                dataset=part.dataset,
                document=part.document,
                begin=part.offset,
                end=part.offset + part.num_tokens,
                source=part.source,
                part=part.part,
                text=text,
                tokens=tuple(tokens),
                document_text=document_text,
                fields=None if part.source is None else values.get((_maker(part), part.source)),
            )
        )
    return ShownSample(sample=trace.sample, **_step(trace.sample, batches), parts=tuple(parts))


def trace_consumed(samples: GPTDataset | BlendedDataset, consumed: int) -> ConsumedTokens:
    """Count how often the tokens of each dataset were read by the first samples of a run.

    Raises:
        InputError: If there are not so many samples.
    """
    if not 0 <= consumed <= len(samples):
        raise InputError(f"expected a number of consumed samples from 0 to {len(samples)}, got {consumed}")
    datasets = tuple(count_read_tokens(samples, consumed))
    return ConsumedTokens(num_samples=len(samples), consumed=consumed, datasets=datasets)


def trace_document(
    samples: Samples, document: int, *, prefix: str | None, batches: Batches | None, texts: TracedTexts
) -> TracedDocuments:
    """Trace a document to the samples that have it.

    Args:
        samples: The index cache.
        document: Number of the document in its dataset.
        prefix: Its dataset; may be None if there is only one.
        batches: How samples are dealt out to steps; None if this is not known.
        texts: Checks the inputs.

    Raises:
        InputError: If there is no such dataset or document.
        FormatError: If the cache, a manifest or provenance is damaged.
    """
    datasets = _datasets(samples)
    known = list(dict.fromkeys(data.prefix for data in datasets))
    if prefix is None and len(known) > 1:
        msg = (
            f"expected PREFIX:NUMBER, since the blend has {len(known)} datasets, got {document}; they are {_few(known)}"
        )
        raise InputError(msg)
    chosen = known[0] if prefix is None else prefix
    own = [number for number, data in enumerate(datasets) if os.path.abspath(chosen) == os.path.abspath(data.prefix)]
    if not own:
        raise InputError(f"{chosen}: expected a dataset of the samples, which have {_few(known)}")
    count = datasets[own[0]].num_documents
    if not 0 <= document < count:
        raise InputError(f"{chosen}: expected a document from 0 to {count - 1}, got {document}")
    data = datasets[own[0]]
    [origin], notes = find_document_origins(data.prefix, count, [document])
    _check_input(texts, data.prefix, origin)
    found = tuple(_trace_back(samples, number, document, origin, batches) for number in own)
    return TracedDocuments(num_samples=len(samples), documents=found, notes=(*notes, *texts.notes))


def trace_line(
    samples: Samples, path: str, line: int, *, batches: Batches | None, texts: TracedTexts
) -> TracedDocuments:
    """Trace a line of an input to the samples that have its document.

    Raises:
        InputError: If no dataset was made from the file, or the line became no document.
        FormatError: If the cache, a manifest or provenance is damaged.
    """
    found, notes, inputs, has_file = [], dict[str, None](), dict[str, None](), False
    opened: dict[str, list[tuple[PartOfDataset, Origins]]] = {}
    for number, data in enumerate(_datasets(samples)):
        if data.prefix not in opened:
            opened[data.prefix] = _open_origins(data, notes)
        for part, origins in opened[data.prefix]:
            inputs.update(dict.fromkeys(origins.inputs))
            if not origins.has_input(path):
                continue
            has_file = True
            documents = origins.find(path, line)
            for document, source in zip(documents, origins.of(documents), strict=True):
                place = None if part.is_whole else PartDocument(prefix=part.prefix, document=document)
                origin = DocumentOrigin(source=source, part=place)
                _check_input(texts, data.prefix, origin)
                found.append(_trace_back(samples, number, part.first_document + document, origin, batches))
    if not has_file:
        if not inputs and notes:
            raise InputError(next(iter(notes)))
        raise InputError(f"{path}: expected an input of the datasets, which are {_few(list(inputs))}")
    if not found:
        raise InputError(
            f"{path}, line {line}: expected a line that became a document, found none; the file ends before it, or the "
            f"line is blank, was left out by --where or --sample, or was quarantined"
        )
    return TracedDocuments(num_samples=len(samples), documents=tuple(found), notes=(*notes, *texts.notes))


def _open_origins(data: IndexedDataset, notes: dict[str, None]) -> list[tuple[PartOfDataset, Origins]]:
    """Open the origins of all parts of a dataset, and note where they are unknown.

    Raises:
        FormatError: If the dataset's own manifest or provenance is damaged or belongs to another dataset.
    """
    opened = []
    for part in find_parts(data.prefix, data.num_documents):
        try:
            opened.append((part, Origins(part.prefix, part.num_documents)))
        except InputError as error:
            notes[str(error)] = None
        except FormatError as error:
            if part.is_whole:
                raise
            notes[str(error)] = None
    return opened


def _check_input(texts: TracedTexts, prefix: str, origin: DocumentOrigin) -> None:
    if origin.source is not None:
        texts.check_input(prefix if origin.part is None else origin.part.prefix, origin.source.input)


def _trace_back(
    samples: Samples, number: int, document: int, origin: DocumentOrigin, batches: Batches | None
) -> TracedDocument:
    data = _datasets(samples)[number]
    if isinstance(samples, BlendedDataset):
        occurrences = samples.find_document(number, document)
    else:
        occurrences = samples.find_document(document)
    sequences = data.document_sequences(document)
    lengths = data.sequence_lengths[sequences.start : sequences.stop].tolist()
    return TracedDocument(
        prefix=data.prefix,
        dataset=number,
        document=document,
        num_tokens=sum(lengths),
        source=origin.source,
        part=origin.part,
        occurrences=tuple(
            _show_occurrence(each, sum(lengths[: each.sequence - sequences.start]), batches) for each in occurrences
        ),
    )


def _show_occurrence(each: Occurrence, before: int, batches: Batches | None) -> ShownOccurrence:
    begin = before + each.offset
    return ShownOccurrence(
        sample=each.sample,
        **_step(each.sample, batches),
        epoch=each.epoch,
        begin=begin,
        end=begin + each.num_tokens,
    )


def _step(sample: int, batches: Batches | None) -> dict[str, int | None]:
    if batches is None:
        return {"step": None, "rank": None}
    return {"step": batches.step_of(sample), "rank": batches.rank_of(sample)}


def _datasets(samples: Samples) -> list[IndexedDataset]:
    """Return the datasets, and of views those that they show."""
    own = samples.datasets if isinstance(samples, BlendedDataset) else [samples]
    return [each.dataset for each in own]


def _cut(text: str | None, size: int) -> str | None:
    return text if text is None or len(text) <= size else f"{text[:size]}…"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{', '.join(names[:4])}{more}"
