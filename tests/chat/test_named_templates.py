"""The templates that dsindex has."""

import pytest
import xxhash

from dsindex.chat.config import parse_config, read_template, template_names
from dsindex.chat.conversations import ConversationReader
from dsindex.chat.encode import InstructionEncoder
from dsindex.chat.rendering import ChatTemplate
from dsindex.errors import InputError, RecordProblem, TokenizerError
from tests.chat.test_replies import VARIABLES
from tests.support.chat_tokenizers import train
from tests.support.drawn_chats import NUM_CONVERSATIONS, draw

DIGESTS = {
    "chatml": ("c9308e5bdbf2decf", 72),
    "gemma3": ("54afb17ae944feb5", 108),
    "llama3.1": ("ac4cdacca6a3f6b6", 0),
    "qwen2.5": ("6f53574d534adad9", 0),
    "qwen3": ("687357c0ed20d4d0", 0),
}
"""Of the drawn conversations as tests/peers compares them with transformers: the digest, and how many are refused."""


@pytest.mark.parametrize("name", template_names())
def test_drawn_conversations_are_written_as_they_were_compared_with_transformers(name):
    template = ChatTemplate(read_template(name), **VARIABLES)
    digest, num_refused = xxhash.xxh3_64(), 0
    for seed in range(NUM_CONVERSATIONS):
        conversation = ConversationReader().read(draw(seed))
        try:
            text, spans = template.render(conversation.messages, **conversation.variables)
        except RecordProblem:
            num_refused += 1
        else:
            digest.update(repr((text, [tuple(span) for span in spans])).encode())
    assert (digest.hexdigest(), num_refused) == DIGESTS[name]


def test_name_is_replaced_by_the_text_when_the_configuration_is_read():
    assert parse_config("chat_template: llama3.1").chat_template == read_template("llama3.1")
    with pytest.raises(InputError, match=r"chat_template: 'lama3' is neither .*; did you mean llama3.1\?"):
        parse_config("chat_template: lama3")


def test_a_template_whose_control_tokens_the_tokenizer_splits_is_refused() -> None:
    tokenizer = train("bytes")
    with pytest.raises(TokenizerError, match=r"splits its control tokens <\|end_header_id\|>, <\|eot_id\|>, "):
        InstructionEncoder(parse_config("chat_template: llama3.1"), tokenizer)
    InstructionEncoder(parse_config("chat_template: llama3.1\ncontrol_tokens: allow"), tokenizer)
    config = parse_config("chat_template: '<|eot_id|>{% generation %}{{ messages[0].content }}{% endgeneration %}'")
    InstructionEncoder(config, tokenizer)
