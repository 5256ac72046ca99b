"""Chat templates: what they render, what is trained on, and what they cannot do."""

import datetime
import functools
import json
import pickle

import pytest

from dsindex.errors import InputError, RecordProblem
from dsindex.instruction.encoder import ChatTemplate, write_conversation
from dsindex.text.guarded.limits import Limits
from dsindex.text.guarded_process import LimitReachedError

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
    template = pickle.loads(pickle.dumps(ChatTemplate(CHATML)))  # noqa: S301
    assert template.marks_generation
    with pytest.raises(RecordProblem, match="lone surrogate"):  # it could forge what is learnt
        template.render([{"role": "user", "content": "\udfa0x\udfa1"}])
    text, spans = template.render(MESSAGES)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\n日本?<|im_end|>\n"
        "<|im_start|>assistant\n🎉<|im_end|>\n"
    )
    assert [text[begin:end] for begin, end in spans] == ["Hello!<|im_end|>", "🎉<|im_end|>"]


LANGUAGE = {
    "{{ bos_token }}{{ tools[0].name }}": "<s>f",
    "{{ messages | map(attribute='role') | join(',') }}": "system,user,assistant,user,assistant",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}": "2",
    "{{ messages[1:][0].content }}{{ messages[-1]['role'][:4] }}": "Hiassi",
    "{{ tools | tojson }}{{ tools | tojson(indent=1) | length }}": '[{"name": "f", "n": 1, "é": "<&>"}]47',
    "{% set ns = namespace(n=0) %}{% for m in tools %}{% set ns.n = ns.n + loop.index %}{% endfor %}{{ ns.n }}": "1",
    "{% for m in messages %}{% if loop.last %}{{ loop.previtem.role }}{% endif %}{% endfor %}": "user",
    "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content[0] }}{% endfor %}": "BH",
    "{% macro f(m) %}<{{ m.role }}>{% endmacro %}{{ f(messages[0]) }}": "<system>",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}": "role=system;content=Be brief.;",
    "{{ messages[0].content.replace('e', 'E').split('.')[0] | upper }}": "BE BRIEF",
    "{{ missing is defined }}{{ missing }}{{ 1 is sameas true }}": "FalseFalse",
    "{{ (2 ** 10) * 3 // 2 % 1000 }}{{ 2 ** 5000 % 1000 }}": "536376",
    "{{ strftime_now('%d %b %Y') }}": "05 Mar 2026",
    "{% filter upper %}a{% endfilter %}{% set x %}b{% endset %}{{ x }}{{ dict(a=1).a }}": "Ab1",
    "{{ 'x' if add_generation_prompt else 'y' }}{{ {}.get('a', 'z') }}": "yz",
    "{% macro g() %}{{ caller(1) }}{% endmacro %}{% call(x) g() %}{{ x }}{% endcall %}": "1",
    "{{ '%s: %05.1f' % (messages[1].role, 2.5) }}{{ '{0.role} {n!r:>4}'.format(messages[1], n='x') }}":
        "user: 002.5user  'x'",
    "{% block a %}x{% endblock %}{{ self.a() }}": "xx",
    "{% block b scoped %}{% for m in messages[2:3] %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    "{% endblock %}": "Hello!",
    "{{ messages | groupby('role') | map('first') | join }}": "assistantsystemuser",
    "{% for i in range(90000) %}{% endfor %}{{ 'x'.center(5) }}": "  x  ",
    "{{ 'ab' | batch(1) | list }}{{ {'b': 1} | dictsort }}": "[['a'], ['b']][('b', 1)]",
    "{{ 1 is sameas 1 }}{{ namespace(self=2) }}": "True<Namespace {'self': 2}>",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}": "aba",
    "{{ (messages[0].keys() - ['role']) | list }}": "['content']",
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
    assert [text[begin:end] for begin, end in spans] == ["Hello!"]


REFUSED = {
    "{{ ''.__class__.__mro__ }}": "__class__",
    "{{ messages.__init__.__globals__ }}": "__init__",
    "{{ ().__class__.__base__.__subclasses__() }}": "__class__",
    "{{ messages | map(attribute='__class__.x') | list }}": "__class__",
    "{{ raise_exception.__globals__.x }}": "__globals__",
    "{{ '{0.__class__.x}'.format(1) }}": "__class__",
    "{{ messages.append(1) }}": "append",
    "{{ messages[0].update({}) }}": "update",
    "{{ dict.update(messages[0], {}) }}": "has no attribute 'update'",
    "{{ namespace(__html__=1) }}": "cannot have the name '__html__'",
    "{% set n = namespace() %}{% set n._x = 1 %}": "cannot have the name '_x'",
    "{{ lipsum() }}": "undefined",
    "{{ messages | map('random') | list }}": "No filter named 'random'",
    "{{ messages.index }}": "address of an object",
    "{{ [raise_exception] }}": "address of an object",
    "{{ 'a' ~ cycler(1) }}": "address of an object",
    "{{ messages | map('upper') }}": "address of an object",
    "{{ strftime_now('%Y') }}": "template_date",
    "{{ raise_exception('no system') }}": "refuses the conversation: no system",
    "{{ raise_exception(messages.index) }}": "method index of list object>$",
    "{{ raise_exception('x' * 10000) }}": "x{900,999}$",
    "{{ x.y }}": "'x' is undefined",
    "{{ 1 / 0 }}": "division by zero",
    "{{ messages() }}": "not callable",
    "{% for i in range(10**12) %}{% endfor %}": "Range too big",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "recursion",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}": "recursion",
    "{% for i in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}": "its end",
    "{{ 'It is ' + today }}": "'today' is undefined: nobody gave this variable; set it under `template_v",
    "{{ today.day }}": "'today' is undefined: nobody gave this variable; set it under `template_v",
    "{{ 'x' + eos_token }}": "'eos_token' is undefined; set it under `special_tokens`",
}


@functools.cache
def refusing():
    """One template, so that one process is started, with a branch for each of REFUSED."""
    branches = (f"{{% if messages[0].content == '{number}' %}}{source}{{% endif %}}"
                for number, source in enumerate(REFUSED))  # fmt: skip
    return ChatTemplate("".join(branches))


@pytest.mark.parametrize(("number", "match"), list(enumerate(REFUSED.values())), ids=REFUSED)
def test_template_that_reaches_out_or_fails_is_refused(number, match):
    with pytest.raises(RecordProblem, match=f"^the chat template .*{match}") as caught:
        refusing().render([{"role": "user", "content": str(number)}, *MESSAGES])
    assert caught.value.kind == "template-failed"


DOUBLE = "{% set n = namespace(x=()) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}{% endfor %}"
SMALL = Limits(cpu_seconds=1.0, memory_bytes=200 << 20)
CPU, MEMORY = "used more than 1 s of CPU time on", "needed more than 200 MiB of memory on"


@pytest.mark.quick(1)
@pytest.mark.parametrize(("source", "what"), [
    (DOUBLE + "{% set y = n.x %}" + DOUBLE + "{{ n.x == y }}", CPU),
    ("{{ ('a' * 10**5) | replace(old='a', new='b' * 10**5) }}", MEMORY),
    ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", CPU),
    ("{{ 10 ** (10**11 * messages | length) }}", f"({MEMORY}|{CPU})"),
    ("{{ '{:1000000000}'.format(1) }}", MEMORY),
], ids=["comparison", "replace", "loops", "power", "format"])  # fmt: skip
def test_template_without_measure_stops_the_job(source, what):
    """No problem of the record that could be set aside: then output would depend on the machine."""
    template = ChatTemplate(source, limits=SMALL)
    with pytest.raises(LimitReachedError, match=f"^the chat template {what} this record; change it, or take"):
        template.render(MESSAGES)


@pytest.mark.quick(3)
@pytest.mark.parametrize(("source", "match"), [
    ("\n{% for %}", "line 2"),
    ("\n{{ x | nosuch('y') }}", "line 2: No filter named 'nosuch'"),
    ("{% include 'x' %}", "line 1: a chat template cannot use other files"),
    ("\n\n{% import 'os' as os %}", "line 3: .* other files"),
    ("{% extends 'os' %}", "other files"),
    ("{% if a %}" + "{% elif a %}b" * 6000 + "{% endif %}", "too long, or nested too deep"),
    ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "too long, or nested too deep"),
    ("{% for i in a %}" * 30 + "{% endfor %}" * 30, "too many statically nested blocks"),
    ("{% generation %}{% generation %}{% endgeneration %}", "inside generation"),
    ("{% macro f() %}{% generation %}{% endgeneration %}{% endmacro %}", "inside macro"),
    ("{% set x %}{% generation %}{% endgeneration %}{% endset %}", "inside set"),
], ids=range(11))  # fmt: skip
def test_template_that_cannot_be_used_is_refused_at_once(source, match):
    with pytest.raises(InputError, match=f"^chat template: .*{match}"):
        ChatTemplate(source)


@pytest.mark.exhaustive
def test_template_that_takes_too_long_to_compile_is_refused():
    """jinja2 computes constants while it compiles; what it cannot compute is left to every rendering."""
    with pytest.raises(
        InputError, match=r"^the chat template used more than 1 s of CPU time while it was compiled; change"
    ):
        ChatTemplate("{{ 10 ** (10**12) }}", limits=SMALL)
    with pytest.raises(LimitReachedError, match=MEMORY):
        ChatTemplate("{{ 'a' * 10**11 }}", limits=SMALL).render(MESSAGES)


def test_long_conversations_render():
    messages = [{"role": "user", "content": "word " * 200}, {"role": "assistant", "content": "reply " * 200}] * 2_000
    text, spans = ChatTemplate(CHATML).render(messages)
    assert len(spans) == 2_000
    assert len(text) > 4_000_000


def test_addresses_that_a_text_is_about_are_text():
    address = "<function f at 0x7f8a1c>"
    template = ChatTemplate("{{ messages[0].content }}{{ x }}<a at 0x1f>", constants={"x": "<b at 0x2f>"})
    assert template.render([{"role": "user", "content": address}])[0] == f"{address}<b at 0x2f><a at 0x1f>"


def test_many_conversations_are_rendered_in_order_with_their_problems():
    template = ChatTemplate("{% if messages[0].content == 'no' %}{{ 1 / 0 }}{% endif %}{{ messages[0].content }}")
    texts = ["a", "no", "b"] * 100
    written = [write_conversation([{"role": "user", "content": text}], {}) for text in texts]
    found = [None if isinstance(rendered, RecordProblem) else rendered[0] for rendered in template.render_all(written)]
    assert found == [None if text == "no" else text for text in texts]


def test_numbers_come_through_unchanged():
    """What JSON allows: numbers of any size, NaN, and no difference between 1 and 1.0."""
    tools = [12345678901234567890123, 1.0, 1, 1e300, float("nan"), -0.0, True]
    text, _ = ChatTemplate("{{ tools }}{{ tools | tojson }}").render(MESSAGES, tools=tools)
    assert text == f"{tools}{json.dumps(tools)}"


def test_modalities_template_lines_are_joined():
    source = "{% for turn in messages %}\n{{ turn.role + ':' }}\n{{ turn.content + '\\n' }}\n{% endfor %}\n"
    assert ChatTemplate(source, join_lines=True).render(MESSAGES[:2])[0] == "system:Be brief.\nuser:Hi\n"
    assert ChatTemplate(source).render(MESSAGES[1:2])[0] == "user:\nHi\n\n"


def test_tools_have_their_own_template_if_the_tokenizer_has_one():
    template = ChatTemplate("plain{{ today }}", tool_source="{{ tools[0].name }}")
    assert template.render(MESSAGES, tools=[{"name": "f"}])[0] == "f"
    assert template.render(MESSAGES, today="x")[0] == "plainx"


def test_a_name_that_every_dict_has_is_not_a_key():
    template = ChatTemplate("{% for m in messages %}{{ m.get('role') }} {{ m.name }} {{ m['get'] }}{% endfor %}")
    text, _ = template.render([{"role": "user", "content": "a", "get": "b", "name": "c"}])
    assert text == "user c b"


EACH = "{% for m in messages %}{{ m.role[0] }}:"
END = ";{% endfor %}"
FORMS = {
    "{{ m.content }}": "s:be;u:ab;a:c;t:de;",
    "{{ m.content if m.content is string else '' }}": "s:be;u:ab;a:c;t:de;",
    "{% for p in m.content %}{{ p.text }}{% endfor %}": "s:be;u:ab;a:c;t:de;",
    "{{ m.content if m.content is string else m.content | map(attribute='text') | join }}": "s:be;u:ab;a:c;t:de;",
    "{{ m.content if m.content is string else m.content[0].text }}": "s:be;u:ab;a:c;t:de;",
    "{{ '' + m.content[0]['text'] }}": "s:be;u:ab;a:c;t:de;",
    "{{ m.content | tojson }}": 's:"be";u:"ab";a:"c";t:"de";',
    "{{ raise_exception('no') if messages[0].role != 'system' }}{{ m.content }}": "s:be;u:ab;a:c;t:de;",
    "{% if m.role == 'user' %}{% for p in m.content %}{{ p.text }}{% endfor %}{% else %}{{ m.content }}{% endif %}":
        "s:be;u:ab;a:c;t:de;",
}  # fmt: skip
"""How a template reads a content, and what it then writes: each gets texts or parts, as it wants them."""


@pytest.mark.quick(3)
@pytest.mark.parametrize(("reads", "expected"), FORMS.items(), ids=range(len(FORMS)))
def test_content_has_the_form_that_the_template_reads(reads, expected):
    def parts(*texts):
        return [{"type": "text", "text": text} for text in texts]

    contents = {"system": "be", "user": parts("a", "b"), "assistant": parts("c"), "tool": parts("d", "e")}
    messages = [{"role": role, "content": content} for role, content in contents.items()]
    assert ChatTemplate(EACH + reads + END).render(messages) == (expected, [])


LOOP = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>\n' }}{% endfor %}"
PROMPT = "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
CHAT = LOOP + PROMPT
CLOSED = LOOP + "{{ '<|assistant|>' if add_generation_prompt else '<eos>' }}"
WORDY = LOOP + "{{ '<|assistant|>' if add_generation_prompt else 'The end.' }}"
INST = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content | trim }} </s>{% endif %}{% endfor %}"
)
# Thoughts stand only in the last reply, and the prompt begins them.
THINKING = (
    "{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content }}\n{% else %}A:"
    "{{ '<think>' if loop.last }}{{ m.content }}</s>\n{% endif %}{% endfor %}"
    "{{ 'A:<think>' if add_generation_prompt }}"
)
NO_PROMPT_AFTER_TOOLS = (
    "{% for m in messages %}{{ '<|tool|>' if m.role == 'tool' else '<|turn|>' + m.role + '|' }}"
    "{{ m.content }}<|end|>{% endfor %}"
    "{{ '<|turn|>assistant|' if add_generation_prompt and messages[-1].role == 'user' }}"
)
CONVERSATION = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "1 "},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "2"},
    {"role": "assistant", "content": "2!"},
]


def learnt(source, messages, **options):
    text, spans = ChatTemplate(source, finds_generation=True).render(messages, **options)
    return [text[begin:end] for begin, end in spans]


@pytest.mark.quick(2)
@pytest.mark.parametrize(("source", "messages", "expected"), [
    pytest.param(CHAT, CONVERSATION, ["1 <|end|>\n", "2<|end|>\n", "2!<|end|>\n"], id="chat"),
    pytest.param(CLOSED, CONVERSATION, ["1 <|end|>\n", "2<|end|>\n", "2!<|end|>\n<eos>"], id="closed"),
    pytest.param(INST, CONVERSATION[1:5], [" 1 </s>", " 2 </s>"], id="no-prompt"),
    pytest.param(WORDY, CONVERSATION[1:5], ["1 <|end|>", "2<|end|>"], id="words-at-the-end"),
    pytest.param(THINKING, CONVERSATION[1:3], ["1 </s>\n"], id="thinking"),
])  # fmt: skip
def test_replies_are_found_with_what_ends_them(source, messages, expected):
    assert learnt(source, messages) == expected


@pytest.mark.quick(2)
@pytest.mark.parametrize(("source", "match"), [
    ("{{ messages }}", "generation prompt is not the beginning"),
    (LOOP, r"writes '<\|assistant\|>' before a reply but not as a generation prompt"),
    (LOOP + "{{ '<|bot|>' if add_generation_prompt }}", "not the beginning of its replies"),
    ("{{ messages[0].content }}", "does not write a reply once"),
    ("{{ raise_exception('no') }}", "refuses the conversation: no"),
    ("{% for m in messages %}{{ m.content }}{{ m.content if m.role != 'user' }}{% endfor %}",
     "does not write a reply once"),
    (CHAT.replace("m.content", "(m.content if m.role == 'user' else messages[0].content ~ m.content)"),
     "not that of its replies"),
], ids=["dump", "header-without-prompt", "other", "no-reply", "refuses", "twice", "question-in-the-reply"])  # fmt: skip
def test_template_whose_replies_cannot_be_found_is_refused(source, match):
    with pytest.raises(InputError, match=rf"cannot be found: .*{match}"):
        ChatTemplate(source, finds_generation=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("source", "messages", "match"), [
    (THINKING, CONVERSATION[1:5], "message 2: .* prompt otherwise .*set `learn: last_turn`"),
    (THINKING.replace("A:<think>' if", "A:' if"), CONVERSATION[1:5],
     "message 2: .* this reply otherwise when messages follow it .*set `learn: last_turn`"),
    ("{{ messages[0].role[:0] }}" + CHAT, CONVERSATION[2:3], "message 1: .* before it is needed"),
    (NO_PROMPT_AFTER_TOOLS, [CONVERSATION[1], CONVERSATION[2], {"role": "tool", "content": "t"}, CONVERSATION[4]],
     "message 4: .* no generation prompt after a message of the role 'tool'"),
], ids=["thinks-in-the-prompt", "changes-later", "first", "after-a-tool"])  # fmt: skip
def test_record_for_which_nothing_is_proven_is_bad(source, messages, match):
    with pytest.raises(RecordProblem, match=match) as caught:
        learnt(source, messages)
    assert caught.value.kind == "generation-not-found"


def test_only_wanted_replies_have_to_be_found():
    assert learnt(THINKING, CONVERSATION[1:5], learnt=[3]) == ["2</s>\n"]
    assert learnt(CHAT, CONVERSATION, learnt=[]) == []


def test_template_that_needs_a_record_s_variables_is_proven_with_them():
    source = "{{ day }}" + CHAT
    assert learnt(source, CONVERSATION[1:3], day="Mon") == ["1 <|end|>\n"]
    with pytest.raises(RecordProblem, match="'day' is undefined: nobody gave"):
        learnt(source, CONVERSATION[1:3])
    with pytest.raises(RecordProblem, match="does not write a reply once") as caught:
        learnt("{{ day }}{{ messages[0].content }}", CONVERSATION[1:3], day="Mon")
    assert caught.value.kind == "generation-not-found"


MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% for word in m.content.split(' ') %}{% generation %}{{ word }}{% endgeneration %}, {% endfor %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(("wanted", "expected"), [([2], ["1", ""]), ([4, 5], ["2", "2!"]), ([], [])])
def test_marked_replies_are_left_out_with_all_their_blocks(wanted, expected):
    text, spans = ChatTemplate(MARKED).render(CONVERSATION, learnt=wanted)
    assert [text[begin:end] for begin, end in spans] == expected


def test_replies_that_share_a_block_cannot_be_told_apart():
    source = "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}"
    assert ChatTemplate(source).render(CONVERSATION)[1] == [(0, 12)]
    with pytest.raises(RecordProblem, match=r"expected a {% generation %} block of its own") as caught:
        ChatTemplate(source).render(CONVERSATION, learnt=[2])
    assert caught.value.kind == "generation-not-found"
