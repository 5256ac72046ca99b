"""Which caches a job looks for, from counts alone: no file is read."""

import pytest

from dsindex.errors import LimitError
from dsindex.index.blend import Blend
from dsindex.index.epochs import parse_split, split_matrix
from dsindex.index.needed_caches import CacheSettings, PartCounts, find_needed_caches

SHARED = CacheSettings(sequence_length=10, split="8,1,1", matrix=split_matrix(parse_split("8,1,1")))
PER_SPLIT = CacheSettings(sequence_length=10)


def plan(
    blends,
    sizes,
    settings=SHARED,
    count_part=lambda _prefix, _split: PartCounts(begin=0, end=9, tokens=1001),
    **options,
):
    return find_needed_caches(blends, sizes, settings=settings, count_part=count_part, **options)


def test_single_weighted_prefix_is_a_blend_unless_each_split_has_a_path():
    weighted = Blend(prefixes=("a",), weights=(3.0,))
    shared = plan([weighted] * 3, [50, 5, 5])
    assert (len(shared.datasets), len(shared.blends)) == (3, 3)
    assert shared.blends[0].description.weights == (1.0,)
    per_split = plan([weighted, None, None], [50, 5, 5], PER_SPLIT)
    assert (len(per_split.datasets), len(per_split.blends)) == (1, 0)
    assert per_split.datasets[0].description.num_samples == 50


def test_dataset_named_twice_is_built_once():
    twice = plan([Blend(prefixes=("a", "b", "a"), weights=(1.0, 2.0, 1.0)), None, None], [40, None, None])
    assert [cache.prefix for cache in twice.datasets] == ["a", "b"]
    assert [d.dataset_path for d in twice.blends[0].description.datasets] == ["a", "b", "a"]


def test_sized_blend_without_weights_takes_lengths_as_weights():
    sizes = {"a": 301, "b": 101}
    built = plan(
        [Blend(prefixes=("a", "b"), weights=None), None, None],
        [20, None, None],
        count_part=lambda prefix, _: PartCounts(begin=0, end=9, tokens=sizes[prefix]),
    )
    assert built.blends[0].description.weights == (0.75, 0.25)
    assert built.blends[0].description.size == 20
    assert [cache.description.num_samples for cache in built.datasets] == [None, None]


def test_job_path_stands_in_the_description_only():
    (cache,) = plan(
        [Blend(prefixes=("a",), weights=None), None, None], [5, 5, 5], job_path="/lustre/{}".format
    ).datasets
    assert (cache.prefix, cache.description.dataset_path) == ("a", "/lustre/a")


def test_part_without_tokens_is_noted_where_megatron_makes_an_empty_dataset():
    built = plan(
        [None, None, Blend(prefixes=("a",), weights=None)],
        [None, None, None],
        count_part=lambda _prefix, _split: PartCounts(begin=9, end=9, tokens=0),
    )
    assert built.datasets[0].epochs.num_samples == 0
    assert built.notes == ("a, split test: the part has no tokens, so its index has no samples",)


def test_more_sequences_than_int32_names_are_refused():
    with pytest.raises(LimitError, match="a: expected at most 2147483647 sequences in one dataset, got 2147483648"):
        plan(
            [Blend(prefixes=("a",), weights=None), None, None],
            [None, None, None],
            count_part=lambda _prefix, _split: PartCounts(begin=0, end=2**31, tokens=2**40),
        )


def test_weighted_blend_without_a_number_is_refused():
    with pytest.raises(LimitError, match="split train: a weighted blend needs a number of samples, got none"):
        plan([Blend(prefixes=("a",), weights=(1.0,)), None, None], [None, None, None])
