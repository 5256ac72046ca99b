import json
import pickle

import pytest

from dsindex.instruction.records import (
    ConversationReader,
    RecordProblem,
    alpaca_to_messages,
    parse_record,
    sharegpt_to_messages,
)


def read_conversation(record, **fields):
    return ConversationReader(**fields).read(record)


def read_messages(record, **fields):
    return read_conversation(record, **fields).messages


USER, REPLY = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        pytest.param({"messages": [USER, REPLY]}, [USER, REPLY], id="messages"),
        pytest.param(
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
            [USER, REPLY],
            id="sharegpt",
        ),
        pytest.param(
            {"system": "Be kind.", "conversations": [{"from": "human", "value": "Hi"}]},
            [{"role": "system", "content": "Be kind."}, USER],
            id="sharegpt-system",
        ),
        pytest.param(
            {"system": "S", "messages": [USER]}, [{"role": "system", "content": "S"}, USER], id="system-of-messages"
        ),
        pytest.param(
            {"system": "S", "messages": [{"role": "system", "content": "T"}, USER]},
            [{"role": "system", "content": "T"}, USER],
            id="system-among-messages",
        ),
        pytest.param({"instruction": "Hi", "input": "", "output": "Hello"}, [USER, REPLY], id="alpaca"),
        pytest.param(
            {"system": "S", "instruction": "Add", "input": "1+1", "output": "2"},
            [
                {"role": "system", "content": "S"},
                {"role": "user", "content": "Add\n\n1+1"},
                {"role": "assistant", "content": "2"},
            ],
            id="alpaca-input",
        ),
        pytest.param(
            {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}]},
            [USER, {"role": "assistant", "tool_calls": [{"name": "f"}]}],
            id="tool-calls",
        ),
    ],
)
def test_read_messages_gives_one_shape(record, expected):
    assert read_messages(record) == expected


@pytest.mark.parametrize(
    ("record", "kind", "match"),
    [
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
    ],
)
def test_read_messages_names_what_is_wrong(record, kind, match):
    with pytest.raises(RecordProblem, match=match) as caught:
        read_messages(record)
    assert caught.value.kind == kind


def test_converters_leave_role_names_to_the_mapping():
    turns = sharegpt_to_messages({"conversations": [{"from": "narrator", "value": "x", "weight": 1}]})
    assert turns == [{"role": "narrator", "content": "x", "weight": 1}]
    assert read_messages({"messages": turns}, roles={"narrator": "system"})[0]["role"] == "system"
    assert alpaca_to_messages({"instruction": "a", "input": None, "output": "b"})[0]["content"] == "a"


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


def test_record_problem_survives_a_process_border():
    problem = pickle.loads(pickle.dumps(RecordProblem("no-turns", "nothing said")))  # noqa: S301
    assert (problem.kind, problem.reason) == ("no-turns", "nothing said")


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


@pytest.mark.parametrize(
    ("field", "match"),
    [
        ({"tools": {"name": "f"}}, "`tools`: expected a list of objects, got an object"),
        ({"tools": '{"name": "f"}'}, "`tools`: expected a list of objects, got an object in a text"),
        ({"tools": "f(x)"}, "`tools`: .*not JSON"),
        ({"tools": ["f"]}, "`tools`: expected item 1 to be an object, got a text"),
        ({"documents": ["d"]}, "`documents`: expected item 1"),
        ({"chat_template_kwargs": [1]}, "`chat_template_kwargs` to be an object, got a list"),
        ({"chat_template_kwargs": "{"}, "`chat_template_kwargs`: .*not JSON"),
        ({"chat_template_kwargs": {"messages": []}}, "cannot set 'messages'"),
        ({"messages": [{**USER, "weight": 0.5}]}, "message 1: expected `weight` to be 0 or 1, got 0.5"),
    ],
)
def test_variables_of_a_wrong_shape_are_refused(field, match):
    with pytest.raises(RecordProblem, match=match) as caught:
        read_conversation({"messages": [USER, REPLY], **field})
    assert caught.value.kind == "bad-field"


@pytest.mark.parametrize(
    ("learn", "weights", "expected"),
    [
        ("all", {}, None),
        ("all", {3: 1}, None),
        ("all", {1: 0}, (3, 4)),
        ("all", {0: 0}, None),
        ("last_turn", {}, (3, 4)),
        ("last_turn", {3: 0}, (4,)),
    ],
)
def test_learnt_replies_are_those_with_weight_in_the_wanted_turns(learn, weights, expected):
    turns = [dict(turn) for turn in (USER, REPLY, USER, REPLY, REPLY)]
    for number, weight in weights.items():
        turns[number]["weight"] = weight
    assert read_conversation({"messages": turns}, learn=learn).learnt == expected


def test_record_without_values_under_other_formats_is_recognised():
    record = {"messages": None, "instruction": None, "conversations": [{"from": "human", "value": "Hi"}]}
    assert read_messages(record) == [USER]


def test_learnt_replies_need_the_role_of_replies():
    bot = {"role": "bot", "content": "x"}
    roles = {"user": "user", "bot": "Bot"}
    with pytest.raises(RecordProblem, match=r"message 2: expected a reply .* got the role 'Bot'; name the role"):
        read_conversation({"messages": [USER, {**bot, "weight": 0}]}, roles=roles)
    with pytest.raises(RecordProblem, match="none of its messages has the role 'assistant'; `assistant_role` names"):
        read_conversation({"messages": [USER, bot]}, roles=roles, learn="last_turn")
    turns = [USER, bot, USER, bot]
    assert read_conversation({"messages": turns}, roles=roles, learn="last_turn", assistant_role="Bot").learnt == (3,)


@pytest.mark.parametrize(
    "line",
    [
        b'{"x": 18446744073709551616, "y": [{"z": -9223372036854775809}], "u": 18446744073709551615}',
        b'{"x": 1' + b"0" * 400 + b', "y": 1e999, "z": 0.1, "u": -0.0}',
        b'{"x": [NaN, Infinity], "text": "\\ud800"}',
        b' {"x": 1, "y": 2, "x": 3, "": "\\u00e9\xc3\xa9"}\r',
    ],
)
def test_a_record_is_what_python_reads(line):
    assert repr(parse_record(line)) == repr(json.loads(line.decode()))
