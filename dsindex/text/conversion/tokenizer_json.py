"""Write tokenizer.json: the file of a byte-pair encoding, and that of GPT-2's vocab.json and merges.txt.

`--vocab-file` and `--merge-file` name GPT-2's files, an older form of byte-level BPE. Source: encoder.py of
https://github.com/openai/gpt-2, and its counterpart in transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

END_OF_TEXT = "<|endoftext|>"


def bpe_document(
    vocabulary: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    *,
    added: Mapping[str, int],
    special: bool,
    normalizer: object = None,
    pre_tokenizer: object = None,
    decoder: object = None,
    unknown: str | None = None,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> dict[str, Any]:
    """Return the content of the tokenizer.json of a byte-pair encoding.

    Args:
        vocabulary: Id by token.
        merges: Pairs of tokens, in the order in which they are joined.
        added: Id by added token; they are looked for in the raw text.
        special: Whether the added tokens are special.
        normalizer: As in the file, like the next two.
        pre_tokenizer: Splits the text.
        decoder: Joins tokens to text.
        unknown: The unknown token.
        byte_fallback: Unknown characters become tokens of bytes, and adjacent unknown tokens one.
        ignore_merges: A word of the vocabulary is not split.
    """
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": content, **flags} for content, number in added.items()],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": byte_fallback,
            "byte_fallback": byte_fallback,
            "ignore_merges": ignore_merges,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def convert_gpt2_files(vocabulary: object, merges: bytes) -> bytes:
    """Return the tokenizer.json of GPT-2's two files.

    Args:
        vocabulary: The content of vocab.json: id by token.
        merges: The bytes of merges.txt, whose first line may name a version.

    Raises:
        ValueError: Naming the file that is not as expected.
    """
    if not isinstance(vocabulary, dict) or not vocabulary or not all(map(_is_id, vocabulary.values())):
        raise ValueError("expected a JSON object with an id for each token")
    pairs = []
    for number, line in enumerate(merges.decode().split("\n"), 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.keys():
            raise ValueError(
                f"line {number} of the merges: expected two tokens that make a third of the vocabulary, got {line!r}"
            )
        pairs.append(pair)
    added = {END_OF_TEXT: vocabulary[END_OF_TEXT]} if END_OF_TEXT in vocabulary else {}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    document = bpe_document(vocabulary, pairs, added=added, special=True, pre_tokenizer=byte_level, decoder=byte_level)
    return orjson.dumps(document)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
