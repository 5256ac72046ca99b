"""One tokenizer in both engines, and the texts on which they differ."""

import json

from tokenizers import Tokenizer

from dsindex.text.encoders import make_encoder
from dsindex.text.engines import Engine, choose_separator
from tests.support.text_tokenizers import as_tokenizer


class BothEngines:
    """A tokenizer as both engines load it."""

    def __init__(self, document):
        self.reference = Tokenizer.from_buffer(document)
        separator = choose_separator(json.loads(document))
        engine = Engine(
            name="gigatoken", version="", add_special_tokens=False, reference_version="", separator=separator
        )
        self._fast = make_encoder(as_tokenizer(document), engine)

    def differ(self, texts):
        """Return the numbers of the texts on which the engines differ."""
        fast = self._fast.encode(texts).split()
        reference = self.reference.encode_batch_fast(list(texts), add_special_tokens=False)
        return [number for number, own in enumerate(fast) if own.tolist() != reference[number].ids]
