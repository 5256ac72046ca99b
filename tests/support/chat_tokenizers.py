"""Three kinds of tokenizer (byte-level BPE, WordPiece, Unigram), trained on a few lines in several scripts."""

import functools

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from dsindex.chat.tokens import ChatTokenizer

SPECIAL = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "[UNK]"]
LINES = [
    "What is up? Hello! How can I help you today?  Who are you?\nYou can call me Vicuna.",
    "Goodbye! If you have any more questions in the future, don't hesitate to ask.",
    "Les élèves français étudient l'été où il fait déjà chaud.",
    "Привет, как дела? Всё хорошо, спасибо большое.",
    "日本語の文章はこうです。漢字とかなが混ざります。",
    "مرحبا كيف حالك اليوم",
    "नमस्ते दुनिया कैसे हो",
    "🎉🎈 emoji 👩‍👩‍👧 family and e\u0301 combining",
]
KINDS = ("bytes", "wordpiece", "unigram")


def trained_text(encoded):
    """Return what is trained on of a conversation in the tokens of train("bytes")."""
    return train("bytes").decode(encoded.tokens[encoded.mask == 1])


@functools.cache
def train(kind):
    """Train a tokenizer of a kind with the special tokens SPECIAL."""
    shared = {"special_tokens": SPECIAL, "show_progress": False}
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        # It excludes blanks from offsets, as GPT-2's post-processor does; ChatTokenizer must turn that off.
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, **shared)
    elif kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        # It adds <s> and </s> to every text; ChatTokenizer must not add them to conversations.
        ends = [("<s>", 0), ("</s>", 1)]
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
        trainer = trainers.WordPieceTrainer(vocab_size=400, **shared)
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=300, unk_token="[UNK]", **shared)
    tokenizer.train_from_iterator(LINES, trainer)
    return ChatTokenizer(tokenizer.to_str(), special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
