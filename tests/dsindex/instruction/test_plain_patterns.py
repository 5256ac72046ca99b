import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.instruction.construction import plain_patterns
from dsindex.text.jq import Patterns, parse_field_patterns, parse_mask_pattern

FIELDS = {"turns": ".turns", "a b": '.["a b"]', "text": '."text"'}
MASKS = (
    ".text",
    '.["a b"]',
    '.turns | select(.from == "human")',
    '.turns[] | select(.from != "gpt")',
    '.turns | map(select( .["from"]=="human" or ."from" == "gpt" or .x != "y" ))',
)

texts = st.sampled_from(["human", "gpt", "", "é\n", "y", 'a"b', "\0"])
values = st.recursive(
    st.none() | st.booleans() | texts | st.integers(-3, 3) | st.just(1.0) | st.just(float("nan")) | st.just(1 << 70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["from", "value", "x"]), inner),
    max_leaves=6,
)
messages = st.lists(st.dictionaries(st.sampled_from(["from", "value", "x"]), texts, max_size=3), max_size=4)
records = st.fixed_dictionaries(
    {}, optional={"turns": messages | values, "a b": texts | values, "text": texts, "id": values}
)


@functools.cache
def by_jq():
    return Patterns(parse_field_patterns(FIELDS), [parse_mask_pattern(mask) for mask in MASKS])


@settings(max_examples=200)
@given(record=records)
def test_plain_patterns_return_what_jq_returns(record):
    plain = plain_patterns(parse_field_patterns(FIELDS), [parse_mask_pattern(mask) for mask in MASKS])
    found = plain.read(record)
    if found is not None:
        wanted = by_jq().read(record)
        assert dict(found.fields) == dict(wanted.fields)
        assert list(found.masks) == list(wanted.masks)


def test_usual_records_need_no_jq():
    plain = plain_patterns(parse_field_patterns(FIELDS), [parse_mask_pattern(mask) for mask in MASKS])
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "日本", "x": "y"}]
    found = plain.read({"id": 7, "turns": turns, "a b": "c", "text": "d"})
    assert [found.selected(number) for number in range(5)] == [
        [True],
        [True],
        [True, False],
        [True, False],
        [True, True],
    ]


@pytest.mark.parametrize(("field", "mask"), [
    (".turns | tostring", ".turns"),
    (".turns[0]", ".turns"),
    (".a.turns", ".turns"),
    (".turns", ".turns | select(.value | length > 3)"),
    (".turns", '.turns | select(.from == "human" and .x == "y")'),
    (".turns", r'.turns | select(.from == "\(.x)")'),
    (".turns", '.turns | select(.from == "human" orelse)'),
    (".turns", '.turns | select(.from == "human") | .x'),
])  # fmt: skip
def test_other_patterns_are_left_to_jq(field, mask):
    assert plain_patterns(parse_field_patterns({"turns": field}), [parse_mask_pattern(mask)]) is None
