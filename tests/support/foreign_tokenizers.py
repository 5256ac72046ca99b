"""Small SentencePiece models and tiktoken ranks with the settings of published tokenizers, trained when first used."""

import base64
import functools
import io

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from dsindex.text.engines import byte_characters
from tests.support.text_tokenizers import SENTENCES

_LLAMA = {"model_type": "bpe", "byte_fallback": True, "split_digits": True, "remove_extra_whitespaces": False}
_LLAMA |= {"normalization_rule_name": "identity", "allow_whitespace_only_pieces": True}
_NEWLINES, _SPACES = ["\n" * n for n in range(1, 5)], ["▁" * n for n in range(2, 32)]

SENTENCEPIECE_SHAPES = {
    "llama2": _LLAMA,
    "mistral": {**_LLAMA, "control_symbols": ["[INST]", "[TOOL_CALLS]"], "user_defined_symbols": ["[/INST]"]},
    "gemma": {**_LLAMA, "add_dummy_prefix": False, "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3,
              "user_defined_symbols": ["<start_of_turn>", "<table>", "</table>", "\t", *_NEWLINES, *_SPACES]},
    "t5": {"model_type": "unigram"},
}  # fmt: skip
"""Model family → options of the SentencePiece trainer."""


@functools.cache
def sentencepiece_model(shape):
    """Train a model of about 600 pieces; takes a quarter of a second."""
    content = io.BytesIO()
    texts = [*SENTENCES * 3, *["a a a b b  c c   1 1 1 . . , , s's s's"] * 4]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=content, vocab_size=600, hard_vocab_limit=False, minloglevel=2,
        num_threads=1, **SENTENCEPIECE_SHAPES[shape],
    )  # fmt: skip
    return content.getvalue()


@functools.cache
def ranks():
    """Train a byte-level BPE of 560 tokens, including every single byte; return token → rank."""
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(" ", "merged_with_next")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=560, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES * 2, trainer)
    octets = {character: bytes([byte]) for byte, character in enumerate(byte_characters())}
    return {b"".join(map(octets.get, tokenizer.id_to_token(rank))): rank for rank in range(560)}


def tiktoken_file():
    """Return the ranks in the format of tiktoken's files."""
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks().items())


def rank_entries():
    """Return the ranks in the format of Megatron's JSON files."""
    rows = ((rank, base64.b64encode(token).decode(), token.decode(errors="replace")) for token, rank in ranks().items())
    return [dict(zip(("rank", "token_bytes", "token_str"), row, strict=True)) for row in rows]
