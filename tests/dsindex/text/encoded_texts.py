"""Tokenizers that both engines accept, and what the engines and `tokenizers` itself make of texts."""

import functools
import json

import numpy as np
import pyarrow as pa
from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Reference

from dsindex.text.encoders import choose_engine, make_encoder
from tests.support import text_tokenizers as trained

TEXTS = [*trained.NASTY, *trained.mixed_texts(1500, seed=1)]


def large(texts):
    return pa.array(texts, pa.large_string())


@functools.cache
def chosen(content, requested, special):
    return choose_engine(trained.as_tokenizer(content), requested, add_special_tokens=special)


def encoder_of(content, requested, *, special=True):
    engine = chosen(content, requested, special)
    return make_encoder(trained.as_tokenizer(content), engine)


def encoded(encoder, texts):
    batch = encoder.encode(large(texts))
    assert (batch.tokens.dtype, batch.lengths.dtype) == (np.uint32, np.int64)
    assert batch.lengths.shape == (len(texts),)
    assert batch.lengths.sum() == batch.tokens.size
    return [part.tolist() for part in np.split(batch.tokens, np.cumsum(batch.lengths)[:-1])] if texts else []


def expected(content, texts, *, special=True):
    reference = Reference.from_buffer(content)
    reference.no_truncation()
    reference.no_padding()
    return [encoding.ids for encoding in reference.encode_batch(texts, add_special_tokens=special)]


def with_limits():
    def change(tokenizer):
        tokenizer.enable_truncation(4)
        tokenizer.enable_padding(length=8)

    return trained.byte_level(change)


SUITABLE = {
    "byte-level": trained.byte_level(),
    "no-post-processor": trained.byte_level_document(post_processor=None),
    "bos": trained.with_template("<|bos|> $A"),
    "eos": trained.with_template("$A <|eot|>"),
    "both": trained.with_template("<|bos|> <|eot|> $A <|eot|>"),
    "roberta": trained.byte_level_document(
        post_processor={"type": "RobertaProcessing", "sep": ["<|eot|>", 0], "cls": ["<|bos|>", 1]}
        | {"trim_offsets": True, "add_prefix_space": False}
    ),
    "sequence": trained.byte_level_document(
        post_processor={
            "type": "Sequence",
            "processors": [
                json.loads(trained.byte_level())["post_processor"],
                json.loads(trained.with_template("<|bos|> <|eot|> $A <|bos|>"))["post_processor"],
            ],
        }
    ),
    "two-templates": trained.byte_level_document(
        post_processor={
            "type": "Sequence",
            "processors": [
                json.loads(trained.with_template(single))["post_processor"] for single in ("<|bos|> $A", "$A <|eot|>")
            ],
        }
    ),
    "nfc": trained.with_added(normalizer=normalizers.NFC()),
    "stripping-tokens": trained.with_added(
        AddedToken("Wheel", lstrip=True, special=True), AddedToken("12", normalized=False)
    ),
    "late-tokens": trained.byte_level_document(
        added_tokens=[{**token, "normalized": True} for token in json.loads(trained.byte_level())["added_tokens"]]
    ),
    "truncation-and-padding": with_limits(),
    "sentencepiece-bpe": trained.sentencepiece_bpe(),
}
