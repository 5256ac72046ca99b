"""Trace training samples to documents, lines and text, and documents and lines to samples and steps."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from dsindex.datasets.blended import BlendedDataset
from dsindex.datasets.gpt import GPTDataset, expect_scattered_reads
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import Packs, read_layout
from dsindex.datasets.opening import TEXT_SUFFIX, open_dataset
from dsindex.datasets.origins import DocumentOrigin, Origins, PartDocument, find_parts
from dsindex.datasets.samples import Batches, trace_samples
from dsindex.errors import FormatError, InputError, UsageError
from dsindex.json_text import show_value
from dsindex.tools.kinds import PACKING, tell_kind
from dsindex.tools.origin import Origin, find_origin
from dsindex.tools.phases import count_read_tokens
from dsindex.tools.results import (
    ConsumedTokens,
    ShownDataset,
    ShownOccurrence,
    ShownPart,
    ShownSample,
    TracedDocument,
    TracedDocuments,
    TracedSamples,
)
from dsindex.tools.token_text import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dsindex.datasets.origins import PartOfDataset
    from dsindex.datasets.sample_parts import Occurrence
    from dsindex.datasets.samples import SampleTrace
    from dsindex.options.datasets import TraceConfig

Samples = GPTDataset | BlendedDataset | Packs
MOST_SAMPLES = 100_000
"""Samples that are traced at once, each of which is held in memory."""


def run_trace(config: TraceConfig) -> TracedSamples | TracedDocuments | ConsumedTokens:
    """Trace what the options ask for.

    Raises:
        UsageError: If sizes of batches contradict each other, or a document or line is spelled wrong.
        InputError: If there is nothing of the kind.
        FormatError: If the cache, a manifest or provenance is damaged.
    """
    batches = _batches(config)
    document = None if config.document is None else _parse_place(config.document, "--document", "[PREFIX:]N")
    line = None if config.line is None else _parse_place(config.line, "--line", "FILE:LINE")
    samples = open_samples(config.cache, split=config.split, prefixes=config.prefix)
    if isinstance(samples, Packs) and (config.consumed is not None or batches is not None):
        msg = f"{config.cache}: packs have no steps, as trainers shuffle them; give --sample, --document or --line"
        raise InputError(msg)
    if config.consumed is not None and not isinstance(samples, Packs):
        return _trace_consumed(samples, config.consumed)
    if document is not None:
        return show_document(samples, document[1], prefix=document[0] or None, batches=batches)
    if line is not None:
        return _trace_line(samples, *line, batches=batches)
    numbers: Sequence[int] = config.sample or ()
    if config.step is not None and batches is not None:
        numbers = _samples_of_steps(config, batches, len(samples))
    return show_samples(
        samples, numbers, tokenizer_model=config.tokenizer_model, text_tokens=config.text_tokens, batches=batches
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


def _samples_of_steps(config: TraceConfig, batches: Batches, num_samples: int) -> list[int]:
    first, last = config.step or (1, 0)
    if (last - first + 1) * batches.global_batch_size > MOST_SAMPLES:
        most = MOST_SAMPLES // batches.global_batch_size
        raise UsageError(f"--step: expected at most {most:,} steps of this size, got {last - first + 1:,}")
    rank = config.data_parallel_rank
    try:
        steps = [batches.samples(step, num_samples, rank=rank) for step in range(first, last + 1)]
    except ValueError as error:
        raise InputError(f"{config.cache}: {error}") from error
    return [number for step in steps for number in step]


def _parse_place(given: str, flag: str, form: str) -> tuple[str, int]:
    """Return what is before the last colon, and the number after it."""
    name, _, number = given.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,18}", number) or (flag == "--line" and (not name or int(number) < 1)):
        raise UsageError(f"{flag}: expected {form}, got {show_value(given)}")
    return name, int(number)


def open_samples(path: str, *, split: str | None, prefixes: Sequence[str] | None) -> Samples:
    """Open an index cache without reading all of it, or the packs of instruction data.

    Raises:
        InputError: If the path is neither, or the split has none.
        FormatError: If they or their data are damaged.
    """
    subject = tell_kind(path)
    match = PACKING.fullmatch(subject.path)
    if subject.kind == "packs" and match is not None:
        if split is not None:
            raise InputError(f"{path}: expected no --split, as these packs are of one; leave it out")
        dataset = IndexedDataset(f"{match[1]}{TEXT_SUFFIX}" if prefixes is None else prefixes[0], check=False)
        length, multiple = int(match[2]), int(match[3] or 1)
        layout = read_layout(subject.path, dataset.sequence_lengths, sequence_length=length, pad_to_multiple=multiple)
        return Packs(dataset, layout)
    found = None
    if subject.kind == "index cache":
        found = open_dataset(path, split=split, prefix=prefixes, check=False)
    if not isinstance(found, Samples):
        raise InputError(
            f"{path}: expected the folder of an index cache, one of its descriptions, or packs of `dsindex instruct`, "
            f"got {subject.kind}, which has no samples; `dsindex index` builds a cache"
        )
    return found


class _Texts:
    """The origins of datasets, each read once; their notes are those of the result."""

    def __init__(self, tokenizer_model: str | None) -> None:
        self._tokenizer_model = tokenizer_model
        self._origins: dict[str, Origin] = {}

    def of(self, prefix: str) -> Origin:
        if prefix not in self._origins:
            self._origins[prefix] = find_origin(prefix, self._tokenizer_model)
        return self._origins[prefix]

    @property
    def notes(self) -> list[str]:
        return [note for origin in self._origins.values() for note in (*origin.findings, *origin.notes)]

    @property
    def text_notes(self) -> list[str]:
        return [origin.text_note for origin in self._origins.values() if origin.text_note is not None]


def show_samples(
    samples: Samples,
    numbers: Sequence[int],
    *,
    tokenizer_model: str | None = None,
    text_tokens: int,
    batches: Batches | None = None,
) -> TracedSamples:
    """Trace samples to documents, lines and text.

    Args:
        samples: The index cache, or packs.
        numbers: Numbers of samples.
        tokenizer_model: Decodes the tokens; None for the tokenizer of each dataset.
        text_tokens: Tokens of each part that are shown.
        batches: How samples are dealt out to steps; None if this is not known.

    Raises:
        InputError: If there is no such sample.
        FormatError: If the cache, a manifest or provenance is damaged.
    """
    for number in numbers:
        if not 0 <= number < len(samples):
            raise InputError(f"expected a sample from 0 to {len(samples) - 1}, got {number}")
    for own in samples.datasets if isinstance(samples, BlendedDataset) else [samples]:
        tokens, lengths, *_ = own.dataset.token_columns()
        mapped = [tokens] if isinstance(tokens, np.ndarray) else []
        index = [] if isinstance(own, Packs) else [own.document_index, own.sample_index]
        expect_scattered_reads(*mapped, lengths, *index)
    traces = trace_samples([samples.locate(number) for number in numbers])
    texts, data = _Texts(tokenizer_model), {each.prefix: each for each in _datasets(samples)}
    shown = [
        ShownSample(
            sample=trace.sample,
            **_step(trace.sample, batches),
            parts=tuple(_show_parts(trace, data, texts, text_tokens)),
        )
        for trace in traces
    ]
    notes = dict.fromkeys([*(note for trace in traces for note in trace.notes), *texts.notes, *texts.text_notes])
    return TracedSamples(
        num_samples=len(samples), samples=tuple(shown), datasets=tuple(_summarize(shown)), notes=tuple(notes)
    )


def _show_parts(
    trace: SampleTrace, data: dict[str, IndexedDataset], texts: _Texts, text_tokens: int
) -> Iterable[ShownPart]:
    for part in trace.parts:
        known = texts.of(part.prefix)
        shown = min(part.num_tokens, text_tokens)
        tokens = tuple(data[part.prefix].get(part.sequence, part.sequence_offset, shown).tolist())
        origin = DocumentOrigin(source=part.source, part=part.part)
        known.check_input(origin)
        yield ShownPart(
            prefix=part.prefix,
            dataset=part.dataset,
            document=part.document,
            begin=part.offset,
            end=part.offset + part.num_tokens,
            origin=origin,
            text=None if known.tokenizer is None or not tokens else text_of(known.tokenizer, tokens),
            tokens=tokens,
        )


def _summarize(shown: Iterable[ShownSample]) -> Iterable[ShownDataset]:
    tokens, owners, documents = Counter[str](), Counter[str](), dict[str, set[int]]()
    for sample in shown:
        owners.update({part.prefix for part in sample.parts})
        for part in sample.parts:
            tokens[part.prefix] += part.end - part.begin
            documents.setdefault(part.prefix, set()).add(part.document)
    for prefix, number in tokens.most_common():
        num_documents = len(documents[prefix])
        yield ShownDataset(prefix=prefix, num_samples=owners[prefix], num_tokens=number, num_documents=num_documents)


def _trace_consumed(samples: GPTDataset | BlendedDataset, consumed: int) -> ConsumedTokens:
    """Count how often the tokens of each dataset were read by the first samples of a run."""
    if not 0 <= consumed <= len(samples):
        raise InputError(f"expected a number of consumed samples from 0 to {len(samples)}, got {consumed}")
    datasets = tuple(count_read_tokens(samples, consumed))
    return ConsumedTokens(num_samples=len(samples), consumed=consumed, datasets=datasets)


def show_document(
    samples: Samples, document: int, *, prefix: str | None, batches: Batches | None = None
) -> TracedDocuments:
    """Trace a document, of the dataset with a prefix or of the only one, to the samples that have it."""
    datasets = _datasets(samples)
    known = list(dict.fromkeys(data.prefix for data in datasets))
    if prefix is None and len(known) > 1:
        msg = f"expected PREFIX:NUMBER, since the blend has {len(known)} datasets, got {document}"
        raise InputError(f"{msg}; they are {_few(known)}")
    chosen = known[0] if prefix is None else prefix
    own = [number for number, data in enumerate(datasets) if os.path.abspath(chosen) == os.path.abspath(data.prefix)]
    if not own:
        raise InputError(f"{chosen}: expected a dataset of the samples, which have {_few(known)}")
    data = datasets[own[0]]
    if not 0 <= document < data.num_documents:
        raise InputError(f"{chosen}: expected a document from 0 to {data.num_documents - 1}, got {document}")
    texts = _Texts(None)
    [origin] = texts.of(data.prefix).lines_of([document], num_documents=data.num_documents)
    found = tuple(_trace_back(samples, number, document, origin, batches) for number in own)
    return TracedDocuments(num_samples=len(samples), documents=found, notes=tuple(texts.notes))


def _trace_line(samples: Samples, path: str, line: int, *, batches: Batches | None) -> TracedDocuments:
    """Trace a line of an input to the samples that have its document.

    Raises:
        InputError: If no dataset was made from the file, or the line became no document.
    """
    found, notes, inputs, has_file, texts = [], dict[str, None](), dict[str, None](), False, _Texts(None)
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
                texts.of(data.prefix).check_input(origin)
                found.append(_trace_back(samples, number, part.first_document + document, origin, batches))
    if not inputs and notes:
        raise InputError(next(iter(notes)))
    if not has_file:
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
        except (InputError, FormatError) as error:
            if part.is_whole and isinstance(error, FormatError):
                raise
            notes[str(error)] = None
    return opened


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
        origin=origin,
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
    own = samples.datasets if isinstance(samples, BlendedDataset) else [samples]
    return [each.dataset for each in own]


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{', '.join(names[:4])}{more}"
