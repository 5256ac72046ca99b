import pickle

import pytest

from dsindex.errors import InputError
from dsindex.instruction.config import InstructionConfig, parse_config, read_instruction_config


@pytest.mark.parametrize(
    ("text", "match"),
    [
        pytest.param("messages: [a]", "messages: no such option; the options are special_tokens", id="unknown"),
        pytest.param("- a", "expected a mapping", id="list"),
        pytest.param("a: [", "expected YAML", id="not-yaml"),
        pytest.param("a: !!python/object/apply:os.system [ls]", "expected YAML", id="object"),
        pytest.param("special_tokens: {bos_token: 1}", "special_tokens.bos_token", id="not-a-text"),
        pytest.param("loss_masking_jq_patterns: [.a]", "needs message_construction", id="mask-without-construction"),
        pytest.param("message_construction: [a, a]", "names a field twice: a, a", id="twice"),
        pytest.param("message_construction: [a]\nchat_template: x", "got both", id="both"),
        pytest.param("message_construction: [a]\noptional_fields: [b]", "optional_fields names 'b'", id="optional"),
        pytest.param("message_construction: [a]\nrole_prefixes: {bard: x}", "names 'bard'", id="prefix"),
        pytest.param("chat_template: x\nchat_template_file: y", "got both", id="two-templates"),
        pytest.param("b_include_to_loss_token: x", "two different tokens", id="one-marker"),
        pytest.param("b_include_to_loss_token: x\ne_include_to_loss_token: x", "two different", id="same-marker"),
        pytest.param(
            "template_variables: {messages: []}", "cannot set 'messages', which each record has", id="variable"
        ),
        pytest.param("learn: first", "learn: expected one of all or last_turn", id="learn"),
        pytest.param(
            "learn: last_turn\nb_include_to_loss_token: x\ne_include_to_loss_token: y",
            "rather than markers",
            id="both-ways",
        ),
        pytest.param("special_tokens: [<s>, <s>]", "special_tokens: .*names '<s>' twice", id="token-twice"),
        pytest.param("too_long: split", "needs max_length", id="no-length"),
        pytest.param("too_long: chop\nmax_length: 5", "too_long: expected one of refuse, .* got 'chop'", id="policy"),
        pytest.param("max_length: 1", "max_length: expected at least 2, got 1", id="length"),
        pytest.param('separator: "\\ud800"', r"expected Unicode text in every option, got .*\\ud800", id="no-unicode"),
    ],
)
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
    with pytest.raises(InputError, match=r"chat\.jinja: the chat template cannot be read"):
        read_instruction_config(tmp_path / "chat.yaml")
    with pytest.raises(InputError, match=r"other\.yaml: cannot be read"):
        read_instruction_config(tmp_path / "other.yaml")


def test_roles_are_added_to_the_usual_ones():
    roles = parse_config("role_mapping: {bot: assistant, system: user}").role_mapping
    assert {name: roles[name] for name in ("bot", "system", "human", "developer", "function_call", "observation")} == {
        "bot": "assistant",
        "system": "user",
        "human": "user",
        "developer": "developer",
        "function_call": "assistant",
        "observation": "tool",
    }


def test_special_tokens_may_be_a_list():
    assert parse_config("special_tokens: [<s>, </s>]").special_tokens == {"<s>": "<s>", "</s>": "</s>"}
    assert parse_config("special_tokens: [{eos_token: </s>}]").special_tokens == {"eos_token": "</s>"}


def test_configuration_survives_json():
    config = parse_config("special_tokens: [<s>]\nrole_mapping: {bot: user}\ntemplate_variables: {date: {a: [1]}}")
    assert InstructionConfig.model_validate_json(config.model_dump_json()) == config
