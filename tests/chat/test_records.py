"""Records as they come: each shape, and what becomes of it."""

import json

import pytest

from dsindex.chat.config import InstructionConfig
from dsindex.chat.conversations import LEARN_KEYS, TRAINED_QUESTION, ConversationReader, read_flag
from dsindex.errors import RecordProblem

USER, REPLY, SYSTEM = (
    {"role": role, "content": text} for role, text in (("user", "Hi"), ("assistant", "Yo"), ("system", "S"))
)
CITY = {"city": "Oslo"}
TURNS = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]
PARTS = [{"type": "text", "text": "a", "image_url": None}, {"type": "text", "text": "b"}]
THOUGHT = {"reasoning_content": "t", "thinking": "t", "reasoning": "t"}

CALL = json.dumps({"name": "f", "arguments": CITY})
NO_ARGUMENTS = ({}, {"arguments": None}, {"arguments": ""}, {"arguments": "null"}, {"arguments": {}})


def call(arguments=CITY, **more):
    return {**more, "type": "function", "function": {"name": "f", "arguments": arguments}}


def calling(*calls, **more):
    return {"role": "assistant", **more, "tool_calls": list(calls)}


def read(record, **options):
    return ConversationReader(InstructionConfig(**options)).read(record)


SHAPES = {
    "messages": ({"messages": [USER, REPLY]}, [USER, REPLY]),
    "ShareGPT": ({"conversations": TURNS}, [USER, REPLY]),
    "ShareGPT with system": ({"conversations": TURNS, "system_prompt": "S"}, [SYSTEM, USER, REPLY]),
    "system twice": ({"messages": [SYSTEM, USER], "system": "other"}, [SYSTEM, USER]),
    "empty media": ({"messages": [{**USER, "images": "[]"}], "images": [{"bytes": None, "path": ""}], "videos": None},
                    [USER]),
    "no call": ({"messages": [{**REPLY, "function_call": value, "tool_calls": empty} for value, empty in
                              zip(("auto", "None", "", {}, {"name": None}), (None, [], "", "[]", " "), strict=True)]},
                [REPLY] * 5),
    "call in keys": ({"messages": [{**REPLY, "name": "f", "arguments": CITY}, {"role": "tool", "content": "4"},
                                   {"role": "tool_call", "name": "f", "parameters": json.dumps(CITY)}]},
                     [{**REPLY, "tool_calls": [call()]}, {"role": "tool", "content": "4"}, calling(call())]),
    "xLAM": ({"query": "Hi", "answers": json.dumps([{"name": "f", "arguments": CITY}]), "tools": "[]"},
             [USER, calling(call())]),
    "OpenOrca": ({"system_prompt": "S", "question": "Hi", "response": "Yo"}, [SYSTEM, USER, REPLY]),
    "OpenMathInstruct": ({"problem": "Hi", "generated_solution": "Yo", "expected_answer": "4"}, [USER, REPLY]),
    "answer that is JSON": ({"prompt": "[1]", "completion": '["a"]'},
                            [{"role": "user", "content": "[1]"}, {"role": "assistant", "content": '["a"]'}]),
    "OpenAI's dump": ({"messages": [calling({"type": "function", "function": json.dumps(call()["function"])})]},
                      [calling(call())]),
    "empty columns": ({"messages": [], "prompt": "", "instruction": "", "input": "Hi", "completion": "", "output": "Yo",
                       "system": "", "system_prompt": "S"}, [SYSTEM, USER, REPLY]),
    "Alpaca with the whole prompt": ({"prompt": "Hi Yo", "instruction": "Hi", "output": "Yo"}, [USER, REPLY]),
    "null messages": ({"messages": None, "conversations": TURNS}, [USER, REPLY]),
    "JSON in a text": ({"messages": json.dumps([USER, REPLY])}, [USER, REPLY]),
    "list of JSON": ({"messages": [json.dumps(USER), json.dumps(REPLY)]}, [USER, REPLY]),
    "object of lists": ({"messages": {"role": ["user", "assistant"], "content": ["Hi", "Yo"]}}, [USER, REPLY]),
    "both role keys": ({"messages": [{"role": None, "from": "Human", "content": None, "value": "Hi"}]}, [USER]),
    "pairs of ms-swift": ({"messages": [{"human": "Hi", "assistant": "Yo", "parameters": {}}] * 2}, [USER, REPLY] * 2),
    "pairs of xtuner": ({"conversation": [{"system": "S", "input": "Hi", "output": "Yo", "reasoning": "t"}]},
                        [SYSTEM, USER, {**REPLY, **THOUGHT}]),
    "Alpaca's pairs": ({"messages": [{"instruction": "a", "input": "b", "output": "Yo"}]},
                       [{"role": "user", "content": "a\n\nb"}, REPLY]),
    "lists of TRL": ({"prompt": [SYSTEM, USER], "completion": [REPLY]}, [SYSTEM, USER, REPLY]),
    "prompt and response": ({"prompt": "Hi", "response": "Yo"}, [USER, REPLY]),
    "query and response": ({"query": "Hi", "response": "Yo", "history": [["Hi", "Yo"]]}, [USER, REPLY] * 2),
    "question and answer": ({"question": "Hi", "answer": "Yo"}, [USER, REPLY]),
    "Alpaca with input": ({"instruction": "Add", "input": "1+1", "output": "Yo", "system": "S"},
                          [SYSTEM, {"role": "user", "content": "Add\n\n1+1"}, REPLY]),
    "Dolly": ({"instruction": "Hi", "context": "c", "response": "Yo"}, [{"role": "user", "content": "Hi\n\nc"}, REPLY]),
    "input and output": ({"input": "Hi", "output": "Yo"}, [USER, REPLY]),
    "parts": ({"messages": [{"role": "user", "content": PARTS}]},
              [{"role": "user", "content": [{"type": "text", "text": text} for text in "ab"]}]),
    "parts of LLaMA-Factory": ({"messages": [{"role": "assistant", "content": [
        {"type": kind, "value": value} for kind, value in (("reasoning", "t"), ("text", "Yo"), ("tool_call", CALL))]}]},
        [calling(json.loads(CALL), content=[{"type": "text", "text": "Yo"}], **THOUGHT)]),
    "nulls": ({"messages": [{**USER, "name": None, "tool_calls": None}]}, [USER]),
    "name": ({"messages": [{**USER, "name": "Al"}]}, [{**USER, "name": "Al"}]),
    "tool_response": ({"messages": [{"role": "tool_response", "content": "4"}]}, [{"role": "tool", "content": "4"}]),
    "reasoning": ({"messages": [{**REPLY, "reasoning": "t"}]}, [{**REPLY, **THOUGHT}]),
    "two names of reasoning": ({"messages": [{"role": "assistant", "thinking": "b", "reasoning_content": "t"}]},
                               [{"role": "assistant", **THOUGHT, "thinking": "b"}]),
    "calls of JSON": ({"messages": [{"role": "assistant", "tool_calls": [json.dumps(call())]}]}, [calling(call())]),
    "null argument": ({"messages": [calling(call({"a": None}))]}, [calling(call({"a": None}))]),
    "no arguments": ({"messages": [calling({"name": "f", **arguments}) for arguments in NO_ARGUMENTS]},
                     [calling({"name": "f", "arguments": {}})] * len(NO_ARGUMENTS)),
    "args of LangChain": ({"messages": [calling({"name": "f", "args": CITY})]},
                          [calling({"name": "f", "args": CITY, "arguments": CITY})]),
    "former function_call": ({"messages": [{"role": "assistant", "content": None,
                                            "function_call": {"name": "f", "arguments": json.dumps(CITY)}}]},
                             [calling(call())]),
}  # fmt: skip
"""Shape -> record, messages."""


@pytest.mark.quick(4)
@pytest.mark.parametrize("shape", SHAPES)
def test_shape_becomes_messages(shape):
    record, expected = SHAPES[shape]
    assert read(record).messages == expected


CALLS = {
    "object": ('{"name": "f", "arguments": {"city": "Oslo"}}', [CITY]),
    "parameters": ('{"name": "f", "parameters": {"city": "Oslo"}}', [CITY]),
    "arguments in a text": ('{"name": "f", "arguments": "{\\"city\\": \\"Oslo\\"}"}', [CITY]),
    "OpenAI's form": ('[{"type": "function", "function": {"name": "f"}}]', [{}]),
    "single quotes": ("""{"name": "f", "arguments": '{"city": "Oslo"}'}""", [CITY]),
    "lines": ('{"name": "f", "arguments": {}}\n{"name": "f", "arguments": {"city": "Oslo"}}', [{}, CITY]),
    "one object": ({"name": "f", "arguments": {"city": "Oslo"}}, [CITY]),
    "tags": ('<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>', [CITY]),
}


@pytest.mark.parametrize("role", ["function_call", "tool_call"])
@pytest.mark.parametrize("form", CALLS)
def test_turn_of_a_call_is_a_call(form, role):
    text, arguments = CALLS[form]
    record = {"conversations": [{"from": "human", "value": "Hi"}, {"from": role, "value": text}]}
    assert read(record).messages == [USER, calling(*map(call, arguments))]
    assert read(record, role_mapping={role: "assistant"}).messages == [USER, calling(*map(call, arguments))]


@pytest.mark.parametrize("key", LEARN_KEYS)
@pytest.mark.parametrize("make", [bool, int, float])
def test_a_turn_that_says_that_it_is_not_trained_on_is_not(key, make):
    wrong, right = (make(is_trained is LEARN_KEYS[key]) for is_trained in (False, True))
    turns = [{**USER, key: None}, {**REPLY, key: wrong}, USER, {**REPLY, key: right}]
    conversation = read({"messages": turns})
    assert (conversation.messages, conversation.trained) == ([USER, REPLY] * 2, {3})
    with pytest.raises(RecordProblem, match=f"the record says .*: `{key}`") as caught:
        read({"messages": [USER, REPLY], key: wrong})
    assert caught.value.kind == "no-trained-tokens"
    with pytest.raises(RecordProblem, match=r"the record says .*: `label`, `kto_tag`"):
        read({"messages": [USER, {**REPLY, key: right}], "kto_tag": True, "label": make(False)})


@pytest.mark.parametrize("value", ["no", 0.5, 2, [0], {"a": 1}])
@pytest.mark.parametrize("key", ["weight", "loss", "masked"])
def test_a_key_that_steers_what_is_trained_on_must_be_readable(key, value):
    for record in ({"messages": [{**REPLY, key: value}]}, {"messages": [REPLY], key: value}):
        with pytest.raises(RecordProblem, match=f"`{key}` is .*, not true, false, 1 or 0"):
            read(record)


def test_keys_that_are_ignored_are_noted():
    record = {"question": "Hi", "answer": "Yo", "solution": "No", "context": "", "thinking": "t", "choices": ["Yo"]}
    assert read(record).notes == ("answer", "choices", "thinking")
    assert read({"messages": [SYSTEM, USER], "system": "S", "prompt": "Hi"}).notes == ()
    assert read({"messages": [SYSTEM, USER], "system": "x", "chosen": [], "unmask": 1}).notes == ("system", "unmask")
    assert read({"chosen": [USER], "rejected": [USER]}, turns_field="chosen").notes == ("rejected",)
    assert read({"messages": [REPLY, USER], "output": "Yo", "history": [["Hi", "Yo"]]}).notes == ("history", "output")
    assert read({"messages": [USER, REPLY], "response": "Yo", "conversation": []}).notes == ()
    assert read({"messages": [USER, REPLY], "conversations": TURNS * 2}).notes == ("conversations",)


def test_keys_must_agree_that_a_turn_is_trained_on():
    assert read({"messages": [{**USER, "train": True}, REPLY]}).notes == (TRAINED_QUESTION,)
    assert read_flag({"weight": 1, "train": False}, "") is False
    assert read_flag({"weight": 1.0, "masked": False, "loss": None}, "") is True
    with pytest.raises(RecordProblem, match="message 1: `mask` may mean either"):
        read({"messages": [{**REPLY, "mask": 1}]})


def test_a_record_may_mask_a_role_as_in_nemo():
    turns = [{"from": "User", "value": "Hi"}, {"from": "Assistant", "value": "Yo"}]
    assert read({"mask": "User", "system": "", "conversations": turns}).trained is None
    assert read({"mask": "Assistant", "conversations": turns}).trained == frozenset()
    for mask in ("Robot", [0, 1]):
        with pytest.raises(RecordProblem, match=r"unknown role|`mask` is a list, not a text"):
            read({"mask": mask, "conversations": turns})


def test_trained_replies_need_the_role_of_replies():
    assert read({"prompt": [USER, REPLY, USER], "completion": [REPLY]}).trained == {3}
    assert read({"messages": [USER, REPLY] * 2, "only_last": True}).trained == {3}
    assert not read({"conversation": [{"input": "Hi", "output": "Yo", "output_with_loss": False}]}).trained
    bot, roles = {"role": "bot", "content": "x"}, {"user": "user", "bot": "Bot"}
    with pytest.raises(RecordProblem, match=r"message 2: .* its role 'Bot' is not the role of replies"):
        read({"messages": [USER, {**bot, "weight": 0}]}, role_mapping=roles)
    with pytest.raises(RecordProblem, match="no message of the last turn has the role of replies"):
        read({"messages": [USER, bot]}, role_mapping=roles, learn="last_turn")
    options = {"role_mapping": roles, "learn": "last_turn", "assistant_role": "Bot"}
    assert read({"messages": [USER, bot] * 2}, **options).trained == {3}


SPANS = {
    "axolotl": {"train_detail": [{"begin_offset": 0, "end_offset": 1, "train": False},
                                 {"begin_offset": 2, "end_offset": 3, "train": True}]},
    "Fast-LLM": {"loss_masking_spans": [[0, 1]]},
    "JSON": {"training_detail": '[{"begin_offset": 0, "end_offset": 1, "train": false}]'},
    "parts": {"content": [{"type": "text", "text": "ab", "train": False}, {"type": "text", "text": "cd", "weight": 1}]},
}  # fmt: skip


@pytest.mark.parametrize("form", SPANS)
def test_spans_of_a_turn_are_not_trained_on(form):
    conversation = read({"messages": [USER, {"role": "assistant", "content": "abcd", **SPANS[form]}]})
    assert conversation.masked_spans == {1: [(0, 2)]}
    assert conversation.messages[1].keys() == {"role", "content"}


@pytest.mark.parametrize("spans", [[[0, 4]], [[1, -1]], ["ab"], [{"begin_offset": 0, "end_offset": 1}], 5, "x"])
def test_spans_that_are_none_of_the_text_are_bad(spans):
    with pytest.raises(RecordProblem, match=r"message 1: `train_detail`: .* is not a span of the text"):
        read({"messages": [{"role": "assistant", "content": "abcd", "train_detail": spans}]})


BAD = {
    "no conversation": ({"text": "x"}, "missing-field", "its keys are 'text'"),
    "preferences": ({"chosen": [USER]}, "missing-field", "`turns_field: chosen` reads preferred conversations; its"),
    "call without name": ({"messages": [calling({"name": "", "arguments": "{}"})]}, "bad-call", "1: .* has no `name`"),
    "name as function": ({"messages": [calling({"function": "f", "arguments": {}})]}, "bad-call", "has no `name`: "),
    "kwargs of a call": ({"messages": [calling({"name": "f", "kwargs": CITY})]}, "bad-call", "has no `arguments`: "),
    "answers": ({"question": "Hi", "answers": ["Yo"]}, "bad-field", "`answers`: item 1 is a string, not an object"),
    "no turns": ({"messages": []}, "no-turns", "no messages"),
    "no list": ({"messages": {}}, "bad-field", "`messages` is an object, not a list"),
    "no object": ({"messages": ["x"]}, "bad-field", "message 1 is a string, not an object"),
    "no role": ({"messages": [{"content": "x"}]}, "missing-field", "message 1: .*role"),
    "unknown role": ({"messages": [{"role": "bard", "content": ""}]}, "unknown-role", "role 'bard'; add it to `role_m"),
    "no content": ({"messages": [USER, {"role": "user"}]}, "missing-field", "message 2 has no text under `content`"),
    "no calls": ({"messages": [{"role": "assistant", "content": None, "tool_calls": []}]}, "missing-field", "content"),
    "a number": ({"messages": [{"role": "user", "content": 5}]}, "bad-field", "is a number, not a text or"),
    "an image": ({"messages": [{"role": "user", "content": [PARTS[0], {"type": "image_url"}]}]}, "bad-field",
                 "message 1, part 2: its type is 'image_url'"),
    "a thought twice": ({"messages": [{"role": "assistant", "content": [{"type": "reasoning", "value": "t"}],
                                       "reasoning_content": "t"}]}, "bad-field", "part 1: its type is 'reasoning'"),
    "bare text": ({"messages": [{"role": "user", "content": ["x"]}]}, "bad-field", "part 1 is a string, not an object"),
    "thoughts": ({"messages": [{**REPLY, "reasoning": ["x"]}]}, "bad-field", "`reasoning` is a list, not a text"),
    "one call": ({"messages": [{"role": "assistant", "tool_calls": {"name": "f"}}]}, "bad-field", "an object, not"),
    "system": ({"system": 5, "messages": [USER]}, "bad-field", "`system`"),
    "two texts": ({"messages": [{**USER, "value": "No"}]}, "bad-field", "`content` and `value` have different texts"),
    "uneven lists": ({"messages": {"role": ["user"], "content": []}}, "bad-field", "lists have different lengths"),
    "history": ({"query": "q", "response": "r", "history": ["x"]}, "bad-field", "`history`: round 1"),
    "an answer": ({"instruction": "x", "output": 1}, "bad-field", "`output` is a number, not a text"),
    "tools": ({"messages": [USER], "tools": "f(x)"}, "bad-field", "`tools` is a string, not a list"),
    "a tool": ({"messages": [USER], "tools": ["f"]}, "bad-field", "`tools`: item 1 is a string, not an object"),
    "kwargs": ({"messages": [USER], "chat_template_kwargs": "{"}, "bad-field", "is a string, not an object"),
    "a variable": ({"messages": [USER], "chat_template_kwargs": {"messages": [1]}}, "bad-field", "cannot set"),
    "thinking": ({"messages": [USER], "enable_thinking": "yes"}, "bad-field", "is a string, not true or false"),
    "several flags": ({"messages": [USER, {**REPLY, "train": "x", "loss": "x", "learn": "x"}]}, "bad-field", "`train`"),
    **{text: ({"messages": [{"role": "tool_call", "content": text}]}, "bad-call", "message 1.* tool call")
       for text in ("f()", "", '{"arguments": {}}', "[]", '{"name": "f"} and more', '"f"', "<tool_call>{}")},
    "image bytes": ({"messages": [USER], "image": {"bytes": 9, "path": None}}, "bad-field", "has `image`, but only"),
    "image of a pair": ({"conversation": [{"input": "", "output": "", "image": "x"}]}, "bad-field", "2 has `image`"),
    **{key: ({"messages": [USER], key: ["x.jpg"]}, "bad-field", f"the record has `{key}`, but only text")
       for key in ("images", "image", "videos", "audios", "video_path", "image_paths", "sound")},
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_what_cannot_be_read_is_named(fault):
    record, kind, match = BAD[fault]
    with pytest.raises(RecordProblem, match=match) as caught:
        read(record)
    assert caught.value.kind == kind


def test_turns_may_have_a_key_of_their_own():
    assert read({"dialog": TURNS, "messages": 1}, turns_field="dialog").messages == [USER, REPLY]
    with pytest.raises(RecordProblem, match="needs the key dialog; its keys are 'prompt, completion'"):
        read({"prompt": "Hi", "completion": "Yo"}, turns_field="dialog")


def test_lone_surrogates_are_bad():
    text = '[{"type": "text", "text": "\\ud800"}]'
    with pytest.raises(RecordProblem, match="lone surrogate") as caught:
        ConversationReader().read_line(b'{"messages": [{"role": "user", "content": %b}]}' % text.encode())
    assert caught.value.kind == "bad-text"


def test_variables_of_a_record_are_those_of_its_template():
    tools, documents = [{"name": "f"}], [{"title": "t"}]
    record = {"messages": [USER, REPLY], "tools": json.dumps(tools), "documents": documents}
    record["chat_template_kwargs"] = {"enable_thinking": False, "date_string": None, "tools": None}
    for column in (None, True):
        expected = {"enable_thinking": False, "tools": tools, "documents": documents}
        assert read({**record, "enable_thinking": column}).variables == expected
    assert read({"messages": [USER], "enable_thinking": False}).variables == {"enable_thinking": False}
    for blank in (" ", "null"):
        blank_record = {"messages": [USER], "tools": blank, "functions": "null", "documents": None}
        blank_record["chat_template_kwargs"] = '{"a": 1}'
        assert read(blank_record).variables == {"a": 1}
    assert read({"messages": [USER], "tools": [], "documents": "[]"}).variables == {}  # as in TRL
    functions = [{"type": "function", "function": {"name": "f", "parameters": CITY}}]
    texts = [{"type": "function", "function": json.dumps({"name": "f", "parameters": json.dumps(CITY)})}]
    for record in ({"tools": texts}, {"available_tools": functions}, {"functions": [functions[0]["function"]]}):
        assert read({"messages": [USER], **record}).variables == {"tools": functions}
