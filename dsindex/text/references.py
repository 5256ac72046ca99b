"""The reference of each tokenizer: the library that defines its format, behind one interface.

What a reference returns is right by definition; the fast engine is compared with it.
"""

from __future__ import annotations

import functools
import itertools
import os
import unicodedata
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from dsindex.errors import TokenizerError, UnencodableError
from dsindex.text.conversion import make_tiktoken, read_definition
from dsindex.text.tokenizer import LibraryError, library_errors, shared_sentencepiece, shared_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from dsindex.text.tokenizer import Tokenizer


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


class Reference:
    """Encodes texts with a tokenizer's own library; threads may share it.

    Args:
        tokenizer: The tokenizer.
        encode: Returns the tokens of each text, with those that the post-processor adds or without.
    """

    def __init__(
        self, tokenizer: Tokenizer, encode: Callable[[Sequence[str], bool], Sequence[list[int] | NDArray[np.uint32]]]
    ) -> None:
        self._tokenizer = tokenizer
        self._encode = encode

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> tuple[NDArray[np.uint32], list[int]]:
        """Return the tokens of all texts, one after the other, and the number of tokens of each.

        Args:
            texts: Texts, each encoded on its own.
            add_special_tokens: Run the post-processor, if the format has one.

        Raises:
            UnencodableError: If the library fails on some of the texts.
        """
        name, library = self._tokenizer.name, self._tokenizer.library
        found = encode_all(lambda some: self._encode(some, add_special_tokens), texts, name=name, library=library)
        counts = list(map(len, found))
        if found and isinstance(found[0], np.ndarray):
            return np.concatenate(found), counts
        return np.fromiter(itertools.chain.from_iterable(found), np.uint32, count=sum(counts)), counts


@functools.lru_cache(maxsize=4)
def reference_of(tokenizer: Tokenizer) -> Reference:
    """Return the process-wide reference of a tokenizer.

    As in Megatron, sentencepiece adds nothing around a text, and tiktoken makes special tokens of those in a text. For
    the `tokenizers` library, TOKENIZERS_PARALLELISM is set to false in the process unless it is set already: with
    RAYON_NUM_THREADS=1 instead, all threads would wait for one.
    """
    if tokenizer.library == "sentencepiece":
        processor = shared_sentencepiece(tokenizer)
        return Reference(tokenizer, lambda texts, _: processor.encode(texts, num_threads=1))
    if tokenizer.library == "tiktoken":
        encoding = read_definition(tokenizer.model)
        loaded, form = make_tiktoken(encoding), encoding.normalizer

        def encode_ranks(texts: Sequence[str], _: bool) -> list[NDArray[np.uint32]]:
            normal = texts if form is None else [unicodedata.normalize(form, text) for text in texts]
            return [loaded.encode_to_numpy(text, allowed_special="all") for text in normal]

        return Reference(tokenizer, encode_ranks)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    shared = shared_tokenizer(tokenizer)

    def encode_batch(texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        return [each.ids for each in shared.encode_batch_fast(texts, add_special_tokens=add_special_tokens)]

    return Reference(tokenizer, encode_batch)
