"""Searching backwards finds exactly what tracing every sample forwards shows; steps and ranks get their samples."""

import re
from collections import defaultdict

import numpy as np
import pytest

from dsindex.datasets import BlendedDataset, GPTDataset, IndexedDataset
from dsindex.datasets.samples import Batches
from dsindex.errors import FormatError
from tests.support.datasets import write_dataset
from tests.support.golden import golden_caches


def runs_of_documents(samples):
    """Every run of tokens in every sample, by dataset and document."""
    found = defaultdict(list)
    for number in range(len(samples)):
        for part in samples.trace(number).parts:
            run = (number, part.sequence, part.sequence_offset, part.num_tokens)
            found[part.dataset, part.document].append(run)
    return {place: sorted(runs) for place, runs in found.items()}


def assert_found(samples):
    expected = runs_of_documents(samples)
    datasets = samples.datasets if isinstance(samples, BlendedDataset) else [samples]
    for number, each in enumerate(datasets):
        for document in range(each.dataset.num_documents):
            if isinstance(samples, BlendedDataset):
                found = samples.find_document(number, document)
            else:
                found = samples.find_document(document)
            runs = [(o.sample, o.sequence, o.offset, o.num_tokens) for o in found]
            assert sorted(runs) == expected.get((number, document), [])


@pytest.mark.parametrize("cache", golden_caches("GPTDataset") + golden_caches("BlendedDataset"), ids=str)
def test_golden_caches_are_searched(cache):
    if "BlendedDataset" in cache.description_path.name:
        prefixes, extra = cache.prefixes(), cache.add_extra_token
        assert_found(BlendedDataset.open_cache(cache.description_path, prefixes=prefixes, add_extra_token=extra))
    else:
        [prefix] = cache.prefixes()
        assert_found(
            GPTDataset.open_cache(cache.description_path, prefix=prefix, add_extra_token=cache.add_extra_token)
        )


def random_samples(folder, seed):
    """Documents of no, one or several sequences, some without tokens, for two epochs or more."""
    rng = np.random.default_rng(seed)
    lengths = [rng.choice([0, 1, 2, 5, 40], rng.integers(0, 4)) for _ in range(12)]
    documents = [[rng.integers(0, 99, length).tolist() for length in own] for own in [*lengths, [7]]]
    dataset = IndexedDataset(write_dataset(folder / f"d{seed}", documents))
    order = rng.permutation(np.repeat(np.arange(len(dataset), dtype=np.int32), 3))
    position = np.repeat(np.arange(len(order)), dataset.sequence_lengths[order])
    offset = np.concatenate([np.arange(dataset.sequence_lengths[each]) for each in order])
    sequence_length = int(rng.integers(1, 9))
    starts = np.arange(0, len(position), sequence_length)
    sample_index = np.stack([position[starts], offset[starts]], axis=1).astype(np.int32)
    shuffle = rng.permutation(len(sample_index) - 1).astype(np.uint32)
    return GPTDataset(dataset, order, sample_index, shuffle, sequence_length=sequence_length)


@pytest.mark.parametrize("seed", range(5))
def test_random_samples_are_searched(tmp_path, seed):
    assert_found(random_samples(tmp_path, seed))


def test_blend_of_one_dataset_twice_is_searched(tmp_path):
    samples = random_samples(tmp_path, 9)
    own = np.arange(len(samples), dtype=np.int64)
    twice = BlendedDataset([samples, samples], np.repeat([0, 1], len(own)).astype(np.int16), np.tile(own, 2))
    assert_found(twice)


def test_epochs_are_the_copies_of_a_sequence(tmp_path):
    dataset = IndexedDataset(write_dataset(tmp_path / "d", [[[1, 2, 3]], [[4, 5]]]))
    order = np.array([1, 0, 0, 1], np.int32)
    sample_index = np.array([[0, 0], [1, 0], [2, 0], [3, 0], [3, 1]], np.int32)
    samples = GPTDataset(dataset, order, sample_index, np.array([3, 2, 1, 0], np.uint32), sequence_length=2)
    first, second, *_ = sorted(samples.find_document(1), key=lambda each: (each.epoch, -each.num_tokens))
    assert (first.epoch, first.sample, first.num_tokens) == (1, 3, 2)
    assert {each.epoch for each in samples.find_document(1)} == {1, 2}
    assert second.epoch == 1 or second.sample == 0


def test_damaged_shuffle_index_finds_nothing_outside(tmp_path):
    """Values outside the sample index are passed over, as no sample can be read from them."""
    samples = random_samples(tmp_path, 2)
    damaged = np.full(len(samples), 2**31, np.uint32)
    other = GPTDataset(
        samples.dataset, samples.document_index, samples.sample_index, damaged, sequence_length=samples.sequence_length
    )
    assert all(other.find_document(document) == [] for document in range(samples.dataset.num_documents))
    with pytest.raises(FormatError, match="built from other data"):
        other.trace(0)


@pytest.mark.parametrize(("micro", "ranks", "rounds"), [(1, 1, 4), (2, 3, 2), (4, 2, 1), (3, 1, 2)])
def test_ranks_take_turns(micro, ranks, rounds):
    size = micro * ranks * rounds
    batches = Batches(global_batch_size=size, micro_batch_size=micro, data_parallel_size=ranks)
    num_samples = 3 * size + 1
    dealt = {}
    for number, first in enumerate(range(0, 3 * size, micro)):
        dealt.setdefault((number // (ranks * rounds) + 1, number % ranks), []).extend(range(first, first + micro))
    for (step, rank), samples in dealt.items():
        assert batches.samples(step, num_samples, rank=rank) == samples
        assert {(batches.step_of(sample), batches.rank_of(sample)) for sample in samples} == {(step, rank)}
    assert batches.samples(2, num_samples) == list(range(size, 2 * size))


@pytest.mark.parametrize("step", [0, -1, 4])
def test_steps_beyond_the_data_are_refused(step):
    message = f"expected a step from 1 to 3, got {step}: the data has 31 samples, in whole batches of 10"
    with pytest.raises(ValueError, match=re.escape(message)):
        Batches(global_batch_size=10).samples(step, 31)


@pytest.mark.parametrize(("sizes", "message"), [
    ({"global_batch_size": 0}, "of at least 1"),
    ({"global_batch_size": 8, "micro_batch_size": 2}, "or neither"),
    ({"global_batch_size": 8, "micro_batch_size": 3, "data_parallel_size": 2}, "3 samples on 2 ranks divide, got 8"),
])  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        Batches(**sizes)


@pytest.mark.parametrize("rank", [-1, 2])
def test_ranks_that_do_not_exist_are_refused(rank):
    with pytest.raises(ValueError, match=f"expected a rank below the data-parallel size 2, got {rank}"):
        Batches(global_batch_size=8, micro_batch_size=2, data_parallel_size=2).samples(1, 100, rank=rank)
