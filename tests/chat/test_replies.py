"""Replies found in the text of templates without `{% generation %}`."""

import datetime
import re

import pytest

from dsindex.chat.config import read_template, template_names
from dsindex.chat.conversations import ConversationReader
from dsindex.chat.rendering import ChatTemplate
from dsindex.errors import RecordProblem
from tests.support.drawn_chats import NUM_CONVERSATIONS, draw

VARIABLES = {"constants": {"bos_token": "<s>", "eos_token": "</s>"}, "date": datetime.date(2026, 1, 31)}
U, V = {"role": "user", "content": "Hello?"}, {"role": "user", "content": "Hello"}
R, S = {"role": "assistant", "content": "Hello"}, {"role": "assistant", "content": "  Hello?\n"}
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"n": 1}}}]}
RESULT = {"role": "tool", "content": "f"}


def marked(source, messages, **variables):
    """The text, with « and » around what is trained on."""
    text, spans = ChatTemplate(source, **VARIABLES).render(messages, **variables)
    for begin, end, _ in reversed(spans):
        text = f"{text[:begin]}«{text[begin:end]}»{text[end:]}"
    return text


def are_equal(text, ours, theirs):
    """Whether spans are equal but for white space and empty thoughts, which are not trained on in any case."""
    trained = [{at for begin, end, _ in spans for at in range(begin, end)} for spans in (ours, theirs)]
    blanked_text = re.sub(r"<think>\s*</think>", lambda match: " " * len(match[0]), text)
    return all(blanked_text[at].isspace() for at in trained[0] ^ trained[1])


@pytest.mark.parametrize("name", template_names())
def test_replies_are_found_where_the_template_would_mark_them(name):
    source = read_template(name)
    stock = re.sub(r"\{%-? (?:end)?generation -?%\}", "{{- '' -}}", source)
    assert stock != source
    template, stock_template = ChatTemplate(source, **VARIABLES), ChatTemplate(stock, **VARIABLES)
    counts = {"equal": 0, "refused": 0}
    for seed in range(NUM_CONVERSATIONS):
        conversation = ConversationReader().read(draw(seed))
        try:
            expected = template.render(conversation.messages, **conversation.variables)
        except RecordProblem:
            continue
        try:
            text, spans = stock_template.render(conversation.messages, **conversation.variables)
        except RecordProblem:
            counts["refused"] += 1
        else:
            assert text == expected.text
            assert are_equal(text, spans, expected.spans), seed
            counts["equal"] += 1
    assert counts["equal"] > 20 * counts["refused"], counts


LOOP, END = "{% for m in messages %}", "{% endfor %}{% if add_generation_prompt %}{{ 'A:' }}{% endif %}"
FOUND = {
    LOOP + "{{ m.role[0] | upper + ':' + m.content + ';' }}" + END: "U:Hello?;A:«Hello;»U:Hello;A:«  Hello?\n;»",
    LOOP + "{{ m.role[0] | upper }}:{{ m.content | trim }};{{ '\n' }}" + END:
        "U:Hello?;\nA:«Hello;\n»U:Hello;\nA:«Hello?;\n»",
    "{% for i in range(messages | length) %}{% set m = messages[i] %}{{ m.role[0] | upper }}:{{ m.content }};" + END:
        "U:Hello?;A:«Hello;»U:Hello;A:«  Hello?\n;»",
    LOOP + "{% if m.role == 'user' %}[{{ m.content }}]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}":
        "[Hello?]«Hello</s>»[Hello]«  Hello?\n</s>»",
    LOOP + "{{ m.role[0] | upper }}:{{ '<think></think>' if m.role == 'assistant' }}{{ m.content }};"
    "{% endfor %}{% if add_generation_prompt %}A:<think>{% endif %}":
        "U:Hello?;A:«<think></think>Hello;»U:Hello;A:«<think></think>  Hello?\n;»",
    LOOP + "{{ 'U:' if loop.index % 2 else 'A:</think>' }}{{ m.content }};" + END.replace("A:", "A:<think></think>"):
        "U:Hello?;A:</think>«Hello;»U:Hello;A:</think>«  Hello?\n;»",
    "{% macro w(m) %}{{ m.role[0] | upper }}:{{ m.content }};{% endmacro %}" + LOOP + "{{ w(m) }}" + END:
        "U:Hello?;A:«Hello;»U:Hello;A:«  Hello?\n;»",
}  # fmt: skip


@pytest.mark.quick(3)
@pytest.mark.parametrize("source", FOUND, ids=range(len(FOUND)))
def test_a_reply_is_what_follows_the_header_up_to_its_end(source):
    assert marked(source, [U, R, V, S]) == FOUND[source]


WRITES = "{{ m.role[0] | upper }}:{{ m.content }}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %};"


def test_calls_are_found_and_their_results_are_not_trained_on():
    text = marked(LOOP + WRITES + END, [U, CALL, RESULT, R])
    assert text == 'U:Hello?;A:«{"function": {"name": "f", "arguments": {"n": 1}}};»T:f;A:«Hello;»'
    reads = "{% if m.role != 'tool' %}{{ m.role[0] if m.role == 'user' }}{{ '>' if loop.index == 4 }}"
    reads += "{{ m.content or m.tool_calls[0].function.name }};{% else %}{{ m.content }}{% endif %}{% endfor %}"
    reads += "{{ '>' if messages[-1].role == 'tool' }}"  # in any case, as in DeepSeek V3's template
    assert marked(LOOP + reads, [U, CALL, RESULT, R]) == "uHello?;«f;»f>«Hello;»"


def test_an_empty_reply_does_not_depend_on_the_replies_before_it():
    source = LOOP + "{{ m.role[0] | upper }}:{% for part in m.content %} {{ part.text }}{% endfor %};" + END
    turns = [
        {**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in (U, R, V, {**R, "content": ""})
    ]
    assert marked(source, turns) == "U: Hello?;A:« Hello;»U: Hello;A:« ;»"


REFUSED = {
    "no-end": (LOOP + "{{ m.role[0] | upper }}:{{ m.content }}" + END, "nothing that ends a reply"),
    "end-of-the-last": (LOOP + "{{ m.role[0] | upper }}:{{ m.content }}{{ ';' if loop.last }}" + END, "that ends"),
    "no-loop": ("U:{{ messages[0].content }}A:{{ messages[1].content }};{{ messages[3].content }}", "it in a loop"),
    "other-end": (LOOP + "{{ m.role[0] | upper }}:{{ m.content }}{{ '!' if loop.last else ';' }}" + END, "'Hello!'"),
    "other-text": (LOOP + "{{ m.role[0] | upper }}:{{ m.content | length }};" + END, "changes the texts"),
    "other-header": (LOOP + "{{ m.role[0] }}:{{ m.content }};" + END, "generation prompt is 'A:', but .* 'a:Hello"),
    "no-part": ("{{ raise_exception('two') if messages | length < 2 }}" + LOOP + "{{ m.content }};" + END,
        "a part of the conversation, which is needed to find replies: .* refuses the conversation: two"),
    "no-thought": (LOOP + "{{ m.role[0] | upper }}:{{ m.content }};" + END.replace("'A:'", "'A:<think>'"),
        "opens a thought, but the template writes the reply without one"),
    "no-prompt": (LOOP + WRITES + "{% endfor %}", "2: the generation prompt is '', but the template writes 'A:'"),
    "prompt-in-any-case": (LOOP + WRITES + "{% endfor %}A:", "4: behind it, .* a prompt for another reply: 'A:'"),
    "instruction-behind-the-loop": (LOOP + WRITES + END.replace("%}{", "%}S:Act;{", 1), "another reply: 'S:Act;'"),
    "question-in-reply": (LOOP + "{% if m.role == 'assistant' %}A:{{ messages[0].content }}{{ m.content }};{% endif %}"
        + END, r"message 2: it is 'Hello\?Hello;' by the template's loop, but 'Hello;' by its own texts"),
}  # fmt: skip


@pytest.mark.quick(3)
@pytest.mark.parametrize(("source", "match"), REFUSED.values(), ids=REFUSED)
def test_a_reply_is_refused_if_the_ways_disagree(source, match):
    with pytest.raises(RecordProblem, match=match) as caught:
        ChatTemplate(source).render([U, R, V, S])
    assert caught.value.kind == "generation-not-found"
