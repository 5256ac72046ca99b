"""`dsindex trace`: the documents, lines and text of training samples and steps, and how often tokens were read."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.commands.findings import ConsumedTokens, ReadTokens, ShownDataset, TracedSamples
from dsindex.commands.token_data import find_origin, text_of
from dsindex.datasets.detect import PACKING, TEXT_SUFFIX, detect_dataset
from dsindex.datasets.gpt import BlendedDataset
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import Packs, read_layout
from dsindex.datasets.opening import open as open_dataset
from dsindex.datasets.samples import SampleDataset, trace_samples
from dsindex.errors import FormatError, InputError, UsageError
from dsindex.formats.dtypes import starts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.datasets.gpt import GPTDataset
    from dsindex.datasets.samples import SampleTrace, TracedPart
    from dsindex.options.datasets import TraceConfig

MOST_SAMPLES = 100_000
"""Most samples that are traced at once, since all of them are held in memory."""


def run_trace(config: TraceConfig) -> TracedSamples | ConsumedTokens:
    """Trace samples or steps, or count how often tokens were read.

    Raises:
        UsageError: If too many samples are asked for.
        InputError: If the path has no samples or steps, or not those that the options name.
        FormatError: If the cache, a manifest or provenance is damaged.
    """
    samples, batch = open_samples(config.cache, split=config.split, prefixes=config.prefix), config.global_batch_size
    if isinstance(samples, Packs) and (config.consumed is not None or batch is not None):
        raise InputError(f"{config.cache}: packs have no steps, as trainers shuffle them", hint="give --sample")
    if config.consumed is not None:
        return _count_consumed(samples, config.consumed)
    numbers: Sequence[int] = config.sample or ()
    if config.step is not None and batch is not None:
        numbers = samples_of_steps(*config.step, batch)
    if len(numbers) > MOST_SAMPLES:
        raise UsageError(f"{len(numbers):,} samples are too many at once", hint=f"ask for at most {MOST_SAMPLES:,}")
    for number in numbers:
        if not 0 <= number < len(samples):
            raise InputError(f"{config.cache}: there is no sample {number:,}; it has {len(samples):,}")
    located = [samples.locate(number) for number in numbers]
    traces, data = trace_samples(located, contact=config.contact), {place.data.prefix: place.data for place in located}
    parts = [part for trace in traces for part in trace.parts]
    origins = {prefix: find_origin(prefix, config) for prefix in data}
    for prefix, origin in origins.items():
        origin.check_inputs(part.origin for part in parts if part.prefix == prefix)

    def add_tokens(part: TracedPart) -> TracedPart:
        num_shown, tokenizer = min(part.num_tokens, config.text_tokens), origins[part.prefix].tokenizer
        tokens = tuple(data[part.prefix].get(part.sequence, part.sequence_offset, num_shown).tolist())
        return replace(part, tokens=tokens, text=text_of(tokenizer, tokens) if tokenizer and tokens else None)

    notes = [note for trace in traces for note in trace.notes]
    notes += [note for origin in origins.values() for note in (*origin.findings, *origin.notes)]
    return TracedSamples(
        num_samples=len(samples),
        samples=tuple(
            replace(
                trace,
                step=None if batch is None else trace.sample // batch + 1,
                parts=tuple(map(add_tokens, trace.parts)),
                notes=(),
            )
            for trace in traces
        ),
        datasets=tuple(_summarize(traces)),
        notes=tuple(dict.fromkeys(notes)),
    )


def samples_of_steps(first: int, last: int, global_batch_size: int) -> range:
    """Return the samples of steps, which are counted from 1 as in Megatron's log.

    This holds for a fixed global batch size and `--dataloader-type single`.

    Source: megatron.training.datasets.data_samplers, MegatronPretrainingSampler.

    >>> samples_of_steps(10, 12, 32)
    range(288, 384)
    """
    return range((first - 1) * global_batch_size, last * global_batch_size)


def open_samples(path: str, *, split: str | None, prefixes: Sequence[str] | None) -> SampleDataset[Any]:
    """Open an index cache without reading all of it, or the packs of instruction data.

    Raises:
        InputError: If the path is neither, or the split has no cache.
        FormatError: If the cache or the packs, or the dataset that they draw from, are damaged.
    """
    detected = detect_dataset(path)
    match = PACKING.fullmatch(detected.path)
    if detected.kind == "packs" and match is not None:
        if split is not None:
            raise InputError(f"{path}: these packs are of one split", hint="leave out --split")
        dataset = IndexedDataset(f"{match[1]}{TEXT_SUFFIX}" if prefixes is None else prefixes[0], check=False)
        length, multiple = int(match[2]), int(match[3] or 1)
        layout = read_layout(detected.path, dataset.sequence_lengths, sequence_length=length, pad_to_multiple=multiple)
        return Packs(dataset, layout)
    samples = open_dataset(path, split=split, prefix=prefixes, check=False) if detected.kind == "index cache" else None
    if not isinstance(samples, SampleDataset):
        problem = f"{detected.kind} has no samples, unlike index caches and packs of `dsindex instruct`"
        raise InputError(f"{path}: {problem}")
    return samples


def _summarize(traces: Sequence[SampleTrace]) -> Iterator[ShownDataset]:
    tokens, samples, documents = Counter[str](), Counter[str](), dict[str, set[int]]()
    for trace in traces:
        samples.update({part.prefix for part in trace.parts})
        for part in trace.parts:
            tokens[part.prefix] += part.num_tokens
            documents.setdefault(part.prefix, set()).add(part.document)
    for prefix, number in tokens.most_common():
        num_documents = len(documents[prefix])
        yield ShownDataset(prefix=prefix, num_samples=samples[prefix], num_tokens=number, num_documents=num_documents)


def _count_consumed(samples: SampleDataset[Any], consumed: int) -> ConsumedTokens:
    """Count how often the tokens of each dataset were read by the first samples of a run."""
    if not 0 <= consumed <= len(samples):
        raise InputError(f"{consumed:,} consumed samples: there are {len(samples):,}")
    datasets, numbers = np.zeros(consumed, np.int8), np.arange(consumed)
    if isinstance(samples, BlendedDataset):
        datasets, numbers = samples.dataset_index[:consumed], samples.dataset_sample_index[:consumed]
    reads = [_count_reads(dataset, numbers[datasets == number]) for number, dataset in enumerate(samples.datasets)]
    return ConsumedTokens(num_samples=len(samples), consumed=consumed, datasets=tuple(reads))


def _count_reads(dataset: GPTDataset, numbers: NDArray[np.integer]) -> ReadTokens:
    documents = np.asarray(dataset.document_index, np.int64)
    _require_below(len(dataset.dataset), documents, dataset.place)
    _require_below(len(dataset), numbers, dataset.place)
    rows = np.asarray(dataset.shuffle_index[numbers], np.int64)
    _require_below(len(dataset), rows, dataset.place)
    begin, end = (int(documents.min()), int(documents.max()) + 1) if len(documents) else (0, 0)
    lengths = np.asarray(dataset.dataset.sequence_lengths[begin:end], np.int32)
    token_counts = tokens_by_times(lengths, documents - begin, rows, sequence_length=dataset.sequence_length)
    return ReadTokens(prefix=dataset.dataset.prefix, num_samples=len(rows), tokens_by_times=token_counts)


def _require_below(size: int, numbers: NDArray[np.integer], place: str) -> None:
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < size:
        problem = f"an index has numbers from {numbers.min()} to {numbers.max()} for {size} items"
        raise FormatError(f"{place}: {problem}; it was built from other data")


def tokens_by_times(
    lengths: NDArray[np.int32], documents: NDArray[np.int64], rows: NDArray[np.int64], *, sequence_length: int
) -> tuple[int, ...]:
    """Count the tokens that were read as input 0 times, once, twice, and so on.

    Args:
        lengths: Tokens of each sequence.
        documents: The document index.
        rows: The rows of the sample index that were read.
        sequence_length: L.

    >>> tokens_by_times(np.array([6, 10]), np.array([1, 0]), np.array([1]), sequence_length=8)
    (8, 8)
    """
    sequence_starts, document_starts = starts_of(lengths), starts_of(lengths[documents])
    firsts = np.sort(rows) * sequence_length
    cuts = np.unique(np.concatenate([document_starts, firsts, firsts + sequence_length]))
    cuts = cuts[cuts <= document_starts[-1]]
    begins, ends = cuts[:-1], cuts[1:]
    is_read = np.searchsorted(firsts, begins, "right") > np.searchsorted(firsts + sequence_length, begins, "right")
    begins, ends = begins[is_read], ends[is_read]
    positions = np.searchsorted(document_starts, begins, "right") - 1
    starts = sequence_starts[documents[positions]] + begins - document_starts[positions]
    stops = starts + ends - begins
    starts.sort()
    stops.sort()
    places = np.unique(np.concatenate([sequence_starts, starts, stops]))
    times = np.searchsorted(starts, places, "right") - np.searchsorted(stops, places, "right")
    token_counts = np.bincount(times[:-1], weights=np.diff(places)) if len(places) > 1 else np.zeros(0)
    return tuple(map(int, token_counts.tolist()))
