"""Random conversations with tools, nulls, content parts, reasoning, several system messages and many scripts."""

import json
import random

NUM_CONVERSATIONS = 300
WORDS = [
    *("Hello", "there", "what is", "2 + 2", "the weather", "naïve café", "日本語", "🎉", "👩‍👩‍👧", "Привет", "مرحبا"),
    *("a\nb", "  spaced  ", "<b>tag</b>", '{"a": 1}', "e\u0301", "don't", "C:\\x", "%d", "{{ x }}", "[INST]"),
]
PROPERTIES = {
    "place": {"type": "string", "description": "Where; é <&>", "enum": ["x", "y"], "default": "x"},
    "days": {"type": "array", "items": {"type": "integer"}, "default": [1]},
    "more": {"type": "object", "properties": {"d": {"type": ["string", "null"]}}, "required": ["d"]},
    "any": {"anyOf": []},
}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["place"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Looks it up.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "time", "description": "Tells it."}},
]
KINDS = ("plain", "plain", "nulls", "parts", "tools", "tools", "reasoning", "systems")
HARD_KINDS = ("same", "same", "space", "tag")
"""Kinds whose replies are hard to find: those of other texts, with blanks around them, or with a thought in them."""
VARIABLES = [{"enable_thinking": False}, {"enable_thinking": True}, {"reasoning_effort": "high"}]


def draw(seed, kinds=KINDS):
    """Return a random record of chat messages."""
    rng = random.Random(seed)
    kind = rng.choice(kinds)
    messages = [{"role": "system", "content": text(rng)}] if rng.random() < 0.4 else []
    for turn in range(rng.randint(1, 4)):
        if kind == "systems":
            messages.append({"role": "system", "content": text(rng)})
        messages.append({"role": "user", "content": text(rng)})
        if kind == "tools" and rng.random() < 0.6:
            messages += draw_call(rng, f"call{turn}ab12")
        reply = {"role": "assistant", "content": text(rng)}
        if kind == "reasoning" and rng.random() < 0.7:
            reply |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), text(rng))
        messages.append(reply)
    for message in messages:
        change(message, kind, rng)
    record = {"messages": messages}
    if kind == "tools":
        record["tools"] = TOOLS
    if rng.random() < 0.2:
        record["chat_template_kwargs"] = rng.choice(VARIABLES)
    return record


def change(message, kind, rng):
    """Give a message what is special in a kind."""
    if kind == "nulls":
        message |= dict.fromkeys(rng.sample(["tool_calls", "name", "reasoning_content", "tool_call_id"], 2))
    elif kind == "parts" and rng.random() < 0.6:
        message["content"] = [{"type": "text", "text": text(rng)} for _ in range(rng.randint(1, 2))]
    elif kind == "same":
        message["content"] = rng.choice(["Hello", "Hello", "assistant", "user", "model <think>"])
    elif kind == "space" and message["role"] == "assistant":
        message["content"] = rng.choice([" {}", "{}\n", "\n\n{} "]).format(message["content"])
    elif kind == "tag" and message["role"] == "assistant":
        message["content"] = f"<think>\n{text(rng)}" + rng.choice(["", f"\n</think>\n\n{message['content']}"])


def draw_call(rng, call_id):
    """Return a tool call and its result; the arguments are an object, JSON text or other text."""
    arguments = {"place": text(rng)}
    arguments = rng.choice([arguments, arguments, json.dumps(arguments), 'place = "x"'])
    content = rng.choice([{}, {"content": None}, {"content": text(rng)}])
    calls = [{"id": call_id, "type": "function", "function": {"name": "weather", "arguments": arguments}}]
    tool_result = {"role": "tool", "name": "weather", "tool_call_id": call_id, "content": text(rng)}
    return [{"role": "assistant", **content, "tool_calls": calls}, tool_result]


def text(rng):
    """Return a random text, sometimes an empty one."""
    return "" if rng.random() < 0.05 else " ".join(rng.choices(WORDS, k=rng.randint(1, 6)))
