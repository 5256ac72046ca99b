from __future__ import annotations

from typing import Any

import pytest

from dsindex.errors import InputError
from dsindex.instruct.patterns import check_pattern, parse_field_patterns, parse_mask_pattern
from dsindex.instruct.records import RecordProblem

TURNS: list[Any] = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        pytest.param('.conversations | select(.from == "human")', [True, False, True], id="the-spec"),
        pytest.param('.conversations[] | select(.from == "human")', [True, False, True], id="iterated"),
        pytest.param('.["conversations"]|.from=="human"', [True, False, True], id="comparison"),
        pytest.param('."conversations" | .from | startswith("g")', [False, True, False], id="second-pipe"),
        pytest.param(".conversations", [True, True, True], id="all"),
        pytest.param(".conversations | .weight", [False, False, False], id="null"),
        pytest.param('.conversations | select(.from == "bot")', [False, False, False], id="nothing"),
        pytest.param('.conversations | if .value == "b" then false else . end', [True, False, True], id="if"),
        pytest.param(".conversations | empty", [False, False, False], id="empty"),
        pytest.param('.conversations | false, (.value == "c")', [False, False, True], id="several-outputs"),
    ],
)
def test_mask_pattern_is_asked_about_each_message(pattern: str, expected: list[bool]) -> None:
    mask = parse_mask_pattern(pattern)
    assert mask.field == "conversations"
    assert mask.select(TURNS) == expected


def test_mask_pattern_is_asked_about_a_text_as_a_whole() -> None:
    assert parse_mask_pattern(".role").select("Vicuna") == [True]
    assert parse_mask_pattern('.role | select(startswith("V"))').select("Vicuna") == [True]
    assert parse_mask_pattern('.role | select(startswith("V"))').select("Mody") == [False]


def test_mask_pattern_that_fails_names_the_element() -> None:
    with pytest.raises(RecordProblem, match="fails on element 4: Cannot index number") as caught:
        parse_mask_pattern('.conversations | select(.from == "human")').select([*TURNS, 5])
    assert caught.value.kind == "pattern-error"


@pytest.mark.parametrize("value", ['a"b\\c', "日本\u2028🎉", "\u0000\ufffe\U0010ffff", "x" * 100_000])
def test_field_pattern_gives_texts_unchanged(value: str) -> None:
    (field,) = parse_field_patterns([".meta.text"])
    assert field.read({"meta": {"text": value}}) == value


def test_field_pattern_without_a_value_gives_none_and_several_are_refused() -> None:
    (field,) = parse_field_patterns({"role": ".roles[]"})
    assert field.read({"roles": []}) is None
    assert field.read({"roles": ["a"]}) == "a"
    with pytest.raises(RecordProblem, match="expected one value, got 2"):
        field.read({"roles": ["a", "b"]})
    with pytest.raises(RecordProblem, match="Cannot iterate over string"):
        field.read({"roles": "a"})


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        pytest.param("def f: f; f", "'def'", id="endless"),
        pytest.param("repeat(.)", "'repeat'", id="repeat"),
        pytest.param("[range(1e18)]", "'range'", id="range"),
        pytest.param("until(false; .)", "'until'", id="until"),
        pytest.param("recurse(.)", "'recurse'", id="recurse"),
        pytest.param("env", "'env'", id="environment"),
        pytest.param("$ENV.PATH", r"'\$'", id="environment-variable"),
        pytest.param("now", "'now'", id="clock"),
        pytest.param("input", "'input'", id="input"),
        pytest.param("reduce .[] as $x (0; .)", "'reduce'", id="reduce"),
        pytest.param('"x" * 1000000000', r"'\*'", id="repetition"),
        pytest.param(r'"\(env)"', "not allowed", id="interpolation"),
        pytest.param('test("(a+)+$")', "'test'", id="regular-expression"),
        pytest.param(".a | " + " | ".join(["[.,.]"] * 30), "at most 3 iterations", id="doubling"),
        pytest.param(".a | " + " | ".join([".+."] * 40), "8 `\\+`", id="adding"),
        pytest.param(".a" * 300, "characters", id="long"),
        pytest.param(".a | (", "syntax error", id="syntax"),
        pytest.param("halt", "'halt'", id="halt"),
        pytest.param('include "x"; .', "'include'", id="include"),
        pytest.param(".a = 1", "'='", id="assignment"),
        pytest.param(".a # comment", "'#'", id="comment"),
    ],
)
def test_patterns_refuse_what_may_not_end_or_sees_too_much(pattern: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["select(.x)", ".", ".a.b | .c", ".a[0] | .b", "(.a) | .b", ".a | .b) | (.c", ".a |"]
)
def test_mask_pattern_has_to_begin_with_one_field(pattern: str) -> None:
    with pytest.raises(InputError, match="jq pattern"):
        parse_mask_pattern(pattern)


def test_field_patterns_in_a_list_need_names_of_their_own() -> None:
    with pytest.raises(InputError, match="a name of its own"):
        parse_field_patterns([".a.text", ".b.text"])
    with pytest.raises(InputError, match="a name of its own"):
        parse_field_patterns([".a[0]"])
