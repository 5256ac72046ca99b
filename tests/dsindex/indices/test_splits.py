import json

import pytest

from dsindex.index.epochs import normalise, parse_split, split_bounds, split_matrix


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("969, 30, 1", (0.969, 0.03, 0.001)),
        ("1", (1.0, 0.0, 0.0)),
        ("80,20", (0.8, 0.2, 0.0)),
        ("90/8/2", (0.9, 0.08, 0.02)),
        ("[.5, .25, .25]", (0.5, 0.25, 0.25)),
        ("0,1,0", (0.0, 1.0, 0.0)),
    ],
)
def test_split_is_read_in_every_spelling_that_megatron_reads(text, shares):
    assert parse_split(text) == shares


@pytest.mark.parametrize("text", ["", "abc", "0,0,0", "1,2,3,4", "-5,5", "1e3,1", "1.2.3,4"])
def test_split_that_megatron_would_misread_is_refused(text):
    with pytest.raises(ValueError, match=r"split.*write train, valid and test as in '969, 30, 1'"):
        parse_split(text)


def test_matrix_is_written_with_an_integer_zero_and_null_for_no_part():
    assert json.dumps(split_matrix(parse_split("0,3,1"))) == "[null, [0.0, 0.75], [0.75, 1.0]]"
    assert json.dumps(split_matrix(parse_split("3,1"))) == "[[0, 0.75], [0.75, 1.0], null]"


@pytest.mark.parametrize(
    ("part", "num_sequences", "bounds"),
    [
        ((0, 0.5), 5, (0, 2)),
        ((0.5, 1.0), 7, (4, 7)),
        ((0.5, 1.0), 5, (2, 5)),
        ((0.999, 1.0), 300, (300, 300)),
        ((0.0, 1.0), 0, (0, 0)),
    ],
    ids=["down", "up", "begin-down", "empty-part", "empty-dataset"],
)
def test_bounds_round_half_to_even(part, num_sequences, bounds):
    assert split_bounds(part, num_sequences) == bounds


def test_normalising_twice_may_change_the_last_bit():
    """Why the blend's weights are normalised twice, as Megatron does on the way."""
    weights = [0.3, 0.7, 0.1]
    assert normalise(weights) != normalise(normalise(weights)) or sum(normalise(weights)) == 1.0
