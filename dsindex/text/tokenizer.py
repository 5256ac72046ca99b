"""Load a tokenizer and describe it as plain data, so that every worker gets the same bytes once.

The format is that of the `tokenizers` library: a `tokenizer.json`, or a folder with one as written by `save_pretrained`
of transformers. Whatever transformers would add from the folder's other files must be in `tokenizer.json` itself.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import functools
import hashlib
import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dsindex.errors import TokenizerError
from dsindex.regular_files import open_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import tokenizers

LARGEST_FILE_BYTES = 512 * 1024**2
"""Far more than any tokenizer.json, so that a corpus passed by mistake is refused before it is read."""

_FROM_SENTENCEPIECE = (
    "convert it once with transformers (it needs the sentencepiece and protobuf packages), from the model's own "
    "folder: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER), and use NEW_FOLDER"
)
_FROM_TIKTOKEN = (
    "convert it once with transformers (it needs the tiktoken and blobfile packages): "
    "transformers.integrations.tiktoken.convert_tiktoken_to_fast(ENCODING, NEW_FOLDER), and use NEW_FOLDER"
)
_FROM_PARTS = "convert it once with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """A tokenizer as data: picklable, comparable, and the same on every node."""

    name: str
    """Name of the folder or file, for messages and the manifest."""
    json: bytes
    """The bytes of tokenizer.json."""
    sha256: str
    """SHA-256 of these bytes, in hexadecimal."""
    vocabulary_size: int
    """Number of tokens, including added ones: `len(tokenizer)` in transformers, which determines Megatron's dtype."""
    eod_id: int | None
    eod_token: str | None
    special_tokens: tuple[str, ...]
    """Strings that become one token wherever they occur in a text, in the order of tokenizer.json."""


def load_tokenizer(path: str, *, eod_token: str | None = None) -> Tokenizer:
    """Read a tokenizer and find its end-of-document token.

    Args:
        path: A tokenizer.json, or a folder with one and, optionally, tokenizer_config.json and
            special_tokens_map.json.
        eod_token: The end-of-document token; None for the folder's eos_token, if it has one.

    Raises:
        TokenizerError: If there is no tokenizer, it is of another kind, it is broken, its output would not be a
            function of the text, the folder's files disagree, or the EOD token is not in the vocabulary.
    """
    file = _find_tokenizer_json(path)
    content = _read_tokenizer_json(file)
    tokenizer = _describe(file, content, name=os.path.basename(os.path.abspath(path)))
    config = _read_config(path) if os.path.isdir(path) else {}
    if config:
        _check_config_agrees(path, config, tokenizer)
    eod = eod_token if eod_token is not None else _token_text(config.get("eos_token"))
    if eod is None:
        return tokenizer
    eod_id = shared_tokenizer(tokenizer).token_to_id(eod)
    if eod_id is None:
        msg = (
            f"{file}: expected the EOD token {eod!r} in the vocabulary, but it is missing; "
            f"{_suggestion(tokenizer, eod)}choose another with --eod-token"
        )
        raise TokenizerError(msg)
    return replace(tokenizer, eod_id=eod_id, eod_token=eod)


def require_eod(tokenizer: Tokenizer) -> int:
    """Return the id of the end-of-document token.

    Raises:
        TokenizerError: If the tokenizer has none.
    """
    if tokenizer.eod_id is None:
        known = ", ".join(repr(token) for token in tokenizer.special_tokens[:8])
        shown = f" (its special tokens: {known})" if known else ""
        msg = f"{tokenizer.name}: expected an eos_token, but the tokenizer has none{shown}; choose one with --eod-token"
        raise TokenizerError(msg)
    return tokenizer.eod_id


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of token ids, including special tokens, for showing samples."""
    return shared_tokenizer(tokenizer).decode([int(token) for token in ids], skip_special_tokens=False)


def shared_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Return the process-wide `tokenizers` object: the reference, with truncation and padding off as in Megatron.

    Threads share it, and encode in parallel.
    """
    return _load(tokenizer.json)


@functools.lru_cache(maxsize=4)
def _load(content: bytes) -> tokenizers.Tokenizer:
    import tokenizers

    loaded = tokenizers.Tokenizer.from_buffer(content)
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


def _find_tokenizer_json(path: str) -> str:
    if not os.path.exists(path):
        msg = (
            f"{path}: expected a tokenizer.json or a folder with one, found nothing; "
            "use a local path (models are not downloaded)"
        )
        raise TokenizerError(msg)
    if not os.path.isdir(path):
        return path
    file = os.path.join(path, "tokenizer.json")
    if os.path.isfile(file):
        return file
    names = sorted(os.listdir(path))
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "nothing"
    msg = f"{path}: expected a folder with a tokenizer.json, got one with {shown}; {_folder_remedy(path, names)}"
    raise TokenizerError(msg)


def _folder_remedy(path: str, names: list[str]) -> str:
    for name in names:
        if name.endswith((".model", ".tiktoken")):
            with open_file(os.path.join(path, name)) as stream:
                kind, remedy = _foreign_kind(name, stream.read(4096)) or ("unknown", _FROM_PARTS)
            return f"{name} is a {kind} file: {remedy}"
    if {"vocab.json", "vocab.txt", "tekken.json"} & set(names):
        return _FROM_PARTS
    return "use the folder that contains tokenizer.json"


def _foreign_kind(name: str, head: bytes) -> tuple[str, str] | None:
    """Return kind and remedy of another tokenizer file, by content first: Llama 3's `tokenizer.model` is tiktoken's."""
    token, _, rank = head.partition(b"\n")[0].strip().partition(b" ")
    if token and rank.isdigit():
        try:
            base64.b64decode(token, validate=True)
        except binascii.Error:
            pass
        else:
            return "tiktoken", _FROM_TIKTOKEN
    # A SentencePiece model is a protobuf that begins with its first piece: field 1, length, field 1, length, text.
    if len(head) > 4 and head[0] == 0x0A and head[2] == 0x0A and 0 < head[3] < head[1]:
        return "SentencePiece", _FROM_SENTENCEPIECE
    if name.endswith(".model"):
        return "SentencePiece", _FROM_SENTENCEPIECE
    return ("tiktoken", _FROM_TIKTOKEN) if name.endswith(".tiktoken") else None


def _read_tokenizer_json(file: str) -> bytes:
    try:
        with open_file(file) as stream:
            foreign = _foreign_kind(file, stream.read(4096))
            if foreign is not None:
                msg = f"{file}: expected a tokenizer.json, got a {foreign[0]} file; {foreign[1]}"
                raise TokenizerError(msg)
            size = os.fstat(stream.fileno()).st_size
            if size > LARGEST_FILE_BYTES:
                msg = (
                    f"{file}: expected a tokenizer.json, got a file of {size} bytes; pass the tokenizer, not the input"
                )
                raise TokenizerError(msg)
            stream.seek(0)
            return stream.read()
    except OSError as error:
        msg = f"{file}: expected a readable tokenizer.json, got {error.strerror}; check the path and its permissions"
        raise TokenizerError(msg) from error


def _describe(file: str, content: bytes, *, name: str) -> Tokenizer:
    """Check a tokenizer.json and return its description without the EOD token."""
    document = _parse_object(file, content)
    version, model = document.get("version", "1.0"), document.get("model")
    if version != "1.0":
        msg = f"{file}: expected a tokenizer.json of version '1.0', got {version!r}; save it with a released tokenizers"
        raise TokenizerError(msg)
    if not isinstance(model, dict):
        msg = f"{file}: expected a tokenizer.json, got JSON without a model; pass the tokenizer's own file"
        raise TokenizerError(msg)
    if model.get("dropout"):
        msg = (
            f"{file}: expected a deterministic tokenizer, got BPE dropout {model['dropout']!r}; "
            'set "dropout" to null in a copy of it'
        )
        raise TokenizerError(msg)
    added = document.get("added_tokens") or []
    tokenizer = Tokenizer(
        name=name,
        json=content,
        sha256=hashlib.sha256(content).hexdigest(),
        vocabulary_size=0,
        eod_id=None,
        eod_token=None,
        special_tokens=tuple(token["content"] for token in added if isinstance(token, dict) and token.get("special")),
    )
    try:
        size = shared_tokenizer(tokenizer).get_vocab_size(with_added_tokens=True)
    except Exception as error:  # `tokenizers` also raises bare Exceptions
        msg = (
            f"{file}: expected a tokenizer.json that the tokenizers library reads, got the error {error}; save it again"
        )
        raise TokenizerError(msg) from error
    return replace(tokenizer, vocabulary_size=size)


def _parse_object(file: str, content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        msg = f"{file}: expected JSON, but it cannot be read ({error}); fetch or save the file again"
        raise TokenizerError(msg) from error
    if not isinstance(document, dict):
        msg = f"{file}: expected a JSON object, got {type(document).__name__}; fetch or save the file again"
        raise TokenizerError(msg)
    return document


def _read_config(folder: str) -> dict[str, Any]:
    """Read the folder's other files; tokenizer_config.json takes precedence over special_tokens_map.json."""
    merged: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file = os.path.join(folder, name)
        if os.path.isfile(file):
            with open_file(file) as stream:
                found = _parse_object(file, stream.read(LARGEST_FILE_BYTES))
            merged.update((key, value) for key, value in found.items() if value is not None)
    return merged


def _token_text(token: object) -> str | None:
    """Return a token's text; the folder's files store a string, or an object with its content."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _config_tokens(config: dict[str, Any]) -> Iterator[str]:
    values: list[object] = [config.get(name) for name in _NAMED_TOKENS]
    for name in ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder"):
        group = config.get(name)
        values.extend(group.values() if isinstance(group, dict) else group if isinstance(group, list) else [])
    yield from filter(None, map(_token_text, values))


def _check_config_agrees(folder: str, config: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Refuse a folder from which transformers, and so Megatron, would load another tokenizer than tokenizer.json.

    Tokens that only the other files name get new ids, and an explicit add_bos_token or add_eos_token replaces the
    post-processor. Source: `TokenizersBackend.__init__` and `update_post_processor` of transformers 5.
    """
    remedy = (
        "make the files agree (AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) of transformers), "
        "or use the tokenizer.json itself"
    )
    loaded = shared_tokenizer(tokenizer)
    missing = next((token for token in _config_tokens(config) if loaded.token_to_id(token) is None), None)
    if missing is not None:
        msg = (
            f"{folder}: expected tokenizer.json to have all tokens of the other files, {missing!r} is missing; {remedy}"
        )
        raise TokenizerError(msg)
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    ends = [(config.get(f"add_{end}_token"), _token_text(config.get(f"{end}_token"))) for end in ("bos", "eos")]
    bos, eos = ([loaded.token_to_id(token)] if wanted and token is not None else [] for wanted, token in ends)
    plain, processed = (loaded.encode("a text", add_special_tokens=flag).ids for flag in (False, True))
    if processed != [*bos, *plain, *eos]:
        msg = (
            f"{folder}: tokenizer_config.json and the post-processor of tokenizer.json disagree on the tokens around a "
            f"text: add_bos_token and add_eos_token make it {[*bos, *plain, *eos]}, the latter {processed}; {remedy}"
        )
        raise TokenizerError(msg)


def _suggestion(tokenizer: Tokenizer, wanted: str) -> str:
    vocabulary = shared_tokenizer(tokenizer).get_vocab(with_added_tokens=True)
    close = difflib.get_close_matches(wanted, tokenizer.special_tokens) or difflib.get_close_matches(wanted, vocabulary)
    shown = close or list(tokenizer.special_tokens[:3])
    return f"near it: {', '.join(map(repr, shown))}; " if shown else ""
