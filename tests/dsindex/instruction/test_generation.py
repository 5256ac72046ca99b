"""Templates without marks: which text is found, what is refused, and how replies are left out."""

import pytest

from dsindex.errors import InputError, RecordProblem
from dsindex.instruction.encoder import ChatTemplate

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
@pytest.mark.parametrize(
    ("source", "messages", "expected"),
    [
        pytest.param(CHAT, CONVERSATION, ["1 <|end|>\n", "2<|end|>\n", "2!<|end|>\n"], id="chat"),
        pytest.param(CLOSED, CONVERSATION, ["1 <|end|>\n", "2<|end|>\n", "2!<|end|>\n<eos>"], id="closed"),
        pytest.param(INST, CONVERSATION[1:5], [" 1 </s>", " 2 </s>"], id="no-prompt"),
        pytest.param(WORDY, CONVERSATION[1:5], ["1 <|end|>", "2<|end|>"], id="words-at-the-end"),
        pytest.param(THINKING, CONVERSATION[1:3], ["1 </s>\n"], id="thinking"),
    ],
)
def test_replies_are_found_with_what_ends_them(source, messages, expected):
    assert learnt(source, messages) == expected


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("source", "match"),
    [
        pytest.param("{{ messages }}", "generation prompt is not the beginning", id="dump"),
        pytest.param(
            LOOP, r"writes '<\|assistant\|>' before a reply but not as a generation prompt", id="header-without-prompt"
        ),
        pytest.param(LOOP + "{{ '<|bot|>' if add_generation_prompt }}", "not the beginning of its replies", id="other"),
        pytest.param("{{ messages[0].content }}", "does not write a reply once", id="no-reply"),
        pytest.param("{{ raise_exception('no') }}", "refuses the conversation: no", id="refuses"),
        pytest.param(
            "{% for m in messages %}{{ m.content }}{{ m.content if m.role != 'user' }}{% endfor %}",
            "does not write a reply once",
            id="twice",
        ),
        pytest.param(
            CHAT.replace("m.content", "(m.content if m.role == 'user' else messages[0].content ~ m.content)"),
            "not that of its replies",
            id="question-in-the-reply",
        ),
    ],
)
def test_template_whose_replies_cannot_be_found_is_refused(source, match):
    with pytest.raises(InputError, match=rf"cannot be found: .*{match}"):
        ChatTemplate(source, finds_generation=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("source", "messages", "match"),
    [
        pytest.param(
            THINKING,
            CONVERSATION[1:5],
            "message 2: .* prompt otherwise .*set `learn: last_turn`",
            id="thinks-in-the-prompt",
        ),
        pytest.param(
            THINKING.replace("A:<think>' if", "A:' if"),
            CONVERSATION[1:5],
            "message 2: .* this reply otherwise when messages follow it .*set `learn: last_turn`",
            id="changes-later",
        ),
        pytest.param(
            "{{ messages[0].role[:0] }}" + CHAT, CONVERSATION[2:3], "message 1: .* before it is needed", id="first"
        ),
        pytest.param(
            NO_PROMPT_AFTER_TOOLS,
            [CONVERSATION[1], CONVERSATION[2], {"role": "tool", "content": "t"}, CONVERSATION[4]],
            "message 4: .* no generation prompt after a message of the role 'tool'",
            id="after-a-tool",
        ),
    ],
)
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
