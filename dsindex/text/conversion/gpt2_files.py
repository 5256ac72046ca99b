"""GPT-2's vocab.json and merges.txt, which `--vocab-file` and `--merge-file` name: an older form of byte-level BPE.

Source: encoder.py of https://github.com/openai/gpt-2, and its counterpart in transformers.
"""

from __future__ import annotations

from typing import Any

import orjson

END_OF_TEXT = "<|endoftext|>"


def convert_gpt2_files(vocabulary: object, merges: bytes) -> bytes:
    """Return the tokenizer.json of the two files.

    Args:
        vocabulary: The content of vocab.json: id by token.
        merges: The bytes of merges.txt, whose first line may name a version.

    Raises:
        ValueError: Naming the file that is not as expected.
    """
    if not isinstance(vocabulary, dict) or not vocabulary or not all(map(_is_id, vocabulary.values())):
        msg = "expected a JSON object with an id for each token"
        raise ValueError(msg)
    pairs = []
    lines = merges.decode().split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.keys():
            msg = f"line {number} of the merges: expected two tokens that make a third of the vocabulary, got {line!r}"
            raise ValueError(msg)
        pairs.append(pair)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": vocabulary[END_OF_TEXT], "content": END_OF_TEXT, **flags}] if END_OF_TEXT in vocabulary else []
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    document: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": pairs,
        },
    }
    return orjson.dumps(document)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
