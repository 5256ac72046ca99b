"""Chat templates: what they render, what is trained on, and what they cannot do."""

import datetime
import functools

import pytest

from dsindex.chat import rendering
from dsindex.chat.rendering import ChatTemplate
from dsindex.errors import InputError, RecordProblem

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "日本?"},
    {"role": "assistant", "content": "🎉"},
]
CHATML = (
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "{{ '<|im_start|>assistant\\n' }}{% generation %}{{ message['content'] ~ '<|im_end|>' }}{% endgeneration %}"
    "{{ '\\n' }}"
    "{% else %}{{ '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}{% endif %}"
    "{% endfor %}"
)


def test_template_renders_and_marks_what_is_generated():
    text, spans = ChatTemplate(CHATML).render(MESSAGES)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\n日本?<|im_end|>\n"
        "<|im_start|>assistant\n🎉<|im_end|>\n"
    )
    trained = [(text[begin:end], message) for begin, end, message in spans]
    assert trained == [("Hello!<|im_end|>", 2), ("🎉<|im_end|>", 4)]


LANGUAGE = {
    "{{ bos_token }}{{ tools[0].name }}": "<s>f",
    "{{ messages | map(attribute='role') | join(',') }}": "system,user,assistant,user,assistant",
    "{{ messages[1:][0].content }}{{ messages[-1]['role'][:4] }}": "Hiassi",
    "{{ tools | tojson }}{{ tools | tojson(indent=1) | length }}": '[{"name": "f", "n": 1, "é": "<&>"}]47',
    "{% for m in messages %}{% if loop.last %}{{ loop.previtem.role }}{% endif %}{% endfor %}": "user",
    "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content[0] }}{% endfor %}": "BH",
    "{% macro f(m) %}<{{ m.role }}>{% endmacro %}{{ f(messages[0]) }}": "<system>",
    "{{ missing is defined }}{{ missing }}{{ 1 is sameas true }}": "FalseFalse",
    "{{ (2 ** 10) * 3 // 2 % 1000 }}{{ 2 ** 5000 % 1000 }}": "536376",
    "{{ strftime_now('%d %b %Y') }}": "05 Mar 2026",
    "{{ {'role': 'u', 'get': 'b'}.get('role') }}{{ {'get': 'b'}['get'] }}": "ub",
    "{% macro g() %}{{ caller(1) }}{% endmacro %}{% call(x) g() %}{{ x }}{% endcall %}": "1",
    "{{ '%s: %05.1f' % (messages[1].role, 2.5) }}{{ '{0.role} {n!r:>4}'.format(messages[1], n='x') }}":
        "user: 002.5user  'x'",
    "{% block b scoped %}{% for m in messages[2:3] %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    "{% endblock %}": "Hello!",
    "{{ messages | groupby('role') | map('first') | join }}": "assistantsystemuser",
    "{% for i in range(90000) %}{% endfor %}{{ 'x'.center(5) }}": "  x  ",
    "{{ 1 is sameas 1 }}{{ namespace(self=2) }}": "True<Namespace>",
    "{{ ''.__class__ }}{{ messages['__init__'] }}": "",
    "{# " + "x" * 300_000 + " #}y": "y",
    "{{ today_ | default('x') }}{{ today_ }}{% if tone | upper == 'LOUD' %}!{% endif %}{{ tone }}{{ eos_token }}": "x",
    "{% if false %}{% set y = 1 %}{% endif %}{{ y }}{{ documents is none }}{{ nosuch is none }}": "TrueFalse",
}  # fmt: skip
"""What transformers allows, and what each of it renders."""


def test_template_language_is_there():
    template = ChatTemplate("|".join(LANGUAGE), constants={"bos_token": "<s>"}, date=datetime.date(2026, 3, 5))
    text, spans = template.render(MESSAGES, tools=[{"name": "f", "n": 1, "é": "<&>"}])
    assert text.split("|") == list(LANGUAGE.values())
    assert [text[begin:end] for begin, end, _ in spans] == ["Hello!"]


REFUSED = {
    "{{ ''.__class__.__mro__ }}": "__class__",
    "{{ messages | map(attribute='__class__.x') | list }}": "__class__",
    "{{ '{0.__class__.x}'.format(1) }}": "__class__",
    "{{ messages.append(1) }}": "append",
    "{{ (messages[0].keys() - ['role']) | list }}": "a set has no order",
    "{{ 10 ** (10**11 * messages | length) }}": "too large",
    "{{ 'a' * 10**11 }}": "too large",
    "\n{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": "line 2: its loop",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}": "than 9,999 steps",
    "{% for m in messages recursive %}{% if loop.depth < 9 %}{{ loop(messages) }}{% endif %}{% endfor %}": "never end",
    "{{ dict.update(messages[0], {}) }}": "no attribute 'update'",
    "{{ messages | map('random') | list }}": "No filter named 'random'",
    "{{ messages.index }}": "address of an object",
    "{{ [joiner()] | first | upper }}": "address of an object",
    "{{ range | string | title }}": "address of an object",
    "{{ strftime_now('%Y') }}": "template_date",
    "{{ raise_exception('no system') }}": "refuses the conversation: no system",
    "{{ raise_exception(messages.index) }}": "method index of list object>$",
    "{{ raise_exception('x' * 10000) }}": "x{900,999}$",
    "{{ x.y }}": "'x' is undefined",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "recursion",
    "{% for i in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}": "its end",
    "{{ 'It is ' + today }}": "'today' is undefined; set it under `template_v",
    "{{ 'x' + eos_token }}": "'eos_token' is undefined; set it under `special_tokens`",
}


@functools.cache
def refusing():
    """One template, compiled once, with a branch for each of REFUSED."""
    branch = "{{% if messages[0].content == '{}' %}}{}{{% endif %}}"
    return ChatTemplate("".join(branch.format(number, source) for number, source in enumerate(REFUSED)))


@pytest.mark.parametrize(("number", "match"), list(enumerate(REFUSED.values())), ids=REFUSED)
def test_template_that_reaches_out_or_fails_is_refused(number, match, monkeypatch):
    monkeypatch.setattr(rendering, "MAX_STEPS", 9_999)
    with pytest.raises(RecordProblem, match=f"^the chat template .*{match}") as caught:
        refusing().render([{"role": "user", "content": str(number)}, *MESSAGES])
    assert caught.value.kind == "template-failed"


@pytest.mark.quick(3)
@pytest.mark.parametrize(("source", "match"), [
    ("\n{{ x | nosuch('y') }}", "line 2: No filter named 'nosuch'"),
    ("{% include 'x' %}", "line 1: a chat template cannot use other files"),
    ("\n\n{% import 'os' as os %}", "line 3: .* other files"),
    ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "too long, or nested too deep"),
    ("{% for i in a %}" * 30 + "{% endfor %}" * 30, "too many statically nested blocks"),
    ("{% generation %}{% generation %}{% endgeneration %}", "inside generation"),
    ("{% macro f() %}{% generation %}{% endgeneration %}{% endmacro %}", "inside macro"),
], ids=range(7))  # fmt: skip
def test_template_that_cannot_be_used_is_refused_at_once(source, match):
    with pytest.raises(InputError, match=f"^chat template: .*{match}"):
        ChatTemplate(source)


@pytest.mark.parametrize(("role", "text"), [("user", "a"), ("tool", '[{"type": "text", "text": "a"}]')])
def test_parts_that_a_template_would_write_as_json_are_joined_but_for_results(role, text):
    template = ChatTemplate("{% set c = messages[0].content %}{{ c if c is string else c | tojson }}", reply_role=None)
    assert template.render([{"role": role, "content": [{"type": "text", "text": "a"}]}]).text == text


def test_addresses_that_a_text_is_about_are_text():
    address = "<function f at 0x7f8a1c>"
    template = ChatTemplate("{{ messages[0].content }}{{ x }}<a at 0x1f>", constants={"x": "<b at 0x2f>"})
    assert template.render([{"role": "user", "content": address}])[0] == f"{address}<b at 0x2f><a at 0x1f>"


def test_tools_have_their_own_template_if_the_tokenizer_has_one():
    template = ChatTemplate("plain{{ today }}", tool_source="{{ tools[0].name }}")
    assert template.render(MESSAGES, tools=[{"name": "f"}])[0] == "f"
    assert template.render(MESSAGES, today="x")[0] == "plainx"


EACH = "{% for m in messages %}{{ m.role[0] }}:"
END = ";{% endfor %}"
FORMS = [
    "{{ m.content }}",
    "{% for p in m.content %}{{ p.text }}{% endfor %}",
    "{{ m.content if m.content is string else m.content | map(attribute='text') | join }}",
    "{{ m.content if m.content is string else m.content[0].text }}",
    "{{ raise_exception('no') if messages[0].role != 'system' }}{{ m.content }}",
    "{% if m.role == 'system' %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}",
]
"""How a template reads a content: each gets texts or parts, as it wants them."""


@pytest.mark.quick(3)
@pytest.mark.parametrize("reads", FORMS, ids=range(len(FORMS)))
def test_content_has_the_form_that_the_template_reads(reads):
    def parts(*texts):
        return [{"type": "text", "text": text} for text in texts]

    contents = {"system": "be", "user": parts("a ", "more"), "assistant": parts("c"), "tool": parts("d ", "else")}
    messages = [{"role": role, "content": content} for role, content in contents.items()]
    assert ChatTemplate(EACH + reads + END, reply_role=None).render(messages).text == "s:be;u:a more;a:c;t:d else;"


def test_calls_and_tools_have_the_form_that_the_template_reads():
    reads = "{% if m.content is none %}{{ m.tool_calls[0].function.name }}{% else %}{{ m.content + '' }}{% endif %}"
    for source in (reads, "{{ tools[0].function['name'] + (m.content or '') }}"):
        messages = [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]
        template = ChatTemplate(EACH + source + END, reply_role=None)
        assert template.render(messages, tools=[{"name": "f"}]).text == "a:f;"


@pytest.mark.parametrize("how", ["", " | tojson"])
def test_parts_that_a_template_would_write_as_a_list_are_refused(how):
    reads = "{% for p in m.content if m.role == 'user' %}{{ p.text }}{% else %}{{ m.content" + how + " }}{% endfor %}"
    with pytest.raises(RecordProblem, match="takes a text for a list of parts"):
        ChatTemplate(EACH + reads + END).render(MESSAGES)


OF_REPLIES = "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}"
BLOCKS = {
    "{% for m in messages %}{% for c in 'ab' %}{% if m.role == 'assistant' %}{% generation %}{{ c }}{% endgeneration %}"
    "{% endif %}{% endfor %}{% endfor %}": [2, 2, 4, 4],
    "{% for i in range(5) %}{% set m = messages[i] %}" + OF_REPLIES: [2, 4],
    "{% for m in messages[2:] %}" + OF_REPLIES: [2, 4],
    "{% generation %}{{ messages[2].content }}{% endgeneration %}": [None],
}


@pytest.mark.parametrize("source", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_belongs_to_the_message_of_the_loop_around_it(source):
    assert [span.message for span in ChatTemplate(source).render(MESSAGES).spans] == BLOCKS[source]
