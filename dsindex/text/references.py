"""The reference of each tokenizer: the library that defines its format, behind one protocol.

What a reference returns is right by definition; the fast engine is compared with it.
"""

from __future__ import annotations

import functools
import itertools
import os
import unicodedata
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dsindex.errors import TokenizerError
from dsindex.text.conversion.ranks import make_tiktoken, read_definition
from dsindex.text.tokenizer import shared_sentencepiece, shared_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.text.tokenizer import Tokenizer


class Reference(Protocol):
    """Encodes texts with a tokenizer's own library; threads may share it."""

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> tuple[NDArray[np.uint32], list[int]]:
        """Return the tokens of all texts, one after the other, and the number of tokens of each.

        Args:
            texts: Texts, each encoded on its own.
            add_special_tokens: Run the post-processor, if the format has one.

        Raises:
            TokenizerError: If the library cannot encode a text.
        """
        ...


@functools.lru_cache(maxsize=4)
def reference_of(tokenizer: Tokenizer) -> Reference:
    """Return the process-wide reference of a tokenizer."""
    if tokenizer.library == "sentencepiece":
        return SentencePieceReference(tokenizer)
    return TiktokenReference(tokenizer) if tokenizer.library == "tiktoken" else TokenizersReference(tokenizer)


class TokenizersReference:
    """The `tokenizers` library, for a tokenizer.json.

    TOKENIZERS_PARALLELISM is set to false in the process unless it is set already: with RAYON_NUM_THREADS=1 instead,
    all threads would wait for one.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._loaded = shared_tokenizer(tokenizer)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> tuple[NDArray[np.uint32], list[int]]:
        """Encode a batch in one call."""
        encodings = self._loaded.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        counts = [len(encoding) for encoding in encodings]
        ids = itertools.chain.from_iterable(encoding.ids for encoding in encodings)
        return np.fromiter(ids, np.uint32, count=sum(counts)), counts


class SentencePieceReference:
    """The sentencepiece library, for a `.model`; as in Megatron, nothing is added around a text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._loaded = shared_sentencepiece(tokenizer)

    def encode(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool,  # noqa: ARG002 - the format has no post-processor
    ) -> tuple[NDArray[np.uint32], list[int]]:
        """Encode a batch in one call, in the calling thread."""
        encoded: list[list[int]] = self._loaded.encode(list(texts), num_threads=1)
        counts = list(map(len, encoded))
        return np.fromiter(itertools.chain.from_iterable(encoded), np.uint32, count=sum(counts)), counts


class TiktokenReference:
    """The tiktoken library, for ranks; special tokens in a text become special tokens, as in Megatron."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        encoding = read_definition(tokenizer.model)
        self._loaded = make_tiktoken(encoding)
        self._name = tokenizer.name
        self._normalizer = encoding.normalizer

    def encode(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool,  # noqa: ARG002 - the format has no post-processor
    ) -> tuple[NDArray[np.uint32], list[int]]:
        """Encode text by text."""
        parts = [self._encode_text(text) for text in texts]
        counts = [part.size for part in parts]
        return np.concatenate([np.empty(0, np.uint32), *parts]), counts

    def _encode_text(self, text: str) -> NDArray[np.uint32]:
        if self._normalizer is not None:
            text = unicodedata.normalize(self._normalizer, text)
        try:
            return self._loaded.encode_to_numpy(text, allowed_special="all")
        except ValueError as error:
            msg = (
                f"{self._name}: expected a text that tiktoken can split, got one of {len(text):,} characters on which "
                f"it fails ({error}), as on a million spaces in a row; cut the document {text[:40]!r}"
            )
            raise TokenizerError(msg) from error
