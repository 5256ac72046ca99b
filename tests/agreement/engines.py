"""One tokenizer in both engines, and the texts on which they differ."""

import gigatoken
import numpy as np
from tokenizers import Tokenizer

from dsindex.text.fast_tokenizers import encode_ragged


class BothEngines:
    """A tokenizer as both engines load it."""

    def __init__(self, document):
        self.reference = Tokenizer.from_buffer(document)
        self._fast = gigatoken.Tokenizer.from_json(document)

    def differ(self, texts):
        """Return the numbers of the texts on which the engines differ."""
        spelt = [text.encode() for text in texts]
        offsets = np.cumsum([0, *map(len, spelt)], dtype=np.int64)
        tokens, lengths = encode_ragged(self._fast, offsets, np.frombuffer(b"".join(spelt), np.uint8), parallel=False)
        fast = np.split(tokens, np.cumsum(lengths)[:-1])
        reference = self.reference.encode_batch_fast(list(texts), add_special_tokens=False)
        return [number for number, own in enumerate(fast) if own.tolist() != reference[number].ids]
