"""Messages as templates get them: without nulls, with reasoning under all its names, and what is refused."""

import pytest

from dsindex.errors import RecordProblem
from dsindex.instruction.records import DEFAULT_ROLES, is_learnable, read_message, read_objects

CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": None}}}
PARTS = [{"type": "text", "text": "a", "image_url": None}, {"type": "text", "text": "b"}]
THOUGHT = {"reasoning_content": "t", "thinking": "t", "reasoning": "t"}


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        pytest.param(
            {"content": "x", "role": "user", "name": None, "tool_calls": None},
            {"content": "x", "role": "user"},
            id="nulls",
        ),
        pytest.param(
            {"role": None, "from": "human", "content": None, "value": "x"}, {"role": "user", "content": "x"}, id="union"
        ),
        pytest.param(
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "assistant", "tool_calls": [CALL]},
            id="call",
        ),
        pytest.param(
            {"role": "assistant", "tool_calls": '[{"name": "f"}]'},
            {"role": "assistant", "tool_calls": [{"name": "f"}]},
            id="calls-as-json",
        ),
        pytest.param(
            {"role": "assistant", "content": "x", "reasoning": "t"},
            {"role": "assistant", "content": "x", **THOUGHT},
            id="reasoning",
        ),
        pytest.param(
            {"role": "assistant", "thinking": "b", "reasoning_content": "t"},
            {"role": "assistant", **THOUGHT, "thinking": "b"},
            id="two-names",
        ),
        pytest.param(
            {"role": "user", "content": PARTS},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            id="parts",
        ),
        pytest.param({"role": "gpt", "value": "x", "weight": 0}, {"role": "assistant", "content": "x"}, id="weight"),
        pytest.param(
            {"from": "function_call", "value": '{"name": "f", "arguments": {}}'},
            {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]},
            id="function-call",
        ),
        pytest.param(
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {
                "role": "assistant",
                "function_call": {"name": "f", "arguments": "{}"},
                "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            id="former-call",
        ),
        pytest.param(
            {"from": "function_call", "value": "f()"}, {"role": "assistant", "content": "f()"}, id="call-as-text"
        ),
        pytest.param({"from": "observation", "value": "4"}, {"role": "tool", "content": "4"}, id="observation"),
        pytest.param({"role": "developer", "content": "x"}, {"role": "developer", "content": "x"}, id="developer"),
    ],
)
def test_message_is_what_templates_expect(turn, expected):
    assert read_message(turn, 1, DEFAULT_ROLES) == expected


@pytest.mark.parametrize(
    ("turn", "match"),
    [
        pytest.param(
            {"role": "user", "content": None}, "`content` to be a text, got null; only a message with", id="null"
        ),
        pytest.param({"role": "assistant", "content": None, "tool_calls": []}, "got null", id="no-calls"),
        pytest.param({"role": None, "content": "x"}, "`role` to be a text, got null", id="null-role"),
        pytest.param(
            {"role": "user", "content": [PARTS[0], {"type": "image_url", "image_url": {}}]},
            "message 3, part 2: expected a part of type 'text', got 'image_url'",
            id="image",
        ),
        pytest.param({"role": "user", "content": ["x"]}, "part 1: expected an object", id="bare-text"),
        pytest.param({"role": "user", "content": [{"text": "x"}]}, "of type 'text', got no type", id="no-type"),
        pytest.param({"role": "user", "content": [{"type": "text", "text": 1}]}, "`text` to be a text", id="number"),
        pytest.param({"role": "user", "content": {"text": "x"}}, "a text or a list of parts", id="object"),
        pytest.param(
            {"role": "assistant", "content": "", "reasoning": ["x"]}, "`reasoning` to be a text", id="thoughts"
        ),
        pytest.param(
            {"role": "assistant", "tool_calls": {"name": "f"}}, "`tool_calls`: expected a list", id="one-call"
        ),
        pytest.param({"role": "assistant", "tool_calls": "f()"}, "`tool_calls`: .* not JSON", id="no-json"),
    ],
)
def test_message_says_what_is_wrong(turn, match):
    with pytest.raises(RecordProblem, match=match):
        read_message(turn, 3, DEFAULT_ROLES)


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        ({}, True),
        ({"weight": None, "train": None}, True),
        ({"weight": 1}, True),
        ({"weight": 0}, False),
        ({"weight": 0.0}, False),
        ({"train": True}, True),
        ({"train": False, "weight": 1}, False),
    ],
)
def test_weight_and_train_say_what_is_learnt(turn, expected):
    assert is_learnable(turn, 1) is expected


@pytest.mark.parametrize("turn", [{"weight": 0.5}, {"weight": "0"}, {"weight": 2}, {"train": 0}, {"train": "no"}])
def test_weight_that_is_neither_is_refused(turn):
    with pytest.raises(RecordProblem, match=r"message 2: expected `(weight|train)` to be"):
        is_learnable(turn, 2)


def test_objects_may_be_json_in_a_text():
    assert read_objects('[{"a": 1}]', "`tools`") == [{"a": 1}]
    for value, match in (
        ("{}", "got an object in a text"),
        ([1], "item 1 to be an object"),
        ("[1]", "item 1"),
        (1, "a number"),
    ):
        with pytest.raises(RecordProblem, match=match):
            read_objects(value, "`tools`")


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "human", "content": "Hi"},
        {"value": "", "from": "gpt"},
        {"content": "a", "from": "tool"},
        {"from": "function_call", "value": '{"name": "f", "arguments": {}}'},
        {"content": "a", "role": "function_call"},
    ],
)
def test_a_message_without_further_keys_is_read_as_any_other(turn):
    message = read_message(turn, 1, DEFAULT_ROLES)
    assert list(message.items()) == list(read_message({**turn, "name": None}, 1, DEFAULT_ROLES).items())
    assert message is not turn
