"""Lines are read and encoded as their records are, by whatever way is faster."""

import functools
import json

import pytest

from dsindex.errors import RecordProblem
from dsindex.instruction.config import check_config
from dsindex.instruction.encoder import InstructionEncoder
from dsindex.instruction.records import DEFAULT_ROLES, ConversationReader, parse_record
from dsindex.instruction.rendered import read_answer, spell_text, write_answer
from tests.support.chat_tokenizers import train

USER, REPLY = '{"role": "user", "content": "Hé 👩"}', '{"role": "assistant", "content": "Yes."}'
TURNS = f"[{USER}, {REPLY}]"
LINES = {
    "usual": f'{{"messages": {TURNS}}}',
    "sharegpt": '{"conversations": [{"from": "human", "value": "a"}, {"value": "b", "from": "gpt"}]}',
    "alpaca": '{"instruction": "a", "input": "b", "output": "c"}',
    "system beside": f'{{"system": "s", "conversations": {TURNS}}}',
    "system beside messages": f'{{"system": "s", "messages": {TURNS}}}',
    "both formats": f'{{"conversations": 1, "messages": {TURNS}, "id": 3}}',
    "null messages": f'{{"messages": null, "conversations": {TURNS}}}',
    "unread keys": f'{{"a": {{"b": [1, null]}}, "messages": {TURNS}, "c": 1.5, "tools": null}}',
    "variables": f'{{"messages": {TURNS}, "tools": "[]", "chat_template_kwargs": {{"x": 1e3}}}}',
    "weight": f'{{"messages": [{USER}, {{"role": "assistant", "content": "a", "weight": 0}}, {USER}, {REPLY}]}}',
    "escapes": '{"messages": [{"role": "user", "content": "\\u003c/s\\u003e\\u00e9"}, ' + REPLY + "]}",
    "escaped slash": '{"messages": [{"role": "user", "content": "<\\/s>"}, ' + REPLY + "]}",
    "special": f'{{"messages": [{USER}, {{"role": "assistant", "content": "</s>"}}]}}',
    "special in a variable": f'{{"messages": {TURNS}, "chat_template_kwargs": {{"x": ["</s>"]}}}}',
    "special elsewhere": f'{{"messages": {TURNS}, "id": "</s>"}}',
    "key twice": f'{{"messages": 3, "messages": {TURNS}}}',
    "huge integer beside": f'{{"messages": {TURNS}, "id": {"1" * 5000}}}',
    "large integer": f'{{"messages": {TURNS}, "chat_template_kwargs": {{"x": {2**70}}}}}',
    "deep beside": f'{{"messages": {TURNS}, "x": {"[" * 950}{"]" * 950}}}',
    "deep but allowed": f'{{"messages": {TURNS}, "x": {"[" * 800}{"]" * 800}}}',
    "surrogate": f'{{"messages": [{USER}, {{"role": "assistant", "content": "\\ud800"}}]}}',
    "surrogate in nested JSON": f'{{"messages": {TURNS}, "tools": "[{{\\"a\\": \\"\\u005cudfa0\\"}}]"}}',
    "not JSON": '{"messages": [',
    "list": "[1]",
    "no turns": '{"messages": []}',
    "role": '{"messages": [{"role": "bard", "content": "a"}]}',
    "null content": '{"messages": [{"role": "user", "content": null}]}',
    "a number": '{"messages": [{"role": "user", "content": 3}]}',
    "no conversation": '{"text": "a"}',
    "NaN beside": f'{{"messages": {TURNS}, "x": NaN}}',
    "not UTF-8": f'{{"messages": {TURNS}, "x": "\udcff"}}',
}
TEMPLATE = (
    "{{ x }}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}{{ tools }}"
)


def line_of(name):
    return LINES[name].encode(errors="surrogateescape")


def outcome(read):
    """What a call returns, or the problem that it raises."""
    try:
        return read()
    except RecordProblem as problem:
        return problem.kind, problem.reason


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("record_format", ["auto", "messages", "sharegpt"])
def test_lines_are_read_as_their_records(name, record_format):
    reader = ConversationReader(
        record_format=record_format, roles=DEFAULT_ROLES, learn="all", assistant_role="assistant"
    )
    found = outcome(lambda: reader.read_line(line_of(name)))
    wanted = outcome(lambda: reader.read(parse_record(line_of(name))))
    if name.startswith("surrogate") and not isinstance(wanted, tuple):
        assert found[0] == "bad-text"
    else:
        assert found == wanted


@functools.cache
def encoder(special_tokens_in_text):
    options = {"chat_template": "{% set x = x | default('') %}" + TEMPLATE}
    config = check_config({**options, "special_tokens_in_text": special_tokens_in_text}, source="test")
    return InstructionEncoder(config, train("bytes"))


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("special", ["keep", "refuse"])
def test_lines_are_encoded_as_their_records(name, special):
    [found] = encoder(special).encode_lines([line_of(name)])
    wanted = outcome(lambda: encoder(special).encode(parse_record(line_of(name))))
    if isinstance(found, RecordProblem):
        assert (found.kind, found.reason) == wanted
        return
    assert (found.tokens.tolist(), found.mask.tolist()) == (wanted.tokens.tolist(), wanted.mask.tolist())
    assert (found.special_in_text, found.fingerprint) == (wanted.special_in_text, wanted.fingerprint)
    is_special = name in {"special", "special in a variable", "escapes", "escaped slash"}
    assert found.special_in_text == is_special


@pytest.mark.parametrize(
    ("text", "spans"), [("", []), ("abc", [(0, 3)]), ("é👩x", [(1, 2), (2, 3)]), ("xé", [(1, 1), (0, 2)])]
)
@pytest.mark.parametrize("has_special", [False, True])
def test_texts_travel_with_their_spans(text, spans, has_special):
    spelt = spell_text(text, spans)._replace(has_special=has_special)
    assert [spelt.spelt[begin:end].decode() for begin, end in spelt.spans] == [text[begin:end] for begin, end in spans]
    assert spelt.in_characters() == (text, spans)
    assert read_answer(write_answer(spelt)) == spelt
    assert read_answer(json.dumps({"text": text}).encode()) is None
