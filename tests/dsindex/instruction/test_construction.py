"""The spec's message construction: its own record, its own YAML, and every way in which a record can be wrong."""

import pickle

import numpy as np
import pytest

from dsindex.errors import InputError, RecordProblem, TokenizerError
from dsindex.instruction.config import parse_config
from dsindex.instruction.encoder import InstructionEncoder
from dsindex.instruction.tokens import show_masks
from tests.support.chat_tokenizers import KINDS, train
from tests.support.conversations import HUMAN, SPEC_RECORD, SPEC_YAML, config, conversation

# What is trained on, one character each of the texts in order: role, instruction, six messages.
SPEC_LEARNT = [False, False, False, True, False, True, False, True]


def texts_of(record):
    return [record["role"], record["instruction"], *(turn["value"] for turn in record["conversations"])]


@pytest.mark.parametrize("kind", KINDS)
def test_spec_example_has_the_tokens_of_its_texts_and_learns_the_replies(kind):
    tokenizer = train(kind)
    encoded = InstructionEncoder(parse_config(SPEC_YAML), tokenizer).encode(SPEC_RECORD)
    tokens, mask = [0], [0]
    for text, learnt in zip(texts_of(SPEC_RECORD), SPEC_LEARNT, strict=True):
        ids = tokenizer.encode(text).ids.tolist()
        tokens += ids
        mask += [int(learnt)] * len(ids)
    assert encoded.tokens.tolist() == [*tokens, 1]
    assert encoded.mask.tolist() == [*mask, 1]
    assert (encoded.tokens.dtype, encoded.mask.dtype) == (np.uint32, np.uint8)
    assert encoded.lengths.tolist() == [len(encoded.tokens)]
    assert (encoded.cut, encoded.special_in_text) == (0, False)


def test_spec_example_side_by_side_with_its_text():
    tokenizer = train("bytes")
    record = conversation("Hello!", "Hi you", "Goodbye", "Goodbye!", role="Vicuna", instruction="Help")
    encoded = InstructionEncoder(parse_config(SPEC_YAML), tokenizer).encode(record)
    lines = [line.split(" | ") for line in show_masks(encoded.tokens, encoded.mask, tokenizer).split("\n")]
    assert [line[:3] for line in lines] == [
        ["  -  ", "'<s>VicunaHelpHello!'", "<s> Vi cu na H el p H el lo !"],
        ["learn", "'Hi you'", "H i Ġyou"],
        ["  -  ", "'Goodbye'", "Go od by e"],
        ["learn", "'Goodbye!</s>'", "Go od by e ! </s>"],
    ]
    assert " ".join(line[3] for line in lines) == " ".join(map(str, encoded.tokens.tolist()))


def test_encoder_gives_the_same_after_pickling():
    encoder = InstructionEncoder(parse_config(SPEC_YAML), train("unigram"))
    again = pickle.loads(pickle.dumps(encoder))  # noqa: S301
    first, second = encoder.encode(SPEC_RECORD), again.encode(SPEC_RECORD)
    assert first.tokens.tolist() == second.tokens.tolist()
    assert first.fingerprint == second.fingerprint


def test_prefixes_separators_and_eos_after_each_reply():
    tokenizer = train("bytes")
    encoder = InstructionEncoder(
        config(
            "message_construction: [conversations]\n"
            "loss_masking_jq_patterns: ['.conversations | select(.from == \"human\")']\n"
            'eos_after: reply\nseparator: "\\n"\nrole_prefixes: {user: "Q:", assistant: "A:"}'
        ),
        tokenizer,
    )
    encoded = encoder.encode(conversation("up", "you", "up", "you"))
    expected = [("<s>", 0), ("Q:", 0), ("up", 0), ("\nA:", 0), ("you", 1), ("</s>", 1)]
    expected += [("\nQ:", 0), ("up", 0), ("\nA:", 0), ("you", 1), ("</s>", 1)]
    tokens, mask = [], []
    for text, learnt in expected:
        ids = tokenizer.encode(text).ids.tolist()
        tokens += ids
        mask += [learnt] * len(ids)
    assert encoded.tokens.tolist() == tokens
    assert encoded.mask.tolist() == mask


def test_messages_with_role_and_content_work_the_same():
    mask = "loss_masking_jq_patterns: ['.messages | select(.role == \"user\")']\nmessage_construction: [messages]"
    encoded = InstructionEncoder(config(mask), train("bytes")).encode(
        {"messages": [{"role": "user", "content": "up"}, {"role": "assistant", "content": "you"}]}
    )
    assert encoded.mask[[0, -1]].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("record", "kind", "match"),
    [
        pytest.param({"role": "x"}, "missing-field", "field 'conversations'.*matches nothing", id="missing-field"),
        pytest.param({"role": "x", "conversations": None}, "missing-field", "conversations", id="null-field"),
        pytest.param({"role": "x", "conversations": []}, "no-turns", "at least one message", id="no-turns"),
        pytest.param({"role": "x", "conversations": 5}, "bad-field", "a text or a list", id="number"),
        pytest.param({"role": "x", "conversations": [5]}, "bad-field", "message 1: expected an object", id="no-object"),
        pytest.param(
            {"role": "x", "conversations": [{"from": "human", "value": "a"}, {"from": "bard", "value": "b"}]},
            "unknown-role",
            "message 2: .*'bard'",
            id="unknown-role",
        ),
        pytest.param(
            {"role": "x", "conversations": [{"from": "human"}]}, "missing-field", "message 1: .*content", id="no-value"
        ),
        pytest.param(
            {"role": "x", "conversations": [{"from": "gpt", "value": "b"}]},
            "pattern-no-match",
            "selects nothing",
            id="no-match",
        ),
        pytest.param(conversation("a", role="x"), "nothing-learnt", "at least one token to learn", id="all-masked"),
        pytest.param(conversation("a", "\ud800", role="x"), "bad-text", r"U\+D800", id="surrogate"),
        pytest.param(conversation("", "", role=""), "no-turns", "at least one text", id="no-text"),
    ],
)
def test_record_problems_are_named(record, kind, match):
    with pytest.raises(RecordProblem, match=match) as caught:
        InstructionEncoder(config(HUMAN), train("bytes")).encode(record)
    assert caught.value.kind == kind


def test_optional_fields_and_unmatched_patterns_can_be_allowed():
    lenient = InstructionEncoder(config(HUMAN + "optional_fields: [role]\nunmatched_patterns: allow"), train("bytes"))
    encoded = lenient.encode({"conversations": [{"from": "gpt", "value": "you"}]})
    assert encoded.mask.tolist() == [0, *[1] * (len(encoded.tokens) - 1)]


@pytest.mark.parametrize(
    ("kind", "token", "match"),
    [
        pytest.param("bytes", "<|nosuch|>", "exactly one id of its own, got [0-9]+: '<'", id="several"),
        pytest.param("bytes", "", "got 0: none", id="none"),
        pytest.param("wordpiece", "☃", r"got 1: '\[UNK\]'", id="unknown"),
    ],
)
def test_special_tokens_have_to_be_one_id(kind, token, match):
    special = parse_config(f"special_tokens: {{x: '{token}'}}\nmessage_construction: [role]")
    with pytest.raises(TokenizerError, match=f"special token x = .*{match}"):
        InstructionEncoder(special, train(kind))


def test_masking_patterns_have_to_name_a_constructed_field():
    with pytest.raises(InputError, match="masks the field 'system', which is not one of message_construction"):
        InstructionEncoder(config("message_construction: [role]\nloss_masking_jq_patterns: [.system]"), train("bytes"))
    with pytest.raises(InputError, match="expected a jq pattern for the field 'role', got none"):
        InstructionEncoder(config("message_construction: [role]\njq_patterns: [.system]"), train("bytes"))


def test_special_tokens_in_text_are_counted_or_refused():
    record = conversation("a </s> b", "you", role="x")
    assert InstructionEncoder(config(HUMAN), train("bytes")).encode(record).special_in_text
    with pytest.raises(RecordProblem, match="'</s>'"):
        InstructionEncoder(config(HUMAN + "special_tokens_in_text: refuse"), train("bytes")).encode(record)


def learnt_texts(yaml, record):
    tokenizer = train("bytes")
    encoded = InstructionEncoder(parse_config(yaml), tokenizer).encode(record)
    lines = show_masks(encoded.tokens, encoded.mask, tokenizer).split("\n")
    return [line.split(" | ")[1] for line in lines if line.startswith("learn")]


@pytest.mark.parametrize("missing", [["role"], ["instruction"], ["role", "instruction"]])
@pytest.mark.parametrize("null", [False, True])
def test_records_may_lack_fields_from_which_nothing_is_learnt(missing, null):
    record = {**SPEC_RECORD, **dict.fromkeys(missing)}
    if not null:
        record = {key: value for key, value in record.items() if key not in missing}
    assert learnt_texts(SPEC_YAML, record) == learnt_texts(SPEC_YAML, SPEC_RECORD)
    with pytest.raises(RecordProblem, match=f"field '{missing[0]}': .* under `optional_fields`"):
        learnt_texts(SPEC_YAML + "optional_fields: []\n", record)


def test_special_tokens_of_a_list_are_checked_and_not_written():
    yaml = SPEC_YAML.replace("bos_token: <s>\n    eos_token: </s>", "[<s>, </s>]")
    assert yaml != SPEC_YAML
    encoder = InstructionEncoder(parse_config(yaml), train("bytes"))
    assert encoder.special_ids == {"<s>": 0, "</s>": 1}
    assert not {0, 1} & set(encoder.encode(SPEC_RECORD).tokens.tolist())
    with pytest.raises(TokenizerError, match="<eod>"):
        InstructionEncoder(parse_config(yaml.replace("[<s>", "[<eod>")), train("bytes"))


def test_weights_and_last_turn_leave_replies_out():
    record = conversation("up", "one", "up", "two", "three")
    record["conversations"][-1]["from"] = "gpt"
    assert learnt_texts(SPEC_YAML, record) == ["'one'", "'twothree</s>'"]
    assert learnt_texts(SPEC_YAML + "learn: last_turn\n", record) == ["'twothree</s>'"]
    record["conversations"][3]["weight"] = 0
    record["conversations"][1]["train"] = False
    assert learnt_texts(SPEC_YAML, record) == ["'three</s>'"]


def test_messages_may_have_parts():
    record = conversation("up", "one")
    record["conversations"][1]["value"] = [{"type": "text", "text": "on"}, {"type": "text", "text": "e"}]
    assert learnt_texts(SPEC_YAML, record) == ["'one</s>'"]
