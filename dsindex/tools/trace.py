"""`dsindex trace`: the documents, lines and text of training samples and steps, and how often tokens were read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.datasets.blended import BlendedDataset
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import Packs, read_layout
from dsindex.datasets.kinds import PACKING, TEXT_SUFFIX, tell_kind
from dsindex.datasets.opening import open as open_dataset
from dsindex.datasets.samples import Batches, SampleDataset, trace_samples
from dsindex.dtypes import starts_of
from dsindex.errors import FormatError, InputError, UsageError
from dsindex.tools.origin import find_origin
from dsindex.tools.results import ConsumedTokens, ReadTokens, ShownDataset, ShownPart, ShownSample, TracedSamples
from dsindex.tools.token_text import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.datasets.gpt import GPTDataset
    from dsindex.datasets.samples import SampleTrace
    from dsindex.options.datasets import TraceConfig
    from dsindex.tools.origin import Origin

MOST_SAMPLES = 100_000
"""Samples that are traced at once, each of which is held in memory."""


def run_trace(config: TraceConfig) -> TracedSamples | ConsumedTokens:
    """Trace what the options ask for.

    Raises:
        UsageError: If sizes of batches contradict each other.
        InputError: If there is nothing of the kind.
        FormatError: If the cache, a manifest or provenance is damaged.
    """
    batches = _batches(config)
    samples = open_samples(config.cache, split=config.split, prefixes=config.prefix)
    if isinstance(samples, Packs):
        if config.consumed is not None or batches is not None:
            raise InputError(f"{config.cache}: packs have no steps, as trainers shuffle them; give --sample")
    elif config.consumed is not None:
        return _count_consumed(samples, config.consumed)
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


def open_samples(path: str, *, split: str | None, prefixes: Sequence[str] | None) -> SampleDataset[Any]:
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
    found = open_dataset(path, split=split, prefix=prefixes, check=False) if subject.kind == "index cache" else None
    if not isinstance(found, SampleDataset):
        raise InputError(
            f"{path}: expected the folder of an index cache, one of its descriptions, or packs of `dsindex instruct`, "
            f"got {subject.kind}, which has no samples; `dsindex index` builds a cache"
        )
    return found


def show_samples(
    samples: SampleDataset[Any],
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
    located = [samples.locate(number) for number in numbers]
    data = {own.data.prefix: own.data for own in located}
    traces = trace_samples(located)
    parts = [part for trace in traces for part in trace.parts]
    origins = {prefix: find_origin(prefix, tokenizer_model) for prefix in dict.fromkeys(part.prefix for part in parts)}
    for prefix, origin in origins.items():
        origin.check_inputs(part.origin for part in parts if part.prefix == prefix)
    shown = [
        ShownSample(
            sample=trace.sample,
            step=None if batches is None else batches.step_of(trace.sample),
            rank=None if batches is None else batches.rank_of(trace.sample),
            parts=tuple(_show_parts(trace, data, origins, text_tokens)),
        )
        for trace in traces
    ]
    notes = [note for trace in traces for note in trace.notes]
    notes += [note for origin in origins.values() for note in (*origin.findings, *origin.notes)]
    return TracedSamples(
        num_samples=len(samples),
        samples=tuple(shown),
        datasets=tuple(_summarize(shown)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _show_parts(
    trace: SampleTrace, data: dict[str, IndexedDataset], origins: dict[str, Origin], text_tokens: int
) -> Iterator[ShownPart]:
    for part in trace.parts:
        tokenizer = origins[part.prefix].tokenizer
        shown = min(part.num_tokens, text_tokens)
        tokens = tuple(data[part.prefix].get(part.sequence, part.sequence_offset, shown).tolist())
        yield ShownPart(
            prefix=part.prefix,
            dataset=part.dataset,
            document=part.document,
            begin=part.offset,
            end=part.offset + part.num_tokens,
            origin=part.origin,
            text=None if tokenizer is None or not tokens else text_of(tokenizer, tokens),
            tokens=tokens,
        )


def _summarize(shown: Sequence[ShownSample]) -> Iterator[ShownDataset]:
    tokens, owners, documents = Counter[str](), Counter[str](), dict[str, set[int]]()
    for sample in shown:
        owners.update({part.prefix for part in sample.parts})
        for part in sample.parts:
            tokens[part.prefix] += part.end - part.begin
            documents.setdefault(part.prefix, set()).add(part.document)
    for prefix, number in tokens.most_common():
        num_documents = len(documents[prefix])
        yield ShownDataset(prefix=prefix, num_samples=owners[prefix], num_tokens=number, num_documents=num_documents)


def _count_consumed(samples: SampleDataset[Any], consumed: int) -> ConsumedTokens:
    """Count how often the tokens of each dataset were read by the first samples of a run."""
    if not 0 <= consumed <= len(samples):
        raise InputError(f"expected a number of consumed samples from 0 to {len(samples)}, got {consumed}")
    datasets, numbers = np.zeros(consumed, np.int8), np.arange(consumed)
    if isinstance(samples, BlendedDataset):
        datasets, numbers = samples.dataset_index[:consumed], samples.dataset_sample_index[:consumed]
    read = [_count_read(each, numbers[datasets == place]) for place, each in enumerate(samples.datasets)]
    return ConsumedTokens(num_samples=len(samples), consumed=consumed, datasets=tuple(read))


def _count_read(dataset: GPTDataset, numbers: NDArray[np.integer]) -> ReadTokens:
    documents = np.asarray(dataset.document_index, np.int64)
    begin, end = (int(documents.min()), int(documents.max()) + 1) if len(documents) else (0, 0)
    if begin < 0 or end > len(dataset.dataset):
        what = f"expected a document index of its {len(dataset.dataset)} sequences, got {begin} to {end - 1}"
        raise FormatError(f"{dataset.place}: {what}; it was built from other data")
    lengths = np.asarray(dataset.dataset.sequence_lengths[begin:end], np.int32)
    rows = np.asarray(dataset.shuffle_index[numbers], np.int64)
    counted = tokens_by_times(lengths, documents - begin, rows, sequence_length=dataset.sequence_length)
    return ReadTokens(prefix=dataset.dataset.prefix, num_samples=len(rows), tokens_by_times=counted)


def tokens_by_times(
    lengths: NDArray[np.int32], documents: NDArray[np.int64], rows: NDArray[np.int64], *, sequence_length: int
) -> tuple[int, ...]:
    """Count the tokens that were the input of no sample, of one, of two, and so on.

    Args:
        lengths: Tokens of each sequence.
        documents: The document index.
        rows: The rows of the sample index that were read.
        sequence_length: L.

    >>> tokens_by_times(np.array([6, 10]), np.array([1, 0]), np.array([1]), sequence_length=8)
    (8, 8)
    """
    homes, bounds = starts_of(lengths), starts_of(lengths[documents])
    firsts = np.sort(rows) * sequence_length
    cuts = np.unique(np.concatenate([bounds, firsts, firsts + sequence_length]))
    cuts = cuts[cuts <= bounds[-1]]
    begins, ends = cuts[:-1], cuts[1:]
    is_read = np.searchsorted(firsts, begins, "right") > np.searchsorted(firsts + sequence_length, begins, "right")
    begins, ends = begins[is_read], ends[is_read]
    positions = np.searchsorted(bounds, begins, "right") - 1
    starts = homes[documents[positions]] + begins - bounds[positions]
    stops = starts + ends - begins
    starts.sort()
    stops.sort()
    places = np.unique(np.concatenate([homes, starts, stops]))
    times = np.searchsorted(starts, places, "right") - np.searchsorted(stops, places, "right")
    counted = np.bincount(times[:-1], weights=np.diff(places)) if len(places) > 1 else np.zeros(0)
    return tuple(map(int, counted.tolist()))
