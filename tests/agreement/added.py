"""Random added tokens, of all options that are taken, in random texts."""

import functools
import json
import random

from tokenizers import Tokenizer

from dsindex.text.engines import Unsuitable, check_added_tokens
from tests.agreement import vocabularies as v
from tests.agreement.engines import BothEngines
from tests.agreement.texts import CLASSES, long_sequence

_CONTENTS = (
    "<a>", "<a><b>", "b>", "  ", " x", "\n", "\n\n", "a", "aa", "é", "中文", "'s", "<", "|>a", "\u0301", "1", "\u00a0",
    "E\u0301", "Å", "\t\t", "▁", "Ġ", "<0x41>", "<|eot|>", "ṩ", "KK",
)  # fmt: skip
_MAKING = ("x", "s\u0323\u0307", "\u212a\u212a", "e\u0301")
"""What becomes one of them, by NFC or with a space before it."""
_SPACES = (" ", "  ", "\n", "\t", "\u00a0", "\u3000")
_FORMS = (
    (None, v.byte_level(use_regex=True)), (None, v.byte_level(use_regex=True, add_prefix_space=True)),
    (None, v.pattern_splits("llama3")), ({"type": "NFC"}, v.byte_level(use_regex=True)),
    ({"type": "NFC"}, v.pattern_splits("qwen2")),
)  # fmt: skip


@functools.cache
def _model():
    octets = [bytes([byte]) for byte in b" \n\t.'<>|/1aAbBsxe_"]
    return v.bpe([(first, second) for first in octets for second in octets])


def random_documents(rng, count):
    """Make tokenizers with added tokens that are taken."""
    while count:
        late = rng.random() < 0.5
        vocabulary = _model()["vocab"]
        tokens = []
        for content in rng.sample(_CONTENTS, rng.randint(1, 5)):
            shares = {"lstrip": 0.3, "rstrip": 0.3, "special": 0.5}
            options = {name: rng.random() < share for name, share in shares.items()}
            num_new = sum(token["content"] not in vocabulary for token in tokens)
            number = vocabulary.get(content, len(vocabulary) + num_new)
            tokens.append({"id": number, "content": content, "single_word": False, "normalized": late, **options})
        tokens.sort(key=lambda token: token["id"])
        normalizer, pre_tokenizer = rng.choice(_FORMS)
        content = v.with_model(_model(), normalizer=normalizer, pre_tokenizer=pre_tokenizer)
        document = {**json.loads(content), "added_tokens": tokens}
        try:
            check_added_tokens(document, Tokenizer.from_str(json.dumps(document)))
        except Unsuitable:
            continue
        count -= 1
        yield json.dumps(document).encode()


def compare_added_tokens(*, seed, count):
    """Find texts that differ though the added tokens of their tokenizer are taken."""
    rng = random.Random(seed)
    differing_texts = []
    for document in random_documents(rng, count):
        contents = [token["content"] for token in json.loads(document)["added_tokens"]]
        pools = [contents, _SPACES, _MAKING, [*CLASSES, *_CONTENTS]]
        texts = ["".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 10))) for _ in range(400)]
        texts += [content + long_sequence(rng) for content in contents]
        differing_texts += [texts[number] for number in BothEngines(document).differ(texts)]
    return differing_texts
