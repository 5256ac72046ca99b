"""Small tokenizers of every kind, trained when a test first needs them; training all of them takes a second."""

import functools
import hashlib
import json
import random

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from dsindex.text.tokenizer import Tokenizer

SENTENCES = [
    "The mill stood by the river, and the river didn't care; it'd turned the wheel for 300 years.",
    "def wheel(turns: int) -> float:\n    return turns * 3.14159  # no load\n\n\nwheel(12)",
    "Die Mühle stand am Fluss, und der Müller schlief bis Mittag. Ça va? Où est l'été?",
    "Мельница стояла у реки. שלום לנהר. النهر لا ينام。水車は回る、また回る。강은 흐른다.",
    "नदी बहती है 🌊🌊 and the 👩‍🌾 waves; e\u0301 is not é but looks like it.\t\tEnd   of line  \r\n",
]
NASTY = [
    "", " ", "\n\n", "a\0b", "\0", "\u00a0\u3000", "\ufeffx", "<|eot|>", " <|eot|>\n<|eot|><|eot|>x",
    "<|eot", "<|eot|><|bos|>", "[CLS] word [SEP]", "x" * 5000, "é e\u0301 Å ﬁ", "\U0010ffff\ufffd", "👩‍👩‍👧‍👦🇩🇪",
    "▁a ▁", "a\u2028b\x85c", *SENTENCES,
]  # fmt: skip
PIECES = ["<|eot|>", "<|bos|>", " ", "  ", "\n", "\r\n", "\t", "\0", "a", "Wheel", "'ll", "é", "e\u0301", "_",
          "12", "中", "\u00a0", "\u3000", ".", "<|", "|>", "🌊", "\u200d", "ش", "नदी", "▁", "Ġ"]  # fmt: skip


def mixed_texts(count, *, seed):
    """Return random concatenations of PIECES, which tokenizers treat in different ways."""
    rng = random.Random(seed)
    return ["".join(rng.choices(PIECES, k=rng.randint(1, 12))) for _ in range(count)]


@functools.cache
def _byte_level_json():
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    options = {"special_tokens": ["<|eot|>", "<|bos|>"], "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options)
    tokenizer.train_from_iterator(SENTENCES * 2, trainer)
    return tokenizer.to_str()


def byte_level(change=None):
    """Return a byte-level BPE of 500 tokens, including <|eot|> = 0 and <|bos|> = 1, after applying `change`."""
    tokenizer = tokenizers.Tokenizer.from_str(_byte_level_json())
    if change is not None:
        change(tokenizer)
    return tokenizer.to_str().encode()


def byte_level_document(**changes):
    """Return the byte-level BPE with top-level keys of its JSON replaced."""
    return json.dumps({**json.loads(_byte_level_json()), **changes}).encode()


def with_template(single):
    def change(tokenizer):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair="$A $B", special_tokens=[("<|eot|>", 0), ("<|bos|>", 1)]
        )

    return byte_level(change)


def with_added(*added, normalizer=None):
    def change(tokenizer):
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        for token in added:
            (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])

    return byte_level(change)


def word_piece():
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return tokenizer.to_str().encode()


def sentencepiece_bpe():
    """Return a BPE with byte fallback and ▁ for spaces, like Llama 2's."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]  # in Llama 2, the byte tokens are not added tokens
    return json.dumps(document).encode()


def as_tokenizer(content):
    """Return a Tokenizer for the bytes of a tokenizer.json."""
    library = tokenizers.Tokenizer.from_buffer(content)
    added = library.get_added_tokens_decoder().values()
    size, special = library.get_vocab_size(with_added_tokens=True), tuple(t.content for t in added if t.special)
    described = {"name": "trained", "content": content, "sha256": hashlib.sha256(content).hexdigest()}
    return Tokenizer(**described, vocabulary_size=size, eod_id=None, eod_token=None, special_tokens=special)
