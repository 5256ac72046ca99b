"""The spec's message construction, from its configuration to masks, and every way in which a record can be wrong."""

import pickle

import numpy as np
import pytest

from dsindex.chat.config import parse_config, read_instruction_config
from dsindex.chat.encode import InstructionEncoder
from dsindex.errors import InputError, RecordProblem, TokenizerError
from tests.support.chat_tokenizers import KINDS, train
from tests.support.conversations import HUMAN, SPEC_RECORD, SPEC_YAML, config, conversation


@pytest.mark.parametrize(("text", "match"), [
    pytest.param("messages: [a]", "messages: no such option; the options are special_tokens", id="unknown"),
    pytest.param("- a", "is not a mapping", id="list"),
    pytest.param("a: [", "not valid YAML", id="not-yaml"),
    pytest.param("loss_masking_jq_patterns: [.a]", "needs message_construction", id="mask-without-construction"),
    pytest.param("message_construction: [a, a]", "names a field twice: a, a", id="twice"),
    pytest.param("message_construction: [a]\nchat_template: x", "not both", id="both"),
    pytest.param("message_construction: [a]\noptional_fields: [b]", "optional_fields names 'b'", id="optional"),
    pytest.param("message_construction: [a]\nrole_prefixes: {bard: x}", "names 'bard'", id="prefix"),
    pytest.param("too_long: split", "needs max_length", id="no-length"),
    pytest.param("chat_template: x\nchat_template_file: y", "not both", id="two-templates"),
    pytest.param("b_include_to_loss_token: x\ne_include_to_loss_token: x", "two different", id="same-marker"),
    pytest.param("template_variables: {messages: []}", "cannot set 'messages', which each record has", id="variable"),
    pytest.param("learn: first", "learn: 'first' is not one of all or last_turn", id="learn"),
    pytest.param("learn: last_turn\nb_include_to_loss_token: x\ne_include_to_loss_token: y", "than markers", id="ways"),
    pytest.param("special_tokens: [<s>, <s>]", "special_tokens: .*names '<s>' twice", id="token-twice"),
    pytest.param("special_tokens: [[[]]]", "special_tokens: a token must be a text, not list", id="token-list"),
    pytest.param("too_long: chop\nmax_length: 5", "too_long: 'chop' is not one of refuse, ", id="policy"),
    pytest.param('separator: "\\ud800"', r"an option is not Unicode text .*\\ud800", id="no-unicode"),
])  # fmt: skip
def test_configuration_says_what_is_wrong(text, match):
    with pytest.raises(InputError, match=f"^configuration(, line 1)?: .*{match}"):
        parse_config(text)


def test_configuration_takes_its_template_from_a_file_beside_it(tmp_path):
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    (tmp_path / "chat.yaml").write_text("chat_template_file: chat.jinja")
    config = read_instruction_config(tmp_path / "chat.yaml")
    assert config.chat_template == "{{ messages }}"
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301
    (tmp_path / "chat.jinja").unlink()
    with pytest.raises(InputError, match=r"chat\.jinja: cannot be read"):
        read_instruction_config(tmp_path / "chat.yaml")
    with pytest.raises(InputError, match=r"other\.yaml: cannot be read"):
        read_instruction_config(tmp_path / "other.yaml")


@pytest.mark.parametrize("kind", KINDS)
def test_spec_example_has_the_tokens_of_its_texts_and_learns_the_replies(kind):
    tokenizer = train(kind)
    encoded = InstructionEncoder(parse_config(SPEC_YAML), tokenizer).encode(SPEC_RECORD)
    replies = [(turn["value"], turn["from"] == "gpt") for turn in SPEC_RECORD["conversations"]]
    texts = [(SPEC_RECORD["role"], 0), (SPEC_RECORD["instruction"], 0), *replies]
    pairs = [(token, int(trained)) for text, trained in texts for token in tokenizer.encode(text).ids.tolist()]
    assert list(zip(encoded.tokens.tolist(), encoded.mask.tolist(), strict=True)) == [(0, 0), *pairs, (1, 1)]
    assert (encoded.tokens.dtype, encoded.mask.dtype) == (np.uint32, np.uint8)
    assert encoded.lengths.tolist() == [len(encoded.tokens)]
    assert (encoded.cut, encoded.special_in_text) == (0, False)


def test_prefixes_separators_and_eos_after_each_reply():
    tokenizer = train("bytes")
    text = HUMAN.replace("[role, ", "[").replace(", .role", "")
    text += 'eos_after: reply\nseparator: "\\n"\nrole_prefixes: {user: "Q:", assistant: "A:"}'
    encoded = InstructionEncoder(config(text), tokenizer).encode(conversation("up", "you", "up", "you"))
    expected = [("<s>", 0), ("Q:", 0), ("up", 0), ("\nA:", 0), ("you", 1), ("</s>", 1)]
    expected += [("\nQ:", 0), ("up", 0), ("\nA:", 0), ("you", 1), ("</s>", 1)]
    pairs = [(token, trained) for text, trained in expected for token in tokenizer.encode(text).ids.tolist()]
    assert list(zip(encoded.tokens.tolist(), encoded.mask.tolist(), strict=True)) == pairs


@pytest.mark.parametrize(("record", "kind", "match"), [
    ({"role": "x", "conversations": None}, "missing-field", "field 'conversations'.*matches nothing"),
    ({"role": "x", "conversations": []}, "no-turns", "has no messages"),
    ({"role": "x", "conversations": 5}, "bad-field", "a text or a list"),
    ({"role": "x", "conversations": [5]}, "bad-field", "message 1 is a number, not an object"),
    ({"role": "x", "conversations": [{"from": "bard", "value": "b"}]}, "unknown-role", "message 1: .*'bard'"),
    ({"role": "x", "conversations": [{"from": "human"}]}, "missing-field", "message 1: .*content"),
    ({"role": "x", "conversations": [{"from": "gpt", "value": "b"}]}, "pattern-no-match", "selects nothing"),
    (conversation("a", role="x"), "no-trained-tokens", "nothing is trained on"),
    (conversation("a", "\ud800", role="x"), "bad-text", r"U\+D800"),
    (conversation("", "", role=""), "no-turns", "has no text"),
], ids=range(10))  # fmt: skip
def test_record_problems_are_named(record, kind, match):
    with pytest.raises(RecordProblem, match=match) as caught:
        InstructionEncoder(config(HUMAN), train("bytes")).encode(record)
    assert caught.value.kind == kind


def test_optional_fields_and_unmatched_patterns_can_be_allowed():
    lenient = InstructionEncoder(config(HUMAN + "optional_fields: [role]\nunmatched_patterns: allow"), train("bytes"))
    encoded = lenient.encode({"conversations": [{"from": "gpt", "value": "you"}]})
    assert encoded.mask.tolist() == [0, *[1] * (len(encoded.tokens) - 1)]


@pytest.mark.parametrize(("kind", "token", "match"), [
    pytest.param("bytes", "<|nosuch|>", "not a single id of its own, but [0-9]+ ids: '<'", id="several"),
    pytest.param("bytes", "", "but 0 ids: none", id="none"),
    pytest.param("wordpiece", "☃", r"but 1 ids: '\[UNK\]'", id="unknown"),
])  # fmt: skip
def test_special_tokens_have_to_be_one_id(kind, token, match):
    special = parse_config(f"special_tokens: {{x: '{token}'}}\nmessage_construction: [role]")
    with pytest.raises(TokenizerError, match=f"special token x = .*{match}"):
        InstructionEncoder(special, train(kind))


def test_masking_patterns_have_to_name_a_constructed_field():
    with pytest.raises(InputError, match="masks the field 'system', which is not in message_construction"):
        InstructionEncoder(config("message_construction: [role]\nloss_masking_jq_patterns: [.system]"), train("bytes"))
    with pytest.raises(InputError, match="no pattern for the field 'role'"):
        InstructionEncoder(config("message_construction: [role]\njq_patterns: [.system]"), train("bytes"))


def test_special_tokens_in_text_are_counted_or_refused():
    record = conversation("a </s> b", "you", role="x")
    assert InstructionEncoder(config(HUMAN), train("bytes")).encode(record).special_in_text
    with pytest.raises(RecordProblem, match="'</s>'"):
        InstructionEncoder(config(HUMAN + "special_tokens_in_text: refuse"), train("bytes")).encode(record)


def trained_texts(yaml, record):
    tokenizer = train("bytes")
    encoded = InstructionEncoder(parse_config(yaml), tokenizer).encode(record)
    borders = np.flatnonzero(np.diff(encoded.mask)) + 1
    runs = zip(np.split(encoded.tokens, borders), np.split(encoded.mask, borders), strict=True)
    return [tokenizer.decode(ids) for ids, mask in runs if mask.any()]


def test_records_may_lack_fields_from_which_nothing_is_trained_on():
    record = {"conversations": SPEC_RECORD["conversations"], "instruction": None}
    assert trained_texts(SPEC_YAML, record) == trained_texts(SPEC_YAML, SPEC_RECORD)
    with pytest.raises(RecordProblem, match=r"field 'role': .*to `optional_fields`"):
        trained_texts(SPEC_YAML + "optional_fields: []\n", record)


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
    assert trained_texts(SPEC_YAML, record) == ["one", "twothree</s>"]
    assert trained_texts(SPEC_YAML + "learn: last_turn\n", record) == ["twothree</s>"]
    record["conversations"][3]["weight"] = 0
    record["conversations"][1]["train"] = False
    assert trained_texts(SPEC_YAML, record) == ["three</s>"]
