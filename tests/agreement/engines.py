"""One tokenizer in both engines, and the texts on which they differ."""

import json

import numpy as np
from tokenizers import Tokenizer

from dsindex.text.engines import choose_separator
from dsindex.text.fast_tokenizers import FastTokenizer
from tests.support.text_tokenizers import as_tokenizer


class BothEngines:
    """A tokenizer as both engines load it."""

    def __init__(self, document):
        self.reference = Tokenizer.from_buffer(document)
        self._fast = FastTokenizer(as_tokenizer(document))
        self._separator = choose_separator(json.loads(document))

    def differ(self, texts):
        """Return the numbers of the texts on which the engines differ."""
        spelt = [text.encode() for text in texts]
        tokens, lengths = self._fast.encode(spelt, self._separator)
        fast = np.split(tokens, np.cumsum(lengths)[:-1])
        reference = self.reference.encode_batch_fast(list(texts), add_special_tokens=False)
        return [number for number, own in enumerate(fast) if own.tolist() != reference[number].ids]
