import numpy as np
import pytest

from dsindex.datasets import BlendedDataset, SampleOptions
from dsindex.errors import FormatError
from tests.datasets.test_batches import make_blend, make_gpt
from tests.support.golden import golden_caches

CACHES = golden_caches("BlendedDataset")


def open_golden(cache):
    arguments = {"prefixes": cache.prefixes(), "add_extra_token": cache.add_extra_token}
    return BlendedDataset.open_cache(cache.description_path, **arguments)


@pytest.mark.parametrize("cache", CACHES, ids=str)
def test_golden_blend_draws_each_dataset_in_order_as_megatron_does(cache):
    blend = open_golden(cache)
    assert len(blend) == cache.num_samples
    drawn = dict.fromkeys(range(len(blend.datasets)), 0)
    for index in range(len(blend)):
        dataset_id = int(blend.dataset_index[index])
        assert np.array_equal(blend.tokens(index), blend.datasets[dataset_id].tokens(drawn[dataset_id]))
        assert blend.parts(index) == blend.datasets[dataset_id].parts(drawn[dataset_id])
        drawn[dataset_id] += 1
    every = range(len(blend))
    assert np.array_equal(blend.batch(every), [blend.tokens(index) for index in every])
    firsts = zip(cache.case["first_tokens"], cache.case["first_labels"], strict=True)
    for index, (tokens, labels) in enumerate(firsts if cache.split == "train" else ()):
        sample = blend[index]
        assert (sample["dataset_id"], sample["dataset_id"].dtype) == (blend.dataset_index[index], np.int16)
        assert sample["tokens"][: len(tokens)].tolist() == tokens
        assert sample["labels"][-len(labels) :].tolist() == labels


TOKENS = [[12, 13, 14], [22, 23, 24], [20, 21, 22], [10, 11, 12]]


def test_blend_reads_by_number_from_either_end(tmp_path):
    blend = make_blend(tmp_path)
    assert [blend.tokens(index).tolist() for index in range(-4, 4)] == TOKENS + TOKENS
    assert blend.batch([3, -2, 0, 3]).tolist() == [TOKENS[3], TOKENS[2], TOKENS[0], TOKENS[3]]
    assert blend.batch([]).shape == (0, 3)
    assert [int(sample["dataset_id"]) for sample in blend] == [0, 1, 1, 0]
    assert [p.prefix for p in blend.parts(1)] == [str(tmp_path / "b")]
    for index in (4, -5):
        with pytest.raises(IndexError, match=f"there is no sample {index}; it has 4"):
            blend[index]
        with pytest.raises(IndexError, match=f"there is no sample {index}; it has 4"):
            blend.batch([0, index])


@pytest.mark.parametrize("changes", [
    {"numbers": [0, 2, 1, 0]}, {"numbers": [0, -1, 1, 0]}, {"samples": [0, 3, 1, 1]}, {"samples": [0, -1, 1, 1]},
], ids=str)  # fmt: skip
def test_blend_over_other_datasets_is_a_format_error(tmp_path, changes):
    """Not an IndexError, which would end a loop over the blend in silence."""
    blend = make_blend(tmp_path, **changes)
    assert blend.tokens(0).tolist() == TOKENS[0]
    reads = [lambda: blend[1], lambda: blend.tokens(1), lambda: blend.parts(1), lambda: blend.batch([0, 1])]
    for read in reads:
        with pytest.raises(FormatError, match=r"there is no sample -?\d+ of dataset"):
            read()


def test_datasets_that_do_not_fit_together_are_refused(tmp_path):
    datasets = [make_gpt(tmp_path, "a"), make_gpt(tmp_path, "b", sequence_length=3)]
    with pytest.raises(ValueError, match=r"one sequence length, not \[\(2, True\), \(3, True\)\]"):
        BlendedDataset(datasets, np.zeros(1, np.int16), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match=r"one sequence length, not \[\]"):
        BlendedDataset([], np.zeros(1, np.int16), np.zeros(1, np.int64))
    with pytest.raises(FormatError, match="sample index has 2 integers"):
        BlendedDataset(datasets[:1], np.zeros(2, np.int16), np.zeros(1, np.int64))


@pytest.mark.parametrize("cache", CACHES[:1], ids=str)
def test_cache_is_opened_with_its_options_or_refused(cache):
    options = SampleOptions(eod_token=0, reset_position_ids=True)
    blend = BlendedDataset.open_cache(cache.description_path, prefixes=cache.prefixes(), options=options)
    assert all(dataset.options == options for dataset in blend.datasets)
    with pytest.raises(ValueError, match=f"1 prefixes were given for {len(cache.prefixes())} datasets"):
        BlendedDataset.open_cache(cache.description_path, prefixes=cache.prefixes()[:1])
    alone = next(cache.description_path.parent.glob("*-GPTDataset-train-description.txt"))
    with pytest.raises(FormatError, match="the description of a GPTDataset, not of a BlendedDataset"):
        BlendedDataset.open_cache(alone)
