"""Compare chat templates with transformers: `python -m tests.peers.chat_templates TEMPLATES TOKENIZER…`.

TEMPLATES is a folder of chat templates (`*.jinja`), such as those of public repositories; TOKENIZER a folder with a
tokenizer. Every template renders the same drawn conversations here and in transformers' `apply_chat_template`, and
tokens and masks are compared. Needs transformers, which dsindex does not.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import re
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from dsindex.errors import InputError, RecordProblem
from dsindex.instruction.encoder import ChatTemplate, write_conversation
from dsindex.instruction.records import ANY_CONVERSATION
from dsindex.instruction.tokens import ChatTokenizer, mask_from_spans

WORDS = [
    *("Hello", "there", "what is", "2 + 2", "the weather", "naïve café", "日本語", "🎉", "👩‍👩‍👧", "Привет", "مرحبا"),
    *("a\nb", "  spaced  ", "<b>tag</b>", '{"a": 1}', "e\u0301", "don't", "C:\\x", "%d", "{{ x }}", "[INST]"),
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Looks up the {name}.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string", "description": "Where; é <&>"}},
                "required": ["place"],
            },
        },
    }
    for name in ("weather", "time")
]
VARIABLES = [
    *({"enable_thinking": False}, {"enable_thinking": True}),
    *({"reasoning_effort": "high"}, {"date_string": "1 May"}),
]


class Outcome(NamedTuple):
    """Tokens and mask of a conversation, or the reason why there are none."""

    ids: list[int] | None
    mask: list[int] | None
    reason: str = ""
    shares: list[bool] | None = None
    """Whether a token shares a character with another."""


def draw_conversations(number, seed=0):
    """Yield records with tools, nulls, parts, reasoning, empty turns and text of many scripts."""
    for index in range(number):
        yield _draw(random.Random(f"{seed} {index}"))


def _draw(rng):
    kind = rng.choice(["plain", "plain", "nulls", "parts", "tools", "tools", "reasoning"])
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": _text(rng)})
    for turn in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": _text(rng)})
        if kind == "tools" and rng.random() < 0.6:
            messages += _draw_call(rng, f"call{turn}ab12")
        reply = {"role": "assistant", "content": _text(rng)}
        if kind == "reasoning" and rng.random() < 0.7:
            reply[rng.choice(["reasoning_content", "reasoning", "thinking"])] = _text(rng)
        messages.append(reply)
    for message in messages:
        if kind == "nulls":
            message |= dict.fromkeys(rng.sample(["tool_calls", "name", "reasoning_content", "tool_call_id"], 2))
        elif kind == "parts" and rng.random() < 0.6:
            message["content"] = [{"type": "text", "text": _text(rng)} for _ in range(rng.randint(1, 2))]
    record = {"messages": messages}
    if kind == "tools":
        record["tools"] = json.dumps(TOOLS) if rng.random() < 0.5 else TOOLS
    if rng.random() < 0.2:
        record["chat_template_kwargs"] = rng.choice(VARIABLES)
    return record


def _draw_call(rng, call_id):
    """Return a message that calls a tool, whose content may be missing or null, and the tool's answer."""
    call = {"name": "weather", "arguments": {"place": _text(rng)}}
    calls = [{"id": call_id, "type": "function", "function": call}]
    content = rng.choice([{}, {"content": None}, {"content": _text(rng)}])
    answer = {"role": "tool", "name": "weather", "tool_call_id": call_id, "content": _text(rng)}
    return [{"role": "assistant", **content, "tool_calls": calls}, answer]


def _text(rng):
    return "" if rng.random() < 0.05 else " ".join(rng.choices(WORDS, k=rng.randint(1, 6)))


class Peer:
    """transformers, with one tokenizer."""

    def __init__(self, folder):
        import transformers

        transformers.logging.set_verbosity_error()
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.special_tokens = {
            name: str(text) for name, text in self._tokenizer.special_tokens_map.items() if isinstance(text, str)
        }

    def encode(self, source, record):
        """Apply a template as TRL does: `tools` decoded, `chat_template_kwargs` as further arguments."""
        tools = record.get("tools")
        try:
            encoded = self._tokenizer.apply_chat_template(
                record["messages"],
                tools=json.loads(tools) if isinstance(tools, str) else tools,
                chat_template=source,
                return_dict=True,
                return_assistant_tokens_mask=True,
                **record.get("chat_template_kwargs", {}),
            )
        except Exception as error:  # noqa: BLE001 - a template may raise any
            return Outcome(None, None, f"{type(error).__name__}: {error}")
        return Outcome(encoded["input_ids"], encoded["assistant_masks"])


def encode_here(template, tokenizers, records):
    """Return an outcome for each tokenizer and record."""
    requests = []
    for record in records:
        try:
            conversation = ANY_CONVERSATION.read(record)
            requests.append(write_conversation(conversation.messages, conversation.variables))
        except RecordProblem as problem:
            requests.append(problem)
    rendered = template.render_all([request for request in requests if isinstance(request, bytes)])
    texts = [request if isinstance(request, RecordProblem) else next(rendered) for request in requests]
    return [[_tokenize(tokenizer, text) for text in texts] for tokenizer in tokenizers]


def _tokenize(tokenizer, rendered):
    if isinstance(rendered, RecordProblem):
        return Outcome(None, None, f"{rendered.kind}: {rendered.reason}")
    text, spans = rendered
    encoded = tokenizer.encode(text)
    mask = mask_from_spans(encoded.offsets, spans, num_characters=len(text))
    begins = encoded.offsets[:, 0].tolist()
    ends = [0, *encoded.offsets[:-1, 1].tolist()]
    crossing = [begin < end for begin, end in zip(begins, ends, strict=False)]
    shares = [here or following for here, following in zip(crossing, [*crossing[1:], False], strict=False)]
    return Outcome(encoded.ids.tolist(), mask.tolist(), shares=shares)


def compare(ours, peer, source, record, *, has_marks):
    """Return the row of the table to which a pair belongs, and transformers' reason if it refuses."""
    theirs = peer.encode(source, record)
    if ours.ids == theirs.ids:
        if ours.ids is None:
            return "refused by both", theirs.reason
        if not has_marks or ours.mask == theirs.mask:
            return "equal", ""
        return _compare_masks(ours, theirs), ""
    for name, change in CHANGES.items():
        changed = {**record, "messages": [change(message) for message in record["messages"]]}
        if ours.ids is not None and peer.encode(source, changed).ids == ours.ids:
            return f"{'refused by transformers' if theirs.ids is None else 'other tokens'}, {name}", theirs.reason
    if ours.ids is None:
        return "refused by us", ""
    return ("refused by transformers" if theirs.ids is None else "other tokens"), theirs.reason


def _compare_masks(ours, theirs):
    pairs = list(zip(ours.mask or [], theirs.mask or [], strict=True))
    ours_only = [number for number, (own, other) in enumerate(pairs) if own > other]
    theirs_only = [number for number, (own, other) in enumerate(pairs) if own < other]
    # `char_to_token` knows only one of the tokens that share a character.
    if not theirs_only and all(ours.shares is not None and ours.shares[i] for i in ours_only):
        return "other mask: pieces of a character that the peer leaves out"
    return "other mask"


def _join_parts(message):
    content = message.get("content")
    return {**message, "content": "".join(part["text"] for part in content)} if isinstance(content, list) else message


def _as_parts(message):
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _name_reasoning(message):
    keys = ("reasoning_content", "thinking", "reasoning")
    thought = next((message[key] for key in keys if message.get(key) is not None), None)
    return message if thought is None else {**dict.fromkeys(keys, thought), **message}


CHANGES = {
    "equal with contents joined": _join_parts,
    "equal with contents as parts": _as_parts,
    "equal with reasoning under all its names": _name_reasoning,
}


def main():
    """Print a table, and examples of each difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("templates", type=Path)
    parser.add_argument("tokenizers", type=Path, nargs="+")
    parser.add_argument("--conversations", type=int, default=120)
    parser.add_argument("--only", default="", help="a regular expression for names of templates")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    table, lines, found = compare_all(args.templates, args.tokenizers, args.conversations, args.only)
    write = sys.stdout.write
    for name, counts in [*table.items(), ("generation found (unmarked templates)", found)]:
        write(f"{name}: {', '.join(f'{kind} {number:,}' for kind, number in sorted(counts.items()))}\n")
    write("\n".join(lines) + "\n")


def compare_all(folder, tokenizer_folders, num_conversations, only=""):
    """Compare all templates of a folder.

    Returns:
        Counts of pairs for each tokenizer; a line for each kind of difference of each template, with an example; and
        how many conversations of templates without marks had their replies found.
    """
    records = list(draw_conversations(num_conversations))
    peers = [Peer(path) for path in tokenizer_folders]
    tokenizers = [ChatTokenizer.from_path(path) for path in tokenizer_folders]
    table = {path.name: Counter() for path in tokenizer_folders}
    lines = []
    found = Counter()
    for path in sorted(folder.glob("*.jinja")):
        if not re.search(only, path.name):
            continue
        source = path.read_bytes().decode()
        found.update(_count_found(source, peers[0].special_tokens, records, path.name, lines))
        marked = path.with_name(path.name.replace(".jinja", "_training.jinja"))
        if marked.exists():
            kinds = _compare_found(source, marked.read_bytes().decode(), peers[0].special_tokens, records)
            lines.append(f"{path.name} | found against marks | {dict(kinds)}")
        for peer, tokenizer, name in zip(peers, tokenizers, table, strict=True):
            template = _open(source, peer.special_tokens, finds_generation=False)
            if isinstance(template, ChatTemplate):
                [ours] = encode_here(template, [tokenizer], records)
            else:
                ours = [Outcome(None, None, template)] * len(records)
            seen = Counter()
            for index, (record, own) in enumerate(zip(records, ours, strict=True)):
                marks = isinstance(template, ChatTemplate) and template.marks_generation
                kind, reason = compare(own, peer, source, record, has_marks=marks)
                table[name][kind] += 1
                if kind not in ("equal", "refused by both"):
                    seen[kind] += 1
                    if seen[kind] == 1:
                        reason = own.reason or reason
                        lines.append(f"{path.name} | {name} | {kind} | conversation {index} | {reason[:160]}")
            lines.extend(f"{path.name} | {name} | {kind} | {number} in all" for kind, number in seen.items())
    return table, lines, found


def _compare_found(source, marked, constants, records):
    """Compare the text found in a template with the marks of its version for training."""
    template, peer = _open(source, constants, finds_generation=True), _open(marked, constants, finds_generation=False)
    if isinstance(template, str) or isinstance(peer, str):
        return Counter({"template refused": len(records)})
    conversations = [ANY_CONVERSATION.read(record) for record in records]
    requests = [write_conversation(conversation.messages, conversation.variables) for conversation in conversations]
    kinds = Counter()
    for ours, theirs in zip(template.render_all(requests), peer.render_all(requests), strict=True):
        if isinstance(ours, RecordProblem) or isinstance(theirs, RecordProblem):
            kinds[ours.kind if isinstance(ours, RecordProblem) else "refused with marks"] += 1
        elif ours[0] != theirs[0]:
            kinds["other text"] += 1
        else:
            kinds["equal" if _characters(ours[1]) == _characters(theirs[1]) else "other spans"] += 1
    return kinds


def _characters(spans):
    return {position for begin, end in spans for position in range(begin, end)}


def _open(source, constants, *, finds_generation):
    try:
        return ChatTemplate(
            source,
            constants=constants,
            date=datetime.date.today(),
            finds_generation=finds_generation,
        )
    except InputError as error:
        return str(error)


def _count_found(source, constants, records, name, lines):
    """Count the conversations of a template without marks whose replies are found."""
    template = _open(source, constants, finds_generation=True)
    if isinstance(template, str):
        lines.append(f"{name} | template refused | {template[:300]}")
        return Counter({"templates refused": 1})
    if template.marks_generation:
        return Counter({"templates with marks": 1})
    requests = []
    for record in records:
        conversation = ANY_CONVERSATION.read(record)
        requests.append(write_conversation(conversation.messages, conversation.variables))
    kinds = Counter()
    for rendered in template.render_all(requests):
        kind = rendered.kind if isinstance(rendered, RecordProblem) else "found"
        kinds[kind] += 1
        if kind == "generation-not-found" and kinds[kind] == 1:
            lines.append(f"{name} | not found | {str(rendered)[:300]}")
    lines.append(f"{name} | finding | {dict(kinds)}")
    return kinds + Counter({"templates proven": 1})


if __name__ == "__main__":
    main()
