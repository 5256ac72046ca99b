"""Chat configurations from record to mask; what is too long; what a tokenizer's folder brings."""

import json

import pytest

from dsindex.chat.config import parse_config
from dsindex.chat.encode import QUOTED_ARGUMENTS, UNTRAINED_END, InstructionEncoder
from dsindex.chat.tokens import ChatTokenizer
from dsindex.errors import InputError, RecordProblem, TokenizerError
from tests.support.chat_tokenizers import train, trained_text
from tests.support.conversations import HUMAN, config, conversation
from tests.support.golden import GOLDEN

PLAIN = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
MODALITIES = (GOLDEN / "modalities_chat.yaml").read_text()


def chat(*texts, system=""):
    messages = [{"role": "system", "content": system}] if system else []
    return {"messages": messages + [{"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(texts)]}


def encoder(text, *, template=PLAIN, kind="bytes"):
    return InstructionEncoder(parse_config(f"chat_template: {json.dumps(template)}\n{text}"), train(kind))


def pieces(encoded, kind="bytes"):
    """Return the masked and the trainable text of each sequence."""
    tokenizer, begin, text_pairs = train(kind), 0, []
    for length in encoded.lengths.tolist():
        chosen = list(zip(encoded.tokens[begin : begin + length], encoded.mask[begin : begin + length], strict=True))
        texts = ["".join(tokenizer.token_text(int(t)) for t, m in chosen if m == trained) for trained in (0, 1)]
        text_pairs.append((texts[0].replace("Ġ", " "), texts[1].replace("Ġ", " ")))
        begin += length
    assert begin == len(encoded.tokens) == len(encoded.mask)
    return text_pairs


def test_modalities_configuration_learns_between_its_markers():
    encoded = InstructionEncoder(parse_config(MODALITIES), train("bytes")).encode(chat("up?", "Hello!", "who", "you"))
    masked = "You are Mody.ĊUser: up?ĊAssistant:<|im_start|><|im_end|>User: whoĊAssistant:<|im_start|><|im_end|>"
    assert pieces(encoded) == [(masked, "Hello!Ċ</s>youĊ</s>")]
    with pytest.raises(RecordProblem, match=r"<\|im_end\|>") as caught:
        InstructionEncoder(parse_config(MODALITIES), train("bytes")).encode(chat("up", "you<|im_end|>"))
    assert caught.value.kind == "marker-in-text"
    with pytest.raises(InputError, match="the tokenizer has none"):
        InstructionEncoder(parse_config("{}"), train("bytes"))


CHAT = chat("Hi", "Hello", "who", "you", "Go", "by", system="S")


def test_too_long_conversations_are_refused_with_their_length():
    with pytest.raises(RecordProblem, match=r"\d+ tokens, more than 10; .* --longer-than-pack drop") as caught:
        encoder("max_length: 10").encode(CHAT)
    assert caught.value.kind == "too-long"


def test_truncation_keeps_the_beginning_and_counts_the_rest():
    whole, cut = encoder("").encode(CHAT), encoder("max_length: 9\ntoo_long: truncate").encode(CHAT)
    assert cut.tokens.tolist() == whole.tokens[:9].tolist()
    assert cut.mask.tolist() == whole.mask[:9].tolist()
    assert (cut.cut, cut.fingerprint) == (len(whole.tokens) - 9, whole.fingerprint)
    with pytest.raises(RecordProblem, match="nothing is trained on in the first 2"):
        encoder("max_length: 2\ntoo_long: truncate").encode(CHAT)


@pytest.mark.parametrize(("limit", "expected"), [
    pytest.param(12, [("SHiwho", "Hello</s>you</s>"), ("SGo", "by</s>")], id="two"),
    pytest.param(7, [("SHi", "Hello</s>"), ("Swho", "you</s>"), ("SGo", "by</s>")], id="three"),
])  # fmt: skip
def test_splitting_cuts_between_exchanges_and_repeats_the_system_message(limit, expected):
    encoded = encoder(f"max_length: {limit}\ntoo_long: split").encode(CHAT)
    assert pieces(encoded) == expected
    assert encoded.lengths.max() <= limit
    assert encoded.cut == 0


def test_splitting_refuses_an_exchange_that_does_not_fit():
    with pytest.raises(RecordProblem, match=r"exchange 1 and its prompt: \d+ tokens, more than 5"):
        encoder("max_length: 5\ntoo_long: split").encode(CHAT)
    whole = encoder("max_length: 2\ntoo_long: split", template="{% generation %}a b c d{% endgeneration %}")
    with pytest.raises(RecordProblem, match="no exchange to split at"):
        whole.encode(chat(system="S"))


def test_splitting_drops_and_counts_a_last_question_without_reply():
    encoded = encoder("max_length: 8\ntoo_long: split").encode(chat("Hi", "Hello", "who is this you who"))
    assert pieces(encoded) == [("Hi", "Hello</s>")]
    assert encoded.cut == len(train("bytes").encode("who is this you who").ids)


def test_splitting_a_construction_repeats_its_prompt():
    splitting = config(HUMAN + "max_length: 7\ntoo_long: split")
    record = conversation("who", "you", "Go", "by", role="S")
    encoded = InstructionEncoder(splitting, train("bytes")).encode(record)
    assert pieces(encoded) == [("<s>Swho", "you</s>"), ("<s>SGo", "by</s>")]


def test_fingerprint_is_of_the_content_only():
    first = encoder("").encode({"id": 1, **chat("a", "b")})
    again = encoder("").encode({**chat("a", "b"), "id": 2})
    other = encoder("").encode(chat("a", "c"))
    assert first.fingerprint == again.fingerprint != other.fingerprint


def write_folder(folder, **config):
    (folder / "tokenizer.json").write_text(train("bytes")._json)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_template_and_special_tokens_come_from_the_tokenizers_folder(tmp_path):
    folder = write_folder(tmp_path, eos_token={"content": "</s>"}, bos_token="<s>", chat_template=PLAIN)
    encoded = InstructionEncoder(parse_config("{}"), ChatTokenizer.from_path(folder)).encode(chat("Hi", "you"))
    assert pieces(encoded) == [("Hi", "you</s>")]
    (folder / "chat_template.jinja").write_text("{% generation %}{{ bos_token }}{% endgeneration %}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "sft.jinja").write_text(PLAIN)
    tokenizer = ChatTokenizer.from_path(folder)
    for name, expected in (("default", ("", "<s>")), ("sft", ("Hi", "you</s>"))):
        encoder = InstructionEncoder(parse_config(f"chat_template_name: {name}"), tokenizer)
        assert pieces(encoder.encode(chat("Hi", "you"))) == [expected]
    with pytest.raises(InputError, match="template 'rag': the tokenizer has default, sft"):
        InstructionEncoder(parse_config("chat_template_name: rag"), tokenizer)
    write_folder(tmp_path, chat_template=[{"name": "a", "template": None}])
    with pytest.raises(TokenizerError, match="chat_template is neither a text nor a list"):
        ChatTokenizer.from_path(folder)


def trained_of(config, record, template=PLAIN):
    return trained_text(encoder(config, template=template).encode(record))


@pytest.mark.parametrize(("more", "expected"), [("", "you</s>what</s>"), ("\nlearn: last_turn", "what</s>")])
def test_only_wanted_replies_are_trained_on_also_in_parts(more, expected):
    record = chat("up", "you", "up", "no", "up", "what")
    record["messages"][3]["weight"] = 0
    config = f"special_tokens: {{eos_token: </s>}}\nmax_length: 24\ntoo_long: split{more}"
    assert trained_of(config, record).replace(" ", "") == expected


def test_markers_cannot_leave_a_reply_out():
    record = chat("up", "you")
    record["messages"][1]["train"] = False
    with pytest.raises(RecordProblem, match="instead of markers"):
        InstructionEncoder(parse_config(MODALITIES + "assistant_role: Assistant"), train("bytes")).encode(record)
    with pytest.raises(RecordProblem, match="is not the role of replies, 'assistant'; set `assistant_role`"):
        InstructionEncoder(parse_config(MODALITIES), train("bytes")).encode(record)


def test_tool_messages_stay_with_their_exchange():
    turns = ("user who", "assistant call", "tool up", "assistant you", "user Go", "assistant by")
    messages = [dict(zip(("role", "content"), turn.split(), strict=True)) for turn in turns]
    encoded = encoder("max_length: 10\ntoo_long: split").encode({"messages": messages})
    assert pieces(encoded) == [("whoup", "call</s>you</s>"), ("Go", "by</s>")]
    with pytest.raises(RecordProblem, match="exchange 1 and its prompt: 10 tokens, more than 9"):
        encoder("max_length: 9\ntoo_long: split").encode({"messages": messages})


THINKS = {"role": "assistant", "content": "you", "reasoning_content": "who is up"}
THINKING = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
    "{{ '<think>\n' ~ m.reasoning_content ~ '\n</think>\n\n' if m.reasoning_content }}{{ m.content }}</s>"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(("reasoning", "expected"), [
    ("learn", "<think>\nwho is up\n</think>\n\nyou</s>"), ("mask", "you</s>"), ("drop", "you</s>"),
])  # fmt: skip
@pytest.mark.parametrize("reply", [THINKS, {"role": "assistant", "content": "<think>\nwho is up\n</think>\n\nyou"}])
def test_reasoning_is_trained_masked_or_dropped(reasoning, expected, reply):
    record = {"messages": [{"role": "user", "content": "Hi"}, reply]}
    assert trained_of(f"reasoning: {reasoning}", record, THINKING) == expected
    whole = encoder(f"reasoning: {reasoning}", template=THINKING).encode(record)
    assert ("who is up" in train("bytes").decode(whole.tokens)) is (reasoning != "drop")


@pytest.mark.parametrize(("mode", "reply", "expected"), [
    ("learn", {}, "you"), ("learn", {"reasoning_content": "up"}, "you"),
    ("learn", {"reasoning_content": " "}, "<think></think>you"), ("mask", {"content": "[THINK]up[/THINK]you"}, "you"),
])  # fmt: skip
def test_an_empty_thought_of_the_template_is_not_trained_on(mode, reply, expected):
    record = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "you", **reply}]}
    template = PLAIN.replace("m.content + eos_token", "'<think></think>' + m.content")
    assert trained_of(f"reasoning: {mode}", record, template) == expected


CALLED = chat("Hi", "Go") | {"tools": [{"name": "who"}]}
CALLED["messages"][1] |= {"content": "", "tool_calls": [{"function": {"name": "who"}}]}
NOTES = {
    "reasoning": (PLAIN, {"messages": [{"role": "user", "content": "Hi"}, THINKS]}, ("reasoning_content",)),
    "calls and tools": (
        PLAIN,
        {"messages": [{"role": "user", "content": "Hi"}, {**THINKS, "reasoning_content": "Hi", "tool_calls": [
            {"function": {"name": "weather"}}]}], "tools": [{"name": "weather"}], "documents": [{"text": "page"}]},
        ("documents", "tool_calls", "tools"),
    ),
    "calls of tools": ("who" + PLAIN, CALLED, ("tool_calls",)),
    "tools of calls": (PLAIN.replace("m.content + eos_token", "m.tool_calls[0].function.name"), CALLED, ("tools",)),
    "content": (PLAIN.replace("{{ m.content }}", ""), {}, ("content",)),
    "an end": (PLAIN.replace("m.content }}", "m.content[:70] }}"), chat("who " * 20, "Go"), ("content",)),
    "a thought": (PLAIN.replace("m.content", "m.content.split('</think>')[-1]"), chat("Hi", "<think>who</think>you"),
                  ("a thought in the content",)),
    "a tool's result": (PLAIN.replace("{{ m.content }}", "{{ m.content if m.role == 'user' }}"),
        {"messages": [*chat("Hi", "Go")["messages"], {"role": "tool", "content": '"who"'}]}, ("content",)),
    "tools of a message": (
        "{% for t in tools or [] %}{{ t }}{% endfor %}" + PLAIN,
        {"messages": [{"role": "system", "content": "by", "tools": [{"name": "f"}]}, {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Go", "label": "quality:4", "thinking_blocks": [{"thinking": "by"}],
             "refusal": "No", "reasoning_details": [{"text": "go"}], "tool_plan": "up", "channel": "final"}]},
        ("channel", "label", "reasoning_details", "refusal", "thinking_blocks", "tool_plan", "tools"),
    ),
    "quoted arguments": (
        PLAIN.replace("m.content + eos_token", "m.tool_calls[0].function | tojson"),
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": '{"n": 1}'}}]}]},
        (QUOTED_ARGUMENTS,),
    ),
    "a variable": (PLAIN, {"enable_thinking": True, "chat_template_kwargs": {"x": "", "y": []}}, ("enable_thinking",)),
    "end": (PLAIN.replace("m.content + eos_token", "m.content").replace("{% endgeneration %}",
            "{% endgeneration %}{{ eos_token }}"), {}, (UNTRAINED_END,)),
}  # fmt: skip
"""Template, record, and what is said of it."""


@pytest.mark.parametrize("note", NOTES)
def test_what_a_template_does_not_write_is_noted_or_refused(note):
    template, record, expected = NOTES[note]
    record = {**chat("Go", "by"), **record}
    assert encoder("special_tokens: {eos_token: </s>}", template=template).encode(record).notes == expected
    refusing = encoder("special_tokens: {eos_token: </s>}\nunwritten: refuse", template=template)
    with pytest.raises(RecordProblem, match=expected[0]) as caught:
        refusing.encode(record)
    assert caught.value.kind == "not-written"


def test_spans_of_a_reply_are_not_trained_on():
    record = chat("Hi", "who are you")
    record["messages"][1]["train_detail"] = [{"begin_offset": 3, "end_offset": 6, "train": False}]
    assert trained_of("special_tokens: {eos_token: </s>}", record) == "who you</s>"
    with pytest.raises(RecordProblem, match="message 2: has masked spans, but the template changes its"):
        trained_of("", record, PLAIN.replace("m.content + eos_token", "m.content | upper"))
    record["messages"][1] |= {"content": None, "tool_calls": [{"function": {"name": "you", "arguments": {}}}]}
    record["messages"][1]["train_detail"] = [{"begin_offset": 0, "end_offset": -1, "train": False}]
    assert trained_of("", record, PLAIN.replace("m.content + eos_token", "m.tool_calls[0].function.name")) == "you"


def test_replies_that_share_a_block_cannot_be_left_out():
    template = "{% generation %}{{ messages | map(attribute='content') | join }}{% endgeneration %}"
    record = chat("Hi", "you", "Hi", "by")
    assert trained_of("", record, template) == "HiyouHiby"
    record["messages"][1]["loss"] = False
    with pytest.raises(RecordProblem, match="in a loop over the messages") as caught:
        trained_of("", record, template)
    assert caught.value.kind == "generation-not-found"


def test_spans_of_a_field_are_cut_out_as_in_fast_llm():
    spans = parse_config("message_construction: [text]\nloss_masking_spans: {text: .spans}")
    encoder = InstructionEncoder(spans, train("bytes"))
    assert pieces(encoder.encode({"text": "who are you", "spans": [[0, 3], [8, 10]]})) == [("who you", "are ")]
    with pytest.raises(RecordProblem, match=r"field 'text': .* is not a span of the text"):
        encoder.encode({"text": "who", "spans": [[0, 3]]})
