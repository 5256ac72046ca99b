import functools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors

from dsindex.chat import tokens as token_batches
from dsindex.chat.config import check_config
from dsindex.chat.encode import InstructionEncoder, make_instruction_encoder, make_recipe
from dsindex.chat.tokens import ChatTokenizer, FastTexts, MarkedText
from dsindex.errors import TokenizerError
from dsindex.text.engines import choose_engine
from tests.agreement import vocabularies as v
from tests.support.chat_tokenizers import LINES, SPECIAL, train
from tests.support.conversations import CONVERSATIONS
from tests.support.golden import OWN
from tests.support.text_tokenizers import as_tokenizer, sentencepiece_bpe

PLACED = ("gpt2", "llama3", "qwen2", "strips")
KINDS = (*PLACED, "prefix-space", "space-marks")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% else %}{{ message.content }}<|im_end|>"
    "{% endif %}\n{% endfor %}"
)

MARKED = CHATML.replace("{% generation %}", "<s>").replace("{% endgeneration %}", "</s>")


PRE_TOKENIZERS = {
    "gpt2": v.byte_level(use_regex=True),
    "strips": v.byte_level(use_regex=True),
    "prefix-space": v.byte_level(use_regex=True, add_prefix_space=True),
    "llama3": v.pattern_splits("llama3"),
    "qwen2": v.pattern_splits("qwen2"),
}


@functools.cache
def data_of(kind):
    """Return a tokenizer of a kind: byte-level ones as GPT-2, Llama 3 and Qwen 2 have them, and others."""
    if kind == "space-marks":
        return as_tokenizer(sentencepiece_bpe())
    document = {**json.loads(train("bytes")._json), "pre_tokenizer": PRE_TOKENIZERS[kind]}
    for token in document["added_tokens"]:
        token |= {"lstrip": kind == "strips", "rstrip": kind == "strips"}
    if kind == "qwen2":
        document["normalizer"] = {"type": "NFC"}
    if kind == "llama3":
        document["model"]["ignore_merges"] = True
        begin = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
        document["post_processor"] = json.loads(begin.__getstate__())
    return as_tokenizer(json.dumps(document).encode())


@functools.cache
def fast_of(kind):
    data = data_of(kind)
    engine = choose_engine(data, "gigatoken", add_special_tokens=False)
    return FastTexts(data, engine, reference_of(kind))


@functools.cache
def reference_of(kind):
    return ChatTokenizer(data_of(kind).content.decode())


each_kind = pytest.mark.parametrize("kind", KINDS)
PIECES = [*SPECIAL, *LINES, " ", "  ", "\n\n", "\r\n", "\t", "é", "e\u0301", "\u212b", "👩‍👩‍👧", "日本", "\u0600"]
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=12).map("".join)


@st.composite
def marked_texts(draw):
    text = draw(texts)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return text, list(zip(places[::2], places[1::2], strict=False))


@pytest.mark.parametrize("kind", PLACED)
@settings(max_examples=30)
@given(marked=st.lists(marked_texts(), max_size=8))
def test_masks_are_those_of_the_reference(kind, marked):
    fast, reference = fast_of(kind), reference_of(kind)
    masked_texts = fast.encode_spans([MarkedText.of(*marked_text) for marked_text in marked])
    for (text, spans), masked in zip(marked, masked_texts, strict=True):
        [expected] = reference.encode_spans([MarkedText.of(text, spans)])
        assert (masked.tokens.tolist(), masked.mask.tolist()) == (expected.tokens.tolist(), expected.mask.tolist())


@each_kind
@settings(max_examples=15)
@given(drawn=st.lists(texts, max_size=8))
def test_tokens_are_those_of_the_reference(kind, drawn):
    reference = reference_of(kind)
    batch, expected = fast_of(kind).encode_ids(drawn), reference.encode_ids(drawn)
    assert (batch.tokens.tolist(), batch.lengths.tolist()) == (expected.tokens.tolist(), expected.lengths.tolist())
    assert batch.tokens.tolist() == [token for text in drawn for token in reference.encode(text).ids.tolist()]


def test_an_audited_text_with_other_tokens_stops_the_job(monkeypatch):
    monkeypatch.setattr(token_batches, "AUDITED_SHARE", 1)
    assert fast_of("gpt2").encode_spans([MarkedText.of("Hello", [(0, 2)])])[0].mask.any()
    engine = choose_engine(data_of("gpt2"), "gigatoken", add_special_tokens=False)
    other = FastTexts(data_of("gpt2"), engine, reference_of("space-marks"))
    with pytest.raises(TokenizerError, match="gigatoken and tokenizers return different tokens"):
        other.encode_spans([MarkedText.of(LINES[2], [(0, 2)])])
    with pytest.raises(TokenizerError, match="--engine reference"):
        other.encode_ids([LINES[2]])


@pytest.mark.quick(2)
@each_kind
def test_recipe_names_the_reference_where_the_fast_engine_cannot_make_masks(kind):
    """Markers need no places; tokens and masks do not depend on the engine."""
    engine = choose_engine(data_of(kind), "auto", add_special_tokens=False)
    assert engine.name == "gigatoken"
    config = check_config({"chat_template": CHATML}, source="test")
    recipe = make_recipe(config, data_of(kind), str(OWN.plain_tokenizer), engine=engine)
    assert recipe.engine.name == ("gigatoken" if kind in PLACED else "tokenizers")
    if kind not in PLACED:
        assert "masks need" in str(recipe.engine.describe_fallback())
    encoder, slow = make_instruction_encoder(recipe), InstructionEncoder(config, reference_of(kind))
    for line in CONVERSATIONS.read_bytes().splitlines()[:20]:
        [[encoded], [expected]] = encoder.encode_lines([line]), slow.encode_lines([line])
        assert (encoded.tokens.tolist(), encoded.mask.tolist()) == (expected.tokens.tolist(), expected.mask.tolist())
        assert encoded.fingerprint == expected.fingerprint
    marked = {"chat_template": MARKED, "b_include_to_loss_token": "<s>", "e_include_to_loss_token": "</s>"}
    recipe = make_recipe(check_config(marked, source="test"), data_of(kind), str(OWN.plain_tokenizer), engine=engine)
    assert recipe.engine.name == "gigatoken"
