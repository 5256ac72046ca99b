"""The folder of a Hugging Face tokenizer: which file in it is the tokenizer, and what its other files add.

Whatever transformers would add from the other files must be in tokenizer.json itself.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from dsindex.errors import TokenizerError
from dsindex.objects.urls import ONLY_INPUTS, is_url
from dsindex.regular_files import open_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    import tokenizers

LARGEST_FILE_BYTES = 512 * 1024**2
"""Far more than any tokenizer's file, so that a corpus passed by mistake is refused before it is read."""

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def find_tokenizer_file(path: str, suffix: str | None = None) -> str:
    """Return the path of a tokenizer's file: the path itself, or the tokenizer.json of a folder.

    Args:
        path: A file or folder.
        suffix: How the name of the only such file in a folder ends, if not the tokenizer.json is wanted.

    Raises:
        TokenizerError: If there is none.
    """
    if is_url(path):
        msg = f"{path.partition('?')[0]}: {ONLY_INPUTS}, or to storage that all nodes share"
        raise TokenizerError(msg)
    if not os.path.exists(path):
        msg = f"{path}: expected a tokenizer's file, or a folder with a tokenizer.json, found nothing; check the path"
        raise TokenizerError(msg)
    if not os.path.isdir(path):
        return path
    names = sorted(os.listdir(path))
    wanted = [name for name in names if (name == "tokenizer.json" if suffix is None else name.endswith(suffix))]
    if len(wanted) == 1 and os.path.isfile(os.path.join(path, wanted[0])):
        return os.path.join(path, wanted[0])
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "nothing"
    what = "a tokenizer.json" if suffix is None else f"one *{suffix}"
    msg = f"{path}: expected a folder with {what}, got one with {shown}; {_remedy(path, names)}"
    raise TokenizerError(msg)


def _remedy(path: str, names: list[str]) -> str:
    whole = next((name for name in names if name.endswith((".model", ".tiktoken")) or name == "tekken.json"), None)
    if whole is not None:
        return (
            f"use the file itself, --tokenizer-model {os.path.join(path, whole)}, for the tokens of its own library; "
            f"those of transformers may be others"
        )
    if {"vocab.json", "merges.txt"} <= set(names):
        vocabulary, merges = (os.path.join(path, name) for name in ("vocab.json", "merges.txt"))
        return f"use --tokenizer-type GPT2BPETokenizer --vocab-file {vocabulary} --merge-file {merges}"
    return "use the folder that contains tokenizer.json"


def parse_object(file: str, content: bytes) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        TokenizerError: If it holds none.
    """
    document = parse_json(file, content)
    if not isinstance(document, dict):
        msg = f"{file}: expected a JSON object, got {type(document).__name__}; fetch or save the file again"
        raise TokenizerError(msg)
    return document


def parse_json(file: str, content: bytes) -> object:
    """Return the JSON in a file.

    Raises:
        TokenizerError: If it holds none.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        msg = f"{file}: expected JSON, but it cannot be read ({error}); fetch or save the file again"
        raise TokenizerError(msg) from error


def read_folder_config(folder: str) -> dict[str, Any]:
    """Read the folder's other files; tokenizer_config.json takes precedence over special_tokens_map.json.

    Raises:
        TokenizerError: If one holds no JSON object.
    """
    merged: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file = os.path.join(folder, name)
        if os.path.isfile(file):
            with open_file(file) as stream:
                found = parse_object(file, stream.read(LARGEST_FILE_BYTES))
            merged.update((key, value) for key, value in found.items() if value is not None)
    return merged


def token_text(token: object) -> str | None:
    """Return a token's text; the folder's files store a string, or an object with its content."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def check_config_agrees(folder: str, config: dict[str, Any], loaded: tokenizers.Tokenizer) -> None:
    """Refuse a folder from which transformers, and so Megatron, would load another tokenizer than tokenizer.json.

    Tokens that only the other files name get new ids, and an explicit add_bos_token or add_eos_token replaces the
    post-processor. Source: `TokenizersBackend.__init__` and `update_post_processor` of transformers 5.

    Raises:
        TokenizerError: Naming the difference.
    """
    remedy = f"use --tokenizer-model {os.path.join(folder, 'tokenizer.json')} for the tokenizer.json alone"
    missing = next((token for token in _config_tokens(config) if loaded.token_to_id(token) is None), None)
    if missing is not None:
        msg = (
            f"{folder}: expected tokenizer.json to have all tokens of the other files, {missing!r} is missing; {remedy}"
        )
        raise TokenizerError(msg)
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    ends = [(config.get(f"add_{end}_token"), token_text(config.get(f"{end}_token"))) for end in ("bos", "eos")]
    bos, eos = ([loaded.token_to_id(token)] if wanted and token is not None else [] for wanted, token in ends)
    plain, processed = (loaded.encode("a text", add_special_tokens=flag).ids for flag in (False, True))
    if processed != [*bos, *plain, *eos]:
        msg = (
            f"{folder}: tokenizer_config.json and the post-processor of tokenizer.json disagree on the tokens around a "
            f"text: add_bos_token and add_eos_token make it {[*bos, *plain, *eos]}, the latter {processed}; {remedy}"
        )
        raise TokenizerError(msg)


def _config_tokens(config: dict[str, Any]) -> Iterator[str]:
    values: list[object] = [config.get(name) for name in _NAMED_TOKENS]
    for name in ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder"):
        group = config.get(name)
        values.extend(group.values() if isinstance(group, dict) else group if isinstance(group, list) else [])
    yield from filter(None, map(token_text, values))
