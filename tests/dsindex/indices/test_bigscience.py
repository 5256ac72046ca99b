import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsindex.index.bigscience import index_path, samples_wanted, split_bounds


@given(
    shares=st.lists(st.integers(0, 100), min_size=1, max_size=5).filter(lambda shares: sum(shares[:3]) > 0),
    num_sequences=st.integers(0, 5000),
    separator=st.sampled_from([",", "/"]),
)
def test_split_rounds_each_part_and_shifts_the_error(shares, num_sequences, separator):
    text = separator.join(map(str, shares))
    first = [*shares, 0, 0][:3]
    sizes = [round(share / sum(first) * float(num_sequences)) for share in first]
    excess = sum(sizes) - num_sequences
    train, valid, test = split_bounds(text, num_sequences)
    assert train == (0, sizes[0] - excess)
    assert valid == (train[1], train[1] + sizes[1])
    assert test == (valid[1], num_sequences)


def test_split_differs_from_megatron_cores_rounding():
    assert split_bounds("1,1,0", 5)[0] == (0, 3)


@pytest.mark.parametrize("text", ["", "a,b", "0,0", "-1,2", "1 2"])
def test_split_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="split"):
        split_bounds(text, 10)


def test_names_are_those_of_megatron_deepspeed():
    path = index_path("/d/web", split="valid", num_samples=7, sequence_length=2048, seed=42, array="shuffle_index")
    assert path == "/d/web_valid_indexmap_7ns_2048sl_42s_shuffle_idx.npy"


def test_blend_is_rounded_once():
    assert samples_wanted([1, 2], 100) == [34, 67]
    assert samples_wanted([3, 3, 3], 199) == [67, 67, 67]
