"""Drawn records: nothing is lost, no thought or prompt is trained on, none raises, and time is linear in the text."""

import json
import random
import re
import time

import pytest

from dsindex.chat import conversations as c
from dsindex.chat.config import CALL_ROLES, parse_config
from dsindex.chat.conversations import ConversationReader
from dsindex.chat.encode import InstructionEncoder
from dsindex.chat.thoughts import TAG_PAIRS
from dsindex.errors import RecordProblem
from tests.support.chat_tokenizers import train, trained_text

TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.reasoning_content or '' }}{{ m.content or '' }}{{ m.tool_calls | tojson if m.tool_calls }}"
    "</s>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


WORD = re.compile(r"word\d+x")


def encoder(options="", template=TEMPLATE):
    config = f"chat_template: {json.dumps(template)}\nspecial_tokens: {{eos_token: </s>}}\n{options}"
    return InstructionEncoder(parse_config(config), train("bytes"))


def draw_step(rng, word):
    """Turns that a model makes in one step, some of which are calls."""
    turns = [{"role": "assistant", "content": word()}] if rng.random() < 0.7 else []
    for _ in range(rng.randrange(not turns, 4)):
        call = json.dumps({"name": word(), rng.choice(c.CALL_KEYS): rng.choice([{"a": word()}, '{"a": 1}'])})
        turn = {"role": rng.choice([*CALL_ROLES]), "content": call}
        if rng.random() < 0.6:
            before, after = (rng.choice(["", word(), f"<think>{word()}</think>", f"{word()}</think>"]) for _ in "ab")
            turn["content"] = f"{before}<tool_call> {call} </tool_call>{after}"
        if rng.random() < 0.3:
            turn[rng.choice(c.REASONING_KEYS)] = word()
        if rng.random() < 0.1:
            turn["loss"] = False
        turns.append(turn)
    return turns


@pytest.mark.parametrize("seed", range(60))
def test_nothing_of_a_turn_with_calls_is_lost(seed):
    rng, words = random.Random(seed), iter(f"word{number}x" for number in range(1000))
    steps = [draw_step(rng, words.__next__) for _ in range(3)]
    turns = [turn for step in steps for turn in ({"role": "user", "content": next(words)}, *step)]
    flags = [{turn.get("loss", True) for turn in step} for step in steps]
    if any(len(flag) > 1 for flag in flags):
        with pytest.raises(RecordProblem, match="only one of them is trained on"):
            ConversationReader().read({"messages": turns})
        return
    conversation = ConversationReader().read({"messages": turns})
    replies = [message for message in conversation.messages if message["role"] == "assistant"]
    for step, reply in zip(steps, replies, strict=True):
        assert set(WORD.findall(json.dumps(step))) == set(WORD.findall(json.dumps(reply)))
    trained = conversation.trained if conversation.trained is not None else replies
    assert len(trained) == flags.count({True})


@pytest.mark.parametrize("seed", range(60))
def test_replies_in_a_prompt_are_not_trained_on(seed):
    rng = random.Random(seed)
    asked, answered = rng.choice(c.QUESTION_KEYS), rng.choice(c.ANSWER_KEYS[:-1])
    call = {"role": "tool_call", "content": '{"name": "early"}'}
    turns = [{"role": "user", "content": "up"}, {"role": "assistant", "content": "early"}]
    prompt = [*turns, *rng.choice([[], [call], [call, call]]), {"role": "user", "content": "who"}]
    reply = rng.choice(["you", [{"role": "assistant", "content": "you"}]])
    record = {asked: rng.choice([prompt, json.dumps(prompt)]), answered: reply} | rng.choice([{}, {"system": "by"}])
    assert trained_text(encoder().encode(record)) == "you</s>"
    with pytest.raises(RecordProblem, match="only one of them"):
        ConversationReader().read({"prompt": prompt[:2], "completion": [call]})


@pytest.mark.parametrize("seed", range(100))
def test_thoughts_are_masked_or_dropped_and_words_stay_apart(seed):
    """A family's tags count if the template has them, or the reply begins with them."""
    rng = random.Random(seed)
    opening, closing = rng.choice(TAG_PAIRS)
    is_known = opening == "<think>" or rng.random() < 0.7
    alone = rng.random() < 0.3 and not closing.startswith(("<|end|>", "<|eom|>"))
    first = "" if alone or not is_known else rng.choice(["", "who", "who ", "who\n\n"])
    blank = rng.choice(["", " ", "\n\n"])
    thought = f"{'' if alone and is_known else opening}up{blank}{closing}{blank}"
    again = f"{opening}up{closing}" if is_known else ""
    reply = f"{first}{thought}you{again}{rng.choice(['', f' {opening}up'] if is_known else [''])}"
    template = TEMPLATE + ("" if not is_known else "{# " + opening + closing + " #}")
    record = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": reply}]}
    for mode in ("mask", "drop"):
        encoded = encoder(f"reasoning: {mode}", template).encode(record)
        text = trained_text(encoded)
        assert "up" not in text
        # A token that begins in a tag and ends in a word is trained on.
        assert mode == "mask" or text.replace("</s>", "").split() == [*first.split(), "you"]
        assert "you" in text
        assert ("up" in train("bytes").decode(encoded.tokens)) is (mode == "mask")


def test_tags_that_are_not_known_are_noted_and_a_lone_thought_is_not_trained_on():
    reply = {"role": "assistant", "content": "So <my-thinking>up</my-thinking> you"}
    for mode, notes in (("learn", ()), ("mask", (c.OTHER_THOUGHTS,)), ("drop", (c.OTHER_THOUGHTS,))):
        assert encoder(f"reasoning: {mode}").encode({"messages": [reply]}).notes == notes
        cut = {"messages": [{"role": "assistant", "content": "<think>up"}, reply]}
        text = trained_text(encoder(f"reasoning: {mode}").encode(cut))
        assert text.startswith("So") is (mode != "learn")
        quoted = {"messages": [{"role": "assistant", "content": "who `<think>` or `</think>` you"}]}
        assert trained_text(encoder(f"reasoning: {mode}").encode(quoted)).startswith("who `<think>` or `</think>` you")


HOSTILE = [("tool_call", "<tool_call>", " "), ("tool_call", '{"arguments": \'{', "}'")]
HOSTILE += [("tool_call", "", repeated) for repeated in ("<tool_call>", '"arguments": \'{', "{}")]
HOSTILE += [("assistant", "", repeated) for repeated in ("<think>", "</think>", "<think>a</think> b")]


@pytest.mark.parametrize(("role", "first", "repeated"), HOSTILE)
@pytest.mark.parametrize("reasoning", ["mask", "drop"])
def test_the_work_for_a_text_is_linear_in_its_length(role, first, repeated, reasoning):
    """CPU time of 8 times the text is 8 times as much, and would be 64 times as much if it were quadratic."""
    encode = encoder(f"reasoning: {reasoning}")

    def work(size):
        line = json.dumps({"messages": [{"role": role, "content": first + repeated * size}]}).encode()
        begin = time.thread_time()
        for _ in encode.encode_lines([line]):
            pass
        return time.thread_time() - begin

    assert min(work(8_000) for _ in range(3)) < 24 * max(min(work(1_000) for _ in range(3)), 0.0005)


MESSAGE_KEYS = [*c.ROLE_KEYS, *c.TEXT_KEYS, *c.REASONING_KEYS, *c.LEARN_KEYS, *c.SPAN_KEYS, *c.MEDIA_KEYS]
MESSAGE_KEYS += ["tool_calls", "function_call", "name", "mask", "type", "text", "function", *c.CALL_KEYS]
MESSAGE_KEYS += [*c.MESSAGE_KEYS, "system"]
RECORD_KEYS = [*c.TURN_KEYS, *c.QUESTION_KEYS, *c.ANSWER_KEYS, *c.CONTEXT_KEYS, *c.IGNORED_KEYS, *c.UNWANTED_KEYS]
RECORD_KEYS += ["mask", "tools", "functions", "documents", "history", "chat_template_kwargs"]
RECORD_KEYS += [*c.VARIABLE_KEYS, *c.SYSTEM_KEYS]
TEXTS = ["", " ", "x", "user", "assistant", "tool", "tool_call", "auto", "<think>a</think>b", "</think>", "["]
TEXTS += [
    "\ud800",
    "\n\u0085",
    "[]",
    "<tool_call>",
    '[{"role": "user", "content": "Hi"}]',
    '{"name": "f"}',
    "[" * 800 + "]" * 800,
]
SHAPES = [None, True, False, 0, 1, -1, 10**30, 1e999, [], {}, [[]], [{}], [0, 1], [[0, 1]], [None], *TEXTS]
SHAPES += [{"role": "user", "content": "x"}, {"type": "text", "text": "Hi"}, [{"type": "text", "text": "Hi"}]]


def draw_value(rng, depth=0):
    kind = rng.random() if depth < 3 else 0
    if kind < 0.6:
        return rng.choice(SHAPES)
    if kind < 0.8:
        return [draw_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(MESSAGE_KEYS): draw_value(rng, depth + 1) for _ in range(rng.randrange(5))}


def draw_turn(rng):
    role = rng.choice(["user", "assistant", "gpt", "tool", "tool_call", "function_call", "system"])
    turn = {rng.choice(c.ROLE_KEYS): role, rng.choice(c.TEXT_KEYS): rng.choice(["Hi", '{"name": "f"}', SHAPES[-1]])}
    return turn | {rng.choice(MESSAGE_KEYS): draw_value(rng) for _ in range(rng.choice([0, 0, 1, 2]))}


def draw_record(rng):
    turns = [draw_turn(rng) if rng.random() < 0.95 else draw_value(rng) for _ in range(rng.randrange(5))]
    asked, answered = rng.choice(c.QUESTION_KEYS), rng.choice(c.ANSWER_KEYS)
    pairs = [{asked: question, answered: "Hi"} for question in ("Hi", turns)]
    record = rng.choice([{rng.choice(c.TURN_KEYS): turns}, *pairs])
    return record | {rng.choice(RECORD_KEYS): draw_value(rng) for _ in range(rng.choice([0, 1, 1, 2]))}


STOCK = re.sub(r"{% (end)?generation %}", "", TEMPLATE)
OPTIONS = ["", "reasoning: drop", "reasoning: mask\nlearn: last_turn", "max_length: 12\ntoo_long: split", ""]


@pytest.mark.parametrize("number", range(len(OPTIONS)))
def test_any_record_is_encoded_or_bad_for_a_reason_in_one_line(number):
    encode, kinds = encoder(OPTIONS[number], STOCK if number == 4 else TEMPLATE), set()
    for seed in range(500 * number, 500 * number + 500):
        line = json.dumps(draw_record(random.Random(seed))).encode()
        [outcome] = encode.encode_lines([line])
        if isinstance(outcome, RecordProblem):
            kinds.add(outcome.kind)
            assert 0 < len(str(outcome)) < 600
            assert str(outcome).isprintable()
        else:
            assert len(outcome.fingerprint) == 16
            kinds.add("encoded")
    assert {"encoded", "bad-field", "bad-call", "missing-field"} <= kinds
