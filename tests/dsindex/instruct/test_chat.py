"""Chat templates: what they render, what is learnt, and what they may not do."""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dsindex.errors import InputError
from dsindex.instruct.chat import ChatTemplate
from dsindex.instruct.records import RecordProblem

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


def test_template_renders_and_marks_what_is_generated() -> None:
    text, spans = ChatTemplate(CHATML).render(MESSAGES)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\n日本?<|im_end|>\n"
        "<|im_start|>assistant\n🎉<|im_end|>\n"
    )
    assert [text[begin:end] for begin, end in spans] == ["Hello!<|im_end|>", "🎉<|im_end|>"]


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
            "{% macro g() %}{{ caller(1) }}{% endmacro %}{% call(x) g() %}{{ x }}{% endcall %}",
            "1",
            id="caller",
        ),
    ],
)
def test_template_language_is_there(source: str, expected: str) -> None:
    template = ChatTemplate(source, constants={"bos_token": "<s>"}, date=datetime.date(2026, 3, 5))
    assert template.render(MESSAGES, tools=[{"name": "f", "n": 1, "é": "<&>"}]) == (expected, [])


TOO_MUCH = "more work or output than its input can justify"


@pytest.mark.parametrize(
    ("source", "match"),
    [
        pytest.param("{{ ''.__class__.__mro__ }}", "__class__", id="class"),
        pytest.param("{{ messages.__init__.__globals__ }}", "__init__", id="globals"),
        pytest.param("{{ ().__class__.__base__.__subclasses__() }}", "__class__", id="subclasses"),
        pytest.param("{{ messages['__class__'] }}", "__class__", id="item"),
        pytest.param("{{ messages | map(attribute='__class__') | list }}", "__class__", id="map-attribute"),
        pytest.param("{{ raise_exception.__globals__ }}", "__globals__", id="function"),
        pytest.param("{{ namespace.__init__ }}", "__init__", id="namespace"),
        pytest.param("{% set n = namespace() %}{{ n._Namespace__attrs }}", "_Namespace__attrs", id="namespace-inside"),
        pytest.param("{{ dict.fromkeys }}", "fromkeys", id="dict"),
        pytest.param("{{ '{0.__class__}'.format(1) }}", "format", id="format"),
        pytest.param("{{ '%s' % messages }}", "formatting with %", id="percent"),
        pytest.param("{{ messages.append(1) }}", "append", id="append"),
        pytest.param("{{ messages[0].update({}) }}", "update", id="update"),
        pytest.param("{{ lipsum() }}", "undefined", id="lipsum"),
        pytest.param("{{ messages.index }}", "not data", id="address"),
        pytest.param("{{ namespace() }}", "not data", id="namespace-text"),
        pytest.param("{{ 1 is sameas 1 }}", "sameas", id="identity"),
        pytest.param("{{ strftime_now('%Y') }}", "template_date", id="clock"),
        pytest.param("{{ raise_exception('no system') }}", "refuses the conversation: no system", id="raise"),
        pytest.param("{{ x.y }}", "'x' is undefined", id="undefined"),
        pytest.param("{{ 1 / 0 }}", "division by zero", id="division"),
        pytest.param("{{ messages() }}", "cannot be called", id="call-data"),
        pytest.param("{% for x in namespace() %}{% endfor %}", "cannot loop over", id="loop"),
        pytest.param(
            "{% for i in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "its end", id="open-block"
        ),
    ],
)
def test_template_that_reaches_out_or_fails_is_refused(source: str, match: str) -> None:
    with pytest.raises(RecordProblem, match=f"^the chat template .*{match}") as caught:
        ChatTemplate(source).render(MESSAGES)
    assert caught.value.kind == "template-failed"


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("{% for i in range(10**12) %}{% endfor %}", id="range"),
        pytest.param("{% for i in range(10**19) %}{% endfor %}", id="huge-range"),
        pytest.param("{% for i in range(10**4) %}{% for j in range(10**4) %}{% endfor %}{% endfor %}", id="nested"),
        pytest.param(
            "{% for i in range(10**4) %}{% for j in range(10**5) if false %}{% endfor %}{% endfor %}", id="filtered"
        ),
        pytest.param("{% for i in range(10**4) %}" + "x" * 10_000 + "{% endfor %}", id="output"),
        pytest.param("{{ 'a' * 10**10 }}", id="product"),
        pytest.param("{{ 10**10 * [1] }}", id="list-product"),
        pytest.param(
            "{% set n = namespace(x='ab') %}{% for i in range(70) %}{% set n.x = n.x ~ n.x %}{% endfor %}", id="~"
        ),
        pytest.param(
            "{% set n = namespace(x='ab') %}{% for i in range(70) %}{% set n.x = n.x + n.x %}{% endfor %}", id="+"
        ),
        pytest.param(
            "{% set n = namespace(x='ab') %}{% for i in range(70) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
            id="tree",
        ),
        pytest.param(
            "{% set n = namespace(x=[1]) %}{% for i in range(70) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
            "{{ n.x == 1 }}",
            id="comparison",
        ),
        pytest.param(
            "{% set n = namespace(x='ab') %}{% for i in range(70) %}{% set y %}{{ n.x }}{{ n.x }}{% endset %}"
            "{% set n.x = y %}{% endfor %}",
            id="capture",
        ),
        pytest.param(
            "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(35) }}", id="macro"
        ),
        pytest.param(
            "{% macro f() %}{% set x %}"
            + "y" * 100_000
            + "{% endset %}{% endmacro %}{% for i in range(50000) %}{{ f() }}{% endfor %}",
            id="macro-capture",
        ),
        pytest.param(
            "{% for i in range(50000) %}{% set x %}" + "y" * 100_000 + "{% endset %}{% endfor %}",
            id="capture-in-loop",
        ),
        pytest.param("{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}", id="replace"),
        pytest.param("{{ ('a' * 10**6) | replace('', 'b' * 10**6) }}", id="replace-filter"),
        pytest.param("{{ ('a' * 10**6).join(['b'] * 10**5) }}", id="join"),
        pytest.param("{{ (['b'] * 10**5) | join('a' * 10**6) }}", id="join-filter"),
        pytest.param("{% set x = range(10**5) | list %}{% for i in range(10**4) %}{{ 5 in x }}{% endfor %}", id="in"),
        pytest.param(
            "{% set x = 'a' * 10**6 %}{% for i in range(10**4) %}{{ x[1:] | length }}{% endfor %}", id="slice"
        ),
        pytest.param(
            "{% set x = [0] * 10**6 %}{% for i in range(10**4) %}{{ x | select | length }}{% endfor %}", id="select"
        ),
        pytest.param(
            "{% set x = 'a' * 10**6 %}{% for i in range(10**4) %}{{ x | upper | length }}{% endfor %}", id="filter"
        ),
        pytest.param(
            "{% set x = 'a' * 10**6 %}{% for i in range(10**4) %}{{ x.strip('b') | length }}{% endfor %}", id="strip"
        ),
    ],
)
@pytest.mark.timeout(20)
def test_template_without_end_is_refused_in_bounded_time(source: str) -> None:
    template = ChatTemplate(source)
    with pytest.raises(RecordProblem, match=TOO_MUCH):
        template.render(MESSAGES)


@pytest.mark.parametrize(
    ("source", "match"),
    [
        pytest.param("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "more than 40 deep", id="macro"),
        pytest.param(
            "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}", "more than 40 deep", id="loop"
        ),
        pytest.param("{{ 2 ** (10**6) }}", "4096 bits", id="power"),
        pytest.param("{{ 'a' | indent(10**9) }}", "indent by more than 64", id="indent"),
        pytest.param("{{ messages | tojson(indent=10**9) }}", "tojson by more than 64", id="tojson"),
        pytest.param("{{ strftime_now('%999999999d') }}", "date format", id="date"),
    ],
)
def test_template_with_a_bomb_is_refused(source: str, match: str) -> None:
    with pytest.raises(RecordProblem, match=match):
        ChatTemplate(source, date=datetime.date(2026, 1, 1)).render(MESSAGES)


@pytest.mark.parametrize(
    ("source", "match"),
    [
        pytest.param("{% for %}", "line 1", id="syntax"),
        pytest.param("\n{{ x | attr('y') }}", "line 2: No filter named 'attr'", id="attr"),
        pytest.param("{{ x | random }}", "No filter named 'random'", id="random"),
        pytest.param("{{ 'a' | center(10**10) }}", "No filter named 'center'", id="center"),
        pytest.param("{% include 'x' %}", "blocks, imports or other files", id="include"),
        pytest.param("{% import 'os' as os %}", "blocks, imports", id="import"),
        pytest.param("{% block a %}{{ self.a() }}{% endblock %}", "blocks", id="block"),
        pytest.param("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "recursion", id="deep"),
        pytest.param("x" * 200_001, "at most 200000 characters", id="long"),
        pytest.param("{% generation %}{% generation %}{% endgeneration %}", "inside generation", id="nested"),
        pytest.param("{% macro f() %}{% generation %}{% endgeneration %}{% endmacro %}", "inside macro", id="in-macro"),
        pytest.param("{% set x %}{% generation %}{% endgeneration %}{% endset %}", "inside set", id="in-set"),
    ],
)  # fmt: skip
def test_template_that_cannot_be_used_is_refused_at_once(source: str, match: str) -> None:
    with pytest.raises(InputError, match=f"^chat template: .*{match}"):
        ChatTemplate(source)


def test_budget_grows_with_the_conversation() -> None:
    messages = [{"role": "user", "content": "word " * 200}, {"role": "assistant", "content": "reply " * 200}] * 2_000
    text, spans = ChatTemplate(CHATML).render(messages)
    assert len(spans) == 2_000
    assert len(text) > 4_000_000


def test_tools_are_none_where_there_are_none() -> None:
    source = "{{ tools is none }}{{ documents is none }}{{ nosuch is none }}"
    assert ChatTemplate(source).render(MESSAGES)[0] == "TrueTrueFalse"


def test_renderings_in_threads_do_not_share_a_budget() -> None:
    source = "{% for i in range(40000) %}{% if loop.last %}{{ messages[0].content }}{% endif %}{% endfor %}"
    template = ChatTemplate(source)
    conversations: list[list[dict[str, Any]]] = [[{"role": "user", "content": str(i)}] for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert [text for text, _ in pool.map(template.render, conversations)] == [str(i) for i in range(4)]


def test_lone_surrogates_cannot_forge_what_is_learnt() -> None:
    with pytest.raises(RecordProblem, match="lone surrogate"):
        ChatTemplate(CHATML).render([{"role": "user", "content": "\udfa0x\udfa1"}])


def test_modalities_template_lines_are_joined() -> None:
    source = "{% for turn in messages %}\n{{ turn.role + ':' }}\n{{ turn.content + '\\n' }}\n{% endfor %}\n"
    assert ChatTemplate(source, join_lines=True).render(MESSAGES[:2])[0] == "system:Be brief.\nuser:Hi\n"
    assert ChatTemplate(source).render(MESSAGES[1:2])[0] == "user:\nHi\n\n"
