"""Masks of stock templates equal the masks of TRL, which has templates with `{% generation %}` next to them.

A chat counts for a pair of templates if both write the same text. White space, empty thoughts and the header may
differ: TRL trains on the header of some families, and on empty thoughts.
"""

import datetime
import random
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsindex.chat.conversations import ConversationReader
from dsindex.chat.rendering import ChatTemplate
from dsindex.errors import RecordProblem

SPEC = find_spec("trl")
if SPEC is None:
    pytest.skip("trl is not installed", allow_module_level=True)
FOLDER = Path(SPEC.origin).parent / "chat_templates"
NAMES = sorted(path.stem.removesuffix("_training") for path in FOLDER.glob("*_training.jinja"))
NUM_CHATS = 500
WORDS = [
    *("Hello", "Hello", "there", "what is 2 + 2", "naïve", "日本語", "🎉", "a\nb", "  spaced  ", "<b>", "don't"),
    *("\n\nx\n", "assistant", "user", "<think>", "model"),
]
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string", "description": "p"}}, "required": ["place"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": PARAMETERS}}]
FREE = re.compile(r"\s+|<think>\s*</think>|<\|start\|>assistant|<｜Assistant｜>")
MAY_REFUSE = {"deepseek_r1_distill", "deepseekv3", "diffusion_gemma", "glm4moe"}
"""The prompt of two opens a thought, which the template leaves out of replies; two write replies without an end."""


def text(rng):
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 4)))


def draw_chat(seed):
    rng = random.Random(seed)
    kind = rng.choice(["plain", "plain", "same", "thought", "tools", "tag", "space"])
    messages = [{"role": "system", "content": text(rng)}] if rng.random() < 0.4 else []
    for _ in range(rng.randint(1, 4)):
        question, answer = text(rng), text(rng)
        if kind == "same" and rng.random() < 0.7:
            answer = question
        if kind == "space":
            answer = rng.choice([" " + answer, answer + "\n", "\n\n" + answer + " "])
        messages.append({"role": "user", "content": question})
        if kind == "tools" and rng.random() < 0.7:
            messages += draw_calls(rng)
        reply = {"role": "assistant", "content": answer}
        if kind == "thought" and rng.random() < 0.7:
            reply["reasoning_content"] = text(rng)
        if kind == "tag":
            reply["content"] = f"<think>\n{text(rng)}\n</think>\n\n{answer}"
        messages.append(reply)
    record = {"messages": messages}
    if kind == "tools":
        record["tools"] = TOOLS
    if rng.random() < 0.15:
        record["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5}
    return record


def draw_calls(rng):
    calls = [
        {"name": "weather", "arguments": {"place": text(rng), "days": rng.randint(1, 9)}}
        for _ in range(rng.choice([1, 1, 2]))
    ]
    reply = {"role": "assistant", "content": rng.choice(["", text(rng)])}
    if rng.random() < 0.3:
        reply["reasoning_content"] = text(rng)
    reply["tool_calls"] = [{"id": "abcd12345", "type": "function", "function": call} for call in calls]
    answer = {"role": "tool", "name": "weather", "tool_call_id": "abcd12345"}
    return [reply, *({**answer, "content": text(rng)} for _ in calls)]


def trained(rendered):
    """Each character with whether it is trained on; those that may differ are left out."""
    places = {at for begin, end, _ in rendered.spans for at in range(begin, end)}
    free = {at for match in FREE.finditer(rendered.text) for at in range(*match.span())}
    return places - free


@pytest.mark.parametrize("name", NAMES)
def test_replies_are_those_of_the_training_template(name):
    variables = {"constants": {"bos_token": "<s>", "eos_token": "</s>"}, "date": datetime.date(2026, 1, 31)}
    stock = ChatTemplate((FOLDER / f"{name}.jinja").read_text(), **variables)
    plain = ChatTemplate((FOLDER / f"{name}.jinja").read_text(), **variables, reply_role=None)
    training = ChatTemplate((FOLDER / f"{name}_training.jinja").read_text(), **variables)
    kinds = Counter()
    for seed in range(NUM_CHATS):
        chat = ConversationReader().read(draw_chat(seed))
        try:
            expected = training.render(chat.messages, **chat.variables)
            same_text = plain.render(chat.messages, **chat.variables).text == expected.text
        except RecordProblem:
            continue
        if not same_text:
            kinds["other text"] += 1
            continue
        try:
            found = stock.render(chat.messages, **chat.variables)
        except RecordProblem:
            kinds["refused"] += 1
        else:
            assert found.text == expected.text
            kinds["right" if trained(found) == trained(expected) else f"wrong: {seed}"] += 1
    print(name, dict(kinds))  # noqa: T201 - the table of the page
    assert not [kind for kind in kinds if kind.startswith("wrong")]
    assert name in MAY_REFUSE or kinds["refused"] <= kinds["right"] / 10
