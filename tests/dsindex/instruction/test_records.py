"""Records of every format as messages, what is learnt of them, and what is refused."""

import json

import pytest

from dsindex.instruction.records import (
    DEFAULT_ROLES,
    ConversationReader,
    RecordProblem,
    is_learnable,
    parse_record,
    read_message,
    read_objects,
)


def read_conversation(record, **fields):
    return ConversationReader(**fields).read(record)


def read_messages(record, **fields):
    return read_conversation(record, **fields).messages


USER, REPLY = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}


SYSTEM = {"role": "system", "content": "S"}


@pytest.mark.parametrize(("record", "expected"), [
    ({"messages": [USER, REPLY]}, [USER, REPLY]),
    ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}, [USER, REPLY]),
    ({"system": "S", "conversations": [{"from": "human", "value": "Hi"}]}, [SYSTEM, USER]),
    ({"system": "S", "messages": [USER]}, [SYSTEM, USER]),
    ({"system": "T", "messages": [SYSTEM, USER]}, [SYSTEM, USER]),
    ({"instruction": "Hi", "input": "", "output": "Hello"}, [USER, REPLY]),
    ({"system": "S", "instruction": "Add", "input": "1+1", "output": "Hello"},
     [SYSTEM, {"role": "user", "content": "Add\n\n1+1"}, REPLY]),
    ({"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}]},
     [USER, {"role": "assistant", "tool_calls": [{"name": "f"}]}]),
], ids=["messages", "sharegpt", "sharegpt-system", "system-of-messages", "system-among-messages", "alpaca",
        "alpaca-input", "tool-calls"])  # fmt: skip
def test_read_messages_gives_one_shape(record, expected):
    assert read_messages(record) == expected


@pytest.mark.parametrize(("record", "kind", "match"), [
    pytest.param({"text": "x"}, "missing-field", "the record has: text", id="no-conversation"),
    pytest.param({"messages": []}, "no-turns", "empty list", id="no-turns"),
    pytest.param({"conversations": []}, "no-turns", "empty list", id="no-turns-sharegpt"),
    pytest.param({"messages": {}}, "bad-field", "got an object", id="not-a-list"),
    pytest.param({"conversations": "x"}, "bad-field", "got a text", id="sharegpt-not-a-list"),
    pytest.param({"messages": ["x"]}, "bad-field", "message 1: expected an object", id="not-an-object"),
    pytest.param({"messages": [{"content": "x"}]}, "missing-field", "message 1: .*role", id="no-role"),
    pytest.param({"messages": [USER, {"role": "user"}]}, "missing-field", "message 2: .*content", id="no-content"),
    pytest.param({"messages": [{"role": "user", "content": None}]}, "bad-field", "got null", id="null-content"),
    pytest.param({"messages": [{"role": "user", "content": 5}]}, "bad-field", "got a number", id="number"),
    pytest.param({"messages": [{"role": "bard", "content": ""}]}, "unknown-role", "got 'bard'", id="unknown-role"),
    pytest.param({"system": 5, "conversations": [USER]}, "bad-field", "`system`", id="sharegpt-system"),
    pytest.param(
        {"instruction": "x", "output": "y", "history": [["q", "a"]]}, "bad-field", "`history`", id="alpaca-history"
    ),
    pytest.param({"instruction": "x"}, "missing-field", "output", id="alpaca-no-output"),
    pytest.param({"instruction": "x", "output": 1}, "bad-field", "`output`", id="alpaca-number"),
])  # fmt: skip
def test_read_messages_names_what_is_wrong(record, kind, match):
    with pytest.raises(RecordProblem, match=match) as caught:
        read_messages(record)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (b"[1]", "got a list"),
        (b"\xff{}", "."),
        (b'{"a": ' + b"1" * 5000 + b"}", "."),
        (b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}", "at most 900 objects and lists"),
        (b"{", r"does not end on this line .* `jq -c \. FILE`"),
        (b"[", "does not end on this line"),
        (b'  {"messages": [', "does not end on this line"),
        (b'[{"messages": []}]', r"expected a JSON object, got a list; write each record .*jq -c '\.\[\]'"),
        (b'"role": "user",', "Extra data"),
    ],
    ids=["list", "utf-8", "digits", "deep", "object-goes-on", "list-goes-on", "spaces", "whole-list", "part"],
)
def test_parse_record_refuses_what_is_no_object(line, match):
    with pytest.raises(RecordProblem, match=match) as caught:
        parse_record(line)
    assert caught.value.kind == "bad-json"


def test_variables_of_a_record_are_those_of_its_template():
    tools, documents = [{"name": "f"}], [{"title": "t"}]
    record = {
        "messages": [USER, REPLY],
        "tools": json.dumps(tools),
        "documents": documents,
        "chat_template_kwargs": {"enable_thinking": False, "date_string": None, "tools": None},
    }
    assert read_conversation(record).variables == {"enable_thinking": False, "tools": tools, "documents": documents}
    given = {"messages": [USER], "tools": " ", "documents": None, "chat_template_kwargs": '{"a": 1}'}
    assert read_conversation(given).variables == {"a": 1}
    assert read_conversation({"messages": [USER], "tools": []}).variables == {"tools": []}


@pytest.mark.parametrize(("field", "match"), [
    ({"tools": {"name": "f"}}, "`tools`: expected a list of objects, got an object"),
    ({"tools": '{"name": "f"}'}, "`tools`: expected a list of objects, got an object in a text"),
    ({"tools": "f(x)"}, "`tools`: .*not JSON"),
    ({"tools": ["f"]}, "`tools`: expected item 1 to be an object, got a text"),
    ({"documents": ["d"]}, "`documents`: expected item 1"),
    ({"chat_template_kwargs": [1]}, "`chat_template_kwargs` to be an object, got a list"),
    ({"chat_template_kwargs": "{"}, "`chat_template_kwargs`: .*not JSON"),
    ({"chat_template_kwargs": {"messages": []}}, "cannot set 'messages'"),
    ({"messages": [{**USER, "weight": 0.5}]}, "message 1: expected `weight` to be 0 or 1, got 0.5"),
])  # fmt: skip
def test_variables_of_a_wrong_shape_are_refused(field, match):
    with pytest.raises(RecordProblem, match=match) as caught:
        read_conversation({"messages": [USER, REPLY], **field})
    assert caught.value.kind == "bad-field"


@pytest.mark.parametrize(("learn", "weights", "expected"), [
    ("all", {}, None),
    ("all", {3: 1}, None),
    ("all", {1: 0}, (3, 4)),
    ("all", {0: 0}, None),
    ("last_turn", {}, (3, 4)),
    ("last_turn", {3: 0}, (4,)),
])  # fmt: skip
def test_learnt_replies_are_those_with_weight_in_the_wanted_turns(learn, weights, expected):
    turns = [dict(turn) for turn in (USER, REPLY, USER, REPLY, REPLY)]
    for number, weight in weights.items():
        turns[number]["weight"] = weight
    assert read_conversation({"messages": turns}, learn=learn).learnt == expected


def test_learnt_replies_need_the_role_of_replies():
    bot = {"role": "bot", "content": "x"}
    roles = {"user": "user", "bot": "Bot"}
    with pytest.raises(RecordProblem, match=r"message 2: expected a reply .* got the role 'Bot'; name the role"):
        read_conversation({"messages": [USER, {**bot, "weight": 0}]}, roles=roles)
    with pytest.raises(RecordProblem, match="none of its messages has the role 'assistant'; `assistant_role` names"):
        read_conversation({"messages": [USER, bot]}, roles=roles, learn="last_turn")
    turns = [USER, bot, USER, bot]
    assert read_conversation({"messages": turns}, roles=roles, learn="last_turn", assistant_role="Bot").learnt == (3,)


@pytest.mark.parametrize("line", [
    b'{"x": 18446744073709551616, "y": [{"z": -9223372036854775809}], "u": 18446744073709551615}',
    b'{"x": 1' + b"0" * 400 + b', "y": 1e999, "z": 0.1, "u": -0.0}',
    b'{"x": [NaN, Infinity], "text": "\\ud800"}',
    b' {"x": 1, "y": 2, "x": 3, "": "\\u00e9\xc3\xa9"}\r',
])  # fmt: skip
def test_a_record_is_what_python_reads(line):
    assert repr(parse_record(line)) == repr(json.loads(line.decode()))


CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": None}}}
PARTS = [{"type": "text", "text": "a", "image_url": None}, {"type": "text", "text": "b"}]
THOUGHT = {"reasoning_content": "t", "thinking": "t", "reasoning": "t"}


FORMER = {"function_call": {"name": "f", "arguments": "{}"}}
MADE = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}


def by(role, **more):
    return {"role": role, **more}


@pytest.mark.parametrize(("turn", "expected"), [
    ({"content": "x", "role": "user", "name": None, "tool_calls": None}, by("user", content="x")),
    ({"role": None, "from": "human", "content": None, "value": "x"}, by("user", content="x")),
    (by("assistant", content=None, tool_calls=[CALL]), by("assistant", tool_calls=[CALL])),
    (by("assistant", tool_calls='[{"name": "f"}]'), by("assistant", tool_calls=[{"name": "f"}])),
    (by("assistant", content="x", reasoning="t"), by("assistant", content="x", **THOUGHT)),
    (by("assistant", thinking="b", reasoning_content="t"), by("assistant", **{**THOUGHT, "thinking": "b"})),
    (by("user", content=PARTS), by("user", content=[{"type": "text", "text": text} for text in "ab"])),
    (by("gpt", value="x", weight=0), by("assistant", content="x")),
    ({"from": "function_call", "value": '{"name": "f", "arguments": {}}'}, MADE),
    (by("assistant", content=None, **FORMER), by("assistant", **FORMER, tool_calls=[{"type": "function",
     "function": {"name": "f", "arguments": "{}"}}])),
    ({"from": "function_call", "value": "f()"}, by("assistant", content="f()")),
    ({"from": "observation", "value": "4"}, by("tool", content="4")),
    (by("developer", content="x"), by("developer", content="x")),
], ids=["nulls", "union", "call", "calls-as-json", "reasoning", "two-names", "parts", "weight", "function-call",
        "former-call", "call-as-text", "observation", "developer"])  # fmt: skip
def test_message_is_what_templates_expect(turn, expected):
    assert read_message(turn, 1, DEFAULT_ROLES) == expected


@pytest.mark.parametrize(("turn", "match"), [
    pytest.param({"role": "user", "content": None}, "`content` to be a text, got null; only a message with", id="null"),
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
    pytest.param({"role": "assistant", "content": "", "reasoning": ["x"]}, "`reasoning` to be a text", id="thoughts"),
    pytest.param({"role": "assistant", "tool_calls": {"name": "f"}}, "`tool_calls`: expected a list", id="one-call"),
    pytest.param({"role": "assistant", "tool_calls": "f()"}, "`tool_calls`: .* not JSON", id="no-json"),
])  # fmt: skip
def test_message_says_what_is_wrong(turn, match):
    with pytest.raises(RecordProblem, match=match):
        read_message(turn, 3, DEFAULT_ROLES)


@pytest.mark.parametrize(("turn", "expected"), [
    ({}, True),
    ({"weight": None, "train": None}, True),
    ({"weight": 1}, True),
    ({"weight": 0}, False),
    ({"weight": 0.0}, False),
    ({"train": True}, True),
    ({"train": False, "weight": 1}, False),
])  # fmt: skip
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
