"""The reference of each tokenizer: the library that defines its format, behind one protocol.

What a reference returns is right by definition; the fast engine is compared with it.
"""

from __future__ import annotations

import functools
import itertools
import os
import unicodedata
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from dsindex.errors import TokenizerError, UnencodableError
from dsindex.text.conversion.tiktoken import make_tiktoken, read_definition
from dsindex.text.tokenizer import LibraryError, library_errors, shared_sentencepiece, shared_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
            UnencodableError: If the library fails on some of the texts.
        """
        ...


_T = TypeVar("_T")


def encode_all(encode: Callable[[Sequence[str]], _T], texts: Sequence[str], *, name: str, library: str) -> _T:
    """Encode texts in one call; if the library fails, find out on which of them.

    It is asked about each text alone, and not about halves: a text can take it seconds before it fails.

    Args:
        encode: Calls the library.
        texts: The texts.
        name: The tokenizer's name.
        library: The library's.

    Raises:
        UnencodableError: If the library fails on some of the texts.
    """
    try:
        with library_errors():
            return encode(texts)
    except LibraryError as failure:
        reasons: dict[int, str] = {}
        for number, text in enumerate(texts):
            try:
                with library_errors():
                    encode([text])
            except LibraryError as error:
                reasons[number] = (
                    f"expected a text that {library} can encode, but it fails ({error}) on {text[:40]!r}, of "
                    f"length {len(text):,}; change it, or leave the record out"
                )
        if not reasons:
            msg = f"{name}: {library} fails ({failure}) on {len(texts):,} texts together and on none of them alone"
            raise TokenizerError(msg) from failure
        raise UnencodableError(name, reasons) from failure


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
        self._name = tokenizer.name
        self._loaded = shared_tokenizer(tokenizer)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> tuple[NDArray[np.uint32], list[int]]:
        """Encode a batch in one call."""
        encode = functools.partial(self._loaded.encode_batch_fast, add_special_tokens=add_special_tokens)
        encodings = encode_all(encode, texts, name=self._name, library="tokenizers")
        counts = [len(encoding) for encoding in encodings]
        ids = itertools.chain.from_iterable(encoding.ids for encoding in encodings)
        return np.fromiter(ids, np.uint32, count=sum(counts)), counts


class SentencePieceReference:
    """The sentencepiece library, for a `.model`; as in Megatron, nothing is added around a text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._name = tokenizer.name
        self._loaded = shared_sentencepiece(tokenizer)

    def encode(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool,  # noqa: ARG002 - the format has no post-processor
    ) -> tuple[NDArray[np.uint32], list[int]]:
        """Encode a batch in one call, in the calling thread."""
        encode: Callable[[Sequence[str]], list[list[int]]] = functools.partial(self._loaded.encode, num_threads=1)
        encoded = encode_all(encode, texts, name=self._name, library="sentencepiece")
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
        parts = encode_all(self._encode, texts, name=self._name, library="tiktoken")
        counts = [part.size for part in parts]
        return np.concatenate([np.empty(0, np.uint32), *parts]), counts

    def _encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        if self._normalizer is not None:
            texts = [unicodedata.normalize(self._normalizer, text) for text in texts]
        return [self._loaded.encode_to_numpy(text, allowed_special="all") for text in texts]
