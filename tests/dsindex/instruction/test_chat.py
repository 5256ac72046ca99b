"""Chat templates: what they render, what is trained on, and what they cannot do."""

import datetime
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

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
    text, spans = ChatTemplate(CHATML).render(MESSAGES)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\n日本?<|im_end|>\n"
        "<|im_start|>assistant\n🎉<|im_end|>\n"
    )
    assert [text[begin:end] for begin, end in spans] == ["Hello!<|im_end|>", "🎉<|im_end|>"]


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("{{ bos_token }}{{ tools[0].name }}", "<s>f", id="variables"),
        pytest.param(
            "{{ messages | map(attribute='role') | join(',') }}", "system,user,assistant,user,assistant", id="map"
        ),
        pytest.param("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "2", id="selectattr"),
        pytest.param("{{ messages[1:][0].content }}{{ messages[-1]['role'][:4] }}", "Hiassi", id="slices"),
        pytest.param("{{ tools | tojson }}", '[{"name": "f", "n": 1, "é": "<&>"}]', id="tojson"),
        pytest.param("{{ tools | tojson(indent=1) | length }}", "47", id="tojson-indent"),
        pytest.param(
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}{% endfor %}"
            "{{ ns.n }}",
            "15",
            id="namespace",
        ),
        pytest.param(
            "{% for m in messages %}{% if loop.last %}{{ loop.previtem.role }}{% endif %}{% endfor %}",
            "user",
            id="loop",
        ),
        pytest.param(
            "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content[0] }}{% endfor %}",
            "BH",
            id="break",
        ),
        pytest.param("{% macro f(m) %}<{{ m.role }}>{% endmacro %}{{ f(messages[0]) }}", "<system>", id="macro"),
        pytest.param(
            "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
            "role=system;content=Be brief.;",
            id="items",
        ),
        pytest.param("{{ messages[0].content.replace('e', 'E').split('.')[0] | upper }}", "BE BRIEF", id="methods"),
        pytest.param("{{ missing is defined }}{{ missing }}{{ 1 is sameas true }}", "FalseFalse", id="tests"),
        pytest.param("{{ (2 ** 10) * 3 // 2 % 1000 }}", "536", id="numbers"),
        pytest.param("{{ strftime_now('%d %b %Y') }}", "05 Mar 2026", id="date"),
        pytest.param(
            "{% filter upper %}a{% endfilter %}{% set x %}b{% endset %}{{ x }}{{ dict(a=1).a }}", "Ab1", id="blocks"
        ),
        pytest.param("{{ 'x' if add_generation_prompt else 'y' }}{{ {}.get('a', 'z') }}", "yz", id="condition"),
        pytest.param(
            "{% macro g() %}{{ caller(1) }}{% endmacro %}{% call(x) g() %}{{ x }}{% endcall %}", "1", id="caller"
        ),
    ],
)
def test_template_language_is_there(source, expected):
    template = ChatTemplate(source, constants={"bos_token": "<s>"}, date=datetime.date(2026, 3, 5))
    assert template.render(MESSAGES, tools=[{"name": "f", "n": 1, "é": "<&>"}]) == (expected, [])


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("{{ '%s: %05.1f' % (messages[1].role, 2.5) }}", "user: 002.5", id="percent"),
        pytest.param("{{ '{0.role} {n!r:>4}'.format(messages[1], n='x') }}", "user  'x'", id="format"),
        pytest.param("{% block a %}x{% endblock %}{{ self.a() }}", "xx", id="block"),
        pytest.param(
            "{% block a scoped %}{% for m in messages[2:3] %}{% generation %}{{ m.content }}{% endgeneration %}"
            "{% endfor %}{% endblock %}",
            "Hello!",
            id="generation-in-a-block",
        ),
        pytest.param("{{ messages | groupby('role') | map('first') | join }}", "assistantsystemuser", id="groupby"),
        pytest.param("{% for i in range(90000) %}{% endfor %}{{ 'x'.center(5) }}", "  x  ", id="many-steps"),
        pytest.param("{{ 2 ** 5000 % 1000 }}", "376", id="large-numbers"),
        pytest.param("{{ 'ab' | batch(1) | list }}{{ {'b': 1} | dictsort }}", "[['a'], ['b']][('b', 1)]", id="filters"),
        pytest.param("{{ 1 is sameas 1 }}{{ namespace(self=2) }}", "True<Namespace {'self': 2}>", id="tests"),
        pytest.param("{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "aba", id="cycler"),
        pytest.param("{{ (messages[0].keys() - ['role']) | list }}", "['content']", id="set"),
        pytest.param("{{ ''.__class__ }}{{ messages['__init__'] }}", "", id="hidden-attributes-print-as-nothing"),
        pytest.param("{# " + "x" * 300_000 + " #}y", "y", id="long"),
    ],
)  # fmt: skip
def test_what_transformers_allows_works(source, expected):
    text, spans = ChatTemplate(source).render(MESSAGES)
    assert text == expected
    assert [text[begin:end] for begin, end in spans] == (["Hello!"] if "generation" in source else [])


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("source", "match"),
    [
        pytest.param("{{ ''.__class__.__mro__ }}", "__class__", id="class"),
        pytest.param("{{ messages.__init__.__globals__ }}", "__init__", id="globals"),
        pytest.param("{{ ().__class__.__base__.__subclasses__() }}", "__class__", id="subclasses"),
        pytest.param("{{ messages | map(attribute='__class__.x') | list }}", "__class__", id="map-attribute"),
        pytest.param("{{ raise_exception.__globals__.x }}", "__globals__", id="function"),
        pytest.param("{{ '{0.__class__.x}'.format(1) }}", "__class__", id="format"),
        pytest.param("{{ messages.append(1) }}", "append", id="append"),
        pytest.param("{{ messages[0].update({}) }}", "update", id="update"),
        pytest.param("{{ dict.update(messages[0], {}) }}", "has no attribute 'update'", id="update-by-the-class"),
        pytest.param("{{ namespace(__html__=1) }}", "cannot have the name '__html__'", id="namespace-of-python"),
        pytest.param("{% set n = namespace() %}{% set n._x = 1 %}", "cannot have the name '_x'", id="namespace-set"),
        pytest.param("{{ lipsum() }}", "undefined", id="lipsum"),
        pytest.param("{{ messages | map('random') | list }}", "No filter named 'random'", id="random"),
        pytest.param("{{ messages.index }}", "address of an object", id="address"),
        pytest.param("{{ [raise_exception] }}", "address of an object", id="address-inside"),
        pytest.param("{{ 'a' ~ cycler(1) }}", "address of an object", id="address-of-a-cycler"),
        pytest.param("{{ messages | map('upper') }}", "address of an object", id="address-of-a-generator"),
        pytest.param("{{ strftime_now('%Y') }}", "template_date", id="clock"),
        pytest.param("{{ raise_exception('no system') }}", "refuses the conversation: no system", id="raise"),
        pytest.param("{{ raise_exception(messages.index) }}", "method index of list object>$", id="raise-an-address"),
        pytest.param("{{ raise_exception('x' * 10000) }}", "x{900,999}$", id="raise-a-long-reason"),
        pytest.param("{{ x.y }}", "'x' is undefined", id="undefined"),
        pytest.param("{{ 1 / 0 }}", "division by zero", id="division"),
        pytest.param("{{ messages() }}", "not callable", id="call-data"),
        pytest.param("{% for i in range(10**12) %}{% endfor %}", "Range too big", id="range"),
        pytest.param("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion", id="macro"),
        pytest.param("{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}", "recursion", id="loop"),
        pytest.param(
            "{% for i in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "its end", id="open-block"
        ),
    ],
)
def test_template_that_reaches_out_or_fails_is_refused(source, match):
    with pytest.raises(RecordProblem, match=f"^the chat template .*{match}") as caught:
        ChatTemplate(source).render(MESSAGES)
    assert caught.value.kind == "template-failed"


DOUBLE = "{% set n = namespace(x=()) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}{% endfor %}"
SMALL = Limits(cpu_seconds=1.0, memory_bytes=200 << 20)
CPU, MEMORY = "used more than 1 s of CPU time on", "needed more than 200 MiB of memory on"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("source", "what"),
    [
        pytest.param(DOUBLE + "{% set y = n.x %}" + DOUBLE + "{{ n.x == y }}", CPU, id="comparison"),
        pytest.param("{{ ('a' * 10**5) | replace(old='a', new='b' * 10**5) }}", MEMORY, id="replace"),
        pytest.param(
            "{% set n = namespace(x=[]) %}{% for i in range(20) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
            "{{ n.x | tojson(indent=64) }}",
            f"({MEMORY}|{CPU})",
            id="tojson",
        ),
        pytest.param(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", CPU, id="loops"
        ),
        pytest.param("{{ 'a' * 10**10 }}", MEMORY, id="product"),
        pytest.param("{{ 10**10 * [1] }}", MEMORY, id="list"),
        pytest.param("{{ 10 ** (10**11 * messages | length) }}", f"({MEMORY}|{CPU})", id="power"),
        pytest.param("{{ 'a' | indent(10**9) ~ '\n' | indent(10**9) }}", MEMORY, id="indent"),
        pytest.param("{{ '%1000000000d' % 1 }}", MEMORY, id="percent"),
        pytest.param("{{ '{:1000000000}'.format(1) }}", MEMORY, id="format"),
        pytest.param(
            "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(35) }}", CPU, id="macro"
        ),
    ],
)  # fmt: skip
def test_template_without_measure_stops_the_job(source, what):
    """No problem of the record that could be set aside: then output would depend on the machine."""
    template = ChatTemplate(source, limits=SMALL)
    with pytest.raises(LimitReachedError, match=f"^the chat template {what} this record; change it, or take"):
        template.render(MESSAGES)


@pytest.mark.exhaustive
def test_template_that_crashes_stops_the_job():
    levels = "{% for i in range(15) %}{% for j in range(10000) %}{% set n.x = (n.x,) %}{% endfor %}{% endfor %}"
    template = ChatTemplate("{% set n = namespace(x=()) %}" + levels + "{{ {}.get(n.x) }}")
    with pytest.raises(LimitReachedError, match=r"^the chat template crashed on this record \(SIGSEGV: "):
        template.render(MESSAGES)
    assert ChatTemplate(CHATML).render(MESSAGES)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("source", "match"),
    [
        pytest.param("{% for %}", "line 1", id="syntax"),
        pytest.param("\n{{ x | nosuch('y') }}", "line 2: No filter named 'nosuch'", id="filter"),
        pytest.param("{{ x | random }}", "No filter named 'random'", id="random"),
        pytest.param("{% include 'x' %}", "line 1: a chat template cannot use other files", id="include"),
        pytest.param("\n\n{% import 'os' as os %}", "line 3: .* other files", id="import"),
        pytest.param("{% extends 'os' %}", "other files", id="extends"),
        pytest.param("{% if a %}" + "{% elif a %}b" * 6000 + "{% endif %}", "too long, or nested too deep", id="elif"),
        pytest.param("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "too long, or nested too deep", id="deep"),
        pytest.param("{% for i in a %}" * 30 + "{% endfor %}" * 30, "too many statically nested blocks", id="blocks"),
        pytest.param("{% generation %}{% generation %}{% endgeneration %}", "inside generation", id="nested"),
        pytest.param("{% macro f() %}{% generation %}{% endgeneration %}{% endmacro %}", "inside macro", id="in-macro"),
        pytest.param("{% set x %}{% generation %}{% endgeneration %}{% endset %}", "inside set", id="in-set"),
    ],
)  # fmt: skip
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


def test_sets_have_one_order():
    """Texts hash alike in every process, so that even the order of a set depends on the template alone."""
    source = "{{ (dict.fromkeys('abcdefgh').keys() - ['a']) | list }}"
    assert ChatTemplate(source).render(MESSAGES) == ChatTemplate(source).render(MESSAGES)


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


def test_template_can_be_pickled():
    template = pickle.loads(pickle.dumps(ChatTemplate(CHATML)))  # noqa: S301
    assert template.marks_generation
    assert template.render(MESSAGES) == ChatTemplate(CHATML).render(MESSAGES)


def test_tools_are_none_where_there_are_none():
    source = "{{ tools is none }}{{ documents is none }}{{ nosuch is none }}"
    assert ChatTemplate(source).render(MESSAGES)[0] == "TrueTrueFalse"


@pytest.mark.exhaustive
def test_renderings_in_threads_do_not_mix():
    source = "{% for i in range(40000) %}{% if loop.last %}{{ messages[0].content }}{% endif %}{% endfor %}"
    template = ChatTemplate(source)
    conversations = [[{"role": "user", "content": str(i)}] for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert [text for text, _ in pool.map(template.render, conversations)] == [str(i) for i in range(8)]


def test_lone_surrogates_cannot_forge_what_is_learnt():
    with pytest.raises(RecordProblem, match="lone surrogate"):
        ChatTemplate(CHATML).render([{"role": "user", "content": "\udfa0x\udfa1"}])


def test_modalities_template_lines_are_joined():
    source = "{% for turn in messages %}\n{{ turn.role + ':' }}\n{{ turn.content + '\\n' }}\n{% endfor %}\n"
    assert ChatTemplate(source, join_lines=True).render(MESSAGES[:2])[0] == "system:Be brief.\nuser:Hi\n"
    assert ChatTemplate(source).render(MESSAGES[1:2])[0] == "user:\nHi\n\n"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("source", "given", "expected"),
    [
        pytest.param("{{ today }}", {"today": "x"}, "x", id="given"),
        pytest.param("{{ today | default('x') }}{{ today }}", {}, "x", id="default"),
        pytest.param("{% if tone | upper == 'LOUD' %}!{% endif %}{{ tone }}", {}, "", id="asked-for"),
        pytest.param("{{ bos_token }}", {}, "", id="special-token"),
        pytest.param("{% if false %}{% set x = 1 %}{% endif %}{{ x }}", {}, "", id="own-variable"),
    ],
)
def test_variable_that_may_be_missing_is_written_as_nothing(source, given, expected):
    assert ChatTemplate(source).render(MESSAGES, **given) == (expected, [])


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "source", ["{{ today }}", "{{ 'It is ' ~ today }}", "{{ 'It is ' + today }}", "{{ today.day }}"]
)
def test_variable_that_nobody_gave_is_named(source):
    with pytest.raises(
        RecordProblem, match="'today' is undefined: nobody gave this variable; set it under `template_v"
    ):
        ChatTemplate(source).render(MESSAGES)
    with pytest.raises(RecordProblem, match="'eos_token' is undefined; set it under `special_tokens`"):
        ChatTemplate("{{ 'x' + eos_token }}").render(MESSAGES)


def test_tools_have_their_own_template_if_the_tokenizer_has_one():
    template = ChatTemplate("plain", tool_source="{{ tools[0].name }}")
    assert [template.render(MESSAGES, **given)[0] for given in ({}, {"tools": [{"name": "f"}]})] == ["plain", "f"]


def test_a_name_that_every_dict_has_is_not_a_key():
    template = ChatTemplate("{% for m in messages %}{{ m.get('role') }} {{ m.name }} {{ m['get'] }}{% endfor %}")
    text, _ = template.render([{"role": "user", "content": "a", "get": "b", "name": "c"}])
    assert text == "user c b"
