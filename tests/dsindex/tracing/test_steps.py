"""Steps and ranks get the samples that a sampler which deals out rounds of micro-batches gives them."""

import re

import pytest

from dsindex.datasets.samples import Batches


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


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"global_batch_size": 0}, "of at least 1"),
        ({"global_batch_size": 8, "micro_batch_size": 2}, "or neither"),
        (
            {"global_batch_size": 8, "micro_batch_size": 3, "data_parallel_size": 2},
            "3 samples on 2 ranks divide, got 8",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        Batches(**sizes)


@pytest.mark.parametrize("rank", [-1, 2])
def test_ranks_that_do_not_exist_are_refused(rank):
    with pytest.raises(ValueError, match=f"expected a rank below the data-parallel size 2, got {rank}"):
        Batches(global_batch_size=8, micro_batch_size=2, data_parallel_size=2).samples(1, 100, rank=rank)
