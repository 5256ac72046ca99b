"""One tokenizer in both engines, and the texts on which they differ."""

import json

from dsindex.text.encoders import TEXT_SEPARATOR, FastEngine, convert_sentencepiece, encode_by_reference, make_encoder
from dsindex.text.engines import Engine, choose_separator
from dsindex.text.tiktoken_files import END_OF_TEXT, read_definition
from dsindex.text.tokenizer import Tokenizer, open_library
from tests.support.text_tokenizers import as_tokenizer


class BothEngines:
    """A tokenizer as both engines load it."""

    def __init__(self, content, library="tokenizers"):
        options = {"name": "trained", "sha256": "", "vocabulary_size": 0, "special_tokens": ()}
        self.tokenizer = Tokenizer(library=library, content=content, **options)
        if library == "tokenizers":
            self.tokenizer, separator = as_tokenizer(content), choose_separator(json.loads(content))
        elif library == "tiktoken":
            separator = END_OF_TEXT, read_definition(content).special_tokens[END_OF_TEXT]
        else:
            separator = TEXT_SEPARATOR, open_library(self.tokenizer).get_piece_size()
        apart = convert_sentencepiece(self.tokenizer)[1] if library == "sentencepiece" else ()
        fast = FastEngine(version="", separator=separator, unsafe_strings=apart)
        engine = Engine(reference=library, reference_version="", add_special_tokens=False, fast=fast)
        self._fast = make_encoder(self.tokenizer, engine)

    def differ(self, texts):
        """Return the numbers of the texts on which the engines differ."""
        fast = self._fast.encode(texts).split()
        reference = encode_by_reference(self.tokenizer, list(texts), add_special_tokens=False)
        return [number for number, ids in enumerate(fast) if ids.tolist() != list(reference[number])]
