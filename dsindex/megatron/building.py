"""Count the parts of datasets, and build the contents of one cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex._version import __version__
from dsindex.errors import InputError, LimitError, OutputError
from dsindex.formats.mmididx import check_index, read_index
from dsindex.megatron.cache import CacheRecord, Fingerprint, count_tokens, description_text, fingerprint, read_lengths
from dsindex.megatron.epochs import STOCK_ORDER, DocumentOrder, shuffle_dtype, split_bounds
from dsindex.megatron.plan import BlendedCache, PartCounts
from dsindex.store.read import digest_file, input_status, is_stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.megatron.cache import Content
    from dsindex.megatron.epochs import EpochCounts, Part, SampleRule
    from dsindex.megatron.plan import Cache


def count_parts(prefix: str, parts: Sequence[Part | None], of_documents: bool = False) -> list[PartCounts | None]:
    """Return the sequences, or documents, and tokens of a dataset's parts in train, valid and test.

    Args:
        prefix: The dataset.
        parts: The parts as shares; None for a part that is not needed.
        of_documents: Whether the parts are shares of the documents instead of the sequences.

    Raises:
        InputError: If there is no such dataset.
        FormatError: If the `.idx` is damaged.
    """
    if not is_stored(f"{prefix}.idx"):
        hint = "give the prefix of a .bin and .idx, after each weight if there are any"
        raise InputError(f"{prefix}.idx: no such file", hint=hint)
    index = read_index(f"{prefix}.idx")
    bin_size_bytes = input_status(f"{prefix}.bin").size_bytes if is_stored(f"{prefix}.bin") else None
    check_index(f"{prefix}.idx", index, bin_size_bytes=bin_size_bytes)
    lengths = (index.join_sequences() if of_documents else index).sequence_lengths
    bounds = [None if part is None else split_bounds(part, len(lengths)) for part in parts]
    return [
        None if pair is None else PartCounts(begin=pair[0], end=pair[1], tokens=count_tokens(lengths[slice(*pair)]))
        for pair in bounds
    ]


def make_contents(cache: Cache, threads: int = 1) -> tuple[Sequence[Content], CacheRecord] | None:
    """Return the contents of a cache's files, in the order of their paths, and its record; None if it is current.

    Raises:
        FormatError: If the `.idx` changed since the cache was planned.
        LimitError: If a blend draws more samples than a dataset has.
        OutputError: If a cache with a different order has the same name.
    """
    old_record, settings, source = cache.files.read_record(), cache.settings, None
    if old_record is not None and cache.files.exist() and old_record.settings.order != settings.order:
        # The hash does not cover the order: a job could not tell the two caches apart.
        problem = f"has {old_record.settings.show_order()}, not {settings.show_order()}"
        hint = "choose another --data-cache-path: names do not tell document orders apart"
        raise OutputError(f"{cache.files.paths[0]}: the cache of this name {problem}", hint=hint)
    arrays: Sequence[Content]
    if isinstance(cache, BlendedCache):
        arrays = _make_blend(cache)
    else:
        begin, end = cache.part.begin, cache.part.end
        lengths = read_lengths(cache.path, begin, end, of_documents=cache.of_documents)
        source = fingerprint(cache.path, begin, end, lengths, of_documents=cache.of_documents)
        is_same = old_record is not None and old_record.settings == settings and _is_current(old_record.source, source)
        if old_record is not None and is_same and not cache.files.find_changed(old_record):
            return None
        options: dict[str, Any] = {"rule": cache.rule, "seed": cache.seed, "order": cache.order}
        if cache.continued is None:
            arrays = build_arrays(lengths, cache.epochs, begin=begin, threads=threads, **options)
        else:
            from dsindex.megatron.continuation import build_continued_arrays

            arrays = build_continued_arrays(cache, cache.continued, lengths, threads=threads)
    record = CacheRecord(dsindex=__version__, numpy=np.__version__, settings=cache.settings, source=source)
    return (*arrays, description_text(cache.identifiers).encode()), record


def _make_blend(cache: BlendedCache) -> tuple[NDArray[Any], ...]:
    from dsindex.megatron.arrays import blend_by_weights, blend_exhaustively

    if cache.continued is not None:
        from dsindex.megatron.continuation import build_continued_blend

        datasets, samples = build_continued_blend(cache.continued)
    elif cache.identifiers["size"] is None:
        datasets, samples = blend_exhaustively([int(length) for length in cache.weights])
    else:
        datasets, samples = blend_by_weights(cache.weights, cache.num_samples)
    nums_drawn = np.bincount(datasets, minlength=len(cache.datasets)).tolist()
    for dataset, num_drawn in zip(cache.datasets, nums_drawn, strict=True):
        if num_drawn > dataset.num_samples:  # Megatron would fail only after building all indices
            problem = f"the blend draws {num_drawn} samples from {dataset.prefix}, which has only {dataset.num_samples}"
            hint = f"raise --mid-level-dataset-surplus from {cache.surplus:g}, here and in the job"
            raise LimitError(f"{cache.name}: {problem}", hint=hint)
    return datasets, samples


def _is_current(recorded: Fingerprint | None, source: Fingerprint) -> bool:
    recorded_key = None if recorded is None else (recorded.lengths_digest, recorded.begin, recorded.end)
    return recorded_key == (source.lengths_digest, source.begin, source.end)


def build_arrays(
    lengths: NDArray[np.int32],
    epochs: EpochCounts,
    *,
    begin: int,
    rule: SampleRule,
    seed: int,
    threads: int = 1,
    order: DocumentOrder = STOCK_ORDER,
) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]]:
    """Build document, sample and shuffle index of the sequences [begin, begin + len(lengths)).

    Args:
        lengths: Tokens of each sequence.
        epochs: The result of `count_epochs` for the sum of the lengths.
        begin: Id of the first sequence.
        rule: How tokens are cut into samples.
        seed: Seed of the job; one generator serves all three indices, in this order.
        threads: Threads for the sample index.
        order: The order of documents and samples.

    Raises:
        InputError: If the order file changed, or does not have each document once per epoch.
    """
    from dsindex.megatron.arrays import build_document_index, build_sample_index, build_shuffle_index

    rng = np.random.RandomState(seed)
    if order.is_stock:
        documents = build_document_index(
            begin, begin + len(lengths), epochs.num_epochs, rng=rng, separate_final_epoch=epochs.separate_final_epoch
        )
    else:
        from dsindex.megatron.document_order import build_ordered_document_index

        if order.digest is not None and digest_file(order.documents) != order.digest:
            raise InputError(f"{order.documents}: changed while its cache was built", hint="start again")
        documents = build_ordered_document_index(
            lengths, epochs.num_epochs, begin=begin, sequence_length=rule.sequence_length, order=order, rng=rng
        )
    samples = build_sample_index(lengths, documents, epochs.num_samples, rule=rule, begin=begin, threads=threads)
    if order.samples == "never":
        return documents, samples, np.arange(epochs.num_samples, dtype=shuffle_dtype(epochs.num_samples))
    borders = [epochs.shuffled_together] if epochs.separate_final_epoch else []
    if order.samples == "separately":
        # The first sample that begins in each epoch after the first.
        starts = (-(-epoch * epochs.tokens_per_epoch // rule.sequence_length) for epoch in range(1, epochs.num_epochs))
        borders = [min(sample, epochs.num_samples) for sample in starts]
    return documents, samples, build_shuffle_index(epochs.num_samples, borders=borders, rng=rng)
