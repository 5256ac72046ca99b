"""Small SentencePiece models and ranks of tiktoken in the shapes of published tokenizers, trained where needed."""

import base64
import functools
import io
import itertools

import sentencepiece

from tests.support.text_tokenizers import SENTENCES

_BYTES = {"model_type": "bpe", "byte_fallback": True, "remove_extra_whitespaces": False}
_IDENTITY = {**_BYTES, "normalization_rule_name": "identity", "allow_whitespace_only_pieces": True}

SENTENCEPIECE_SHAPES = {
    "llama2": {**_IDENTITY, "split_digits": True},
    "mistral": {**_IDENTITY, "split_digits": True, "control_symbols": ["[INST]", "[/INST]", "[TOOL_CALLS]"]},
    "gemma": {
        **_IDENTITY, "split_digits": True, "add_dummy_prefix": False,
        "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3,
        "user_defined_symbols": [
            "<start_of_turn>", "<table>", "</table>", "\t", *("\n" * n for n in range(1, 5)),
            *("▁" * n for n in range(2, 32)),
        ],
    },
    "t5": {"model_type": "unigram"},
}  # fmt: skip
"""Options of the trainer by the family."""


@functools.cache
def sentencepiece_model(shape):
    """Train a model of about 600 pieces in a quarter of a second."""
    content = io.BytesIO()
    texts = [*SENTENCES * 3, *["a a a b b  c c   1 1 1 . . , , s's s's"] * 4]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=content, vocab_size=600, hard_vocab_limit=False, minloglevel=2,
        num_threads=1, **SENTENCEPIECE_SHAPES[shape],
    )  # fmt: skip
    return content.getvalue()


@functools.cache
def ranks(count=560):
    """Learn merges from sentences: every byte, then what is joined most often, a space at the begin of words only."""
    words = []
    for sentence in SENTENCES * 2:
        for number, word in enumerate(sentence.split(" ")):
            words.append([bytes([byte]) for byte in (word if number == 0 else f" {word}").encode()])
    found = {bytes([byte]): byte for byte in range(256)}
    while len(found) < count:
        counts = {}
        for word in words:
            for first, second in itertools.pairwise(word):
                counts[first + second] = counts.get(first + second, 0) + 1
        if not counts:
            break
        best = max(counts, key=lambda token: (counts[token], token))
        found[best] = len(found)
        words = [_joined(word, best) for word in words]
    return found


def _joined(word, token):
    made = []
    for part in word:
        if made and made[-1] + part == token:
            made[-1] = token
        else:
            made.append(part)
    return made


def tiktoken_file(count=560):
    """Ranks as tiktoken's files have them."""
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks(count).items())


def rank_entries(count=560):
    """Ranks as Megatron's files have them."""
    return [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": token.decode(errors="replace")}
        for token, rank in ranks(count).items()
    ]
