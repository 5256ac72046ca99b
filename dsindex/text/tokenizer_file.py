"""The file of a tokenizer: its bytes, its kind by content, and whether the type asked for fits that kind."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from dsindex.errors import TokenizerError
from dsindex.store.storage import open_file
from dsindex.store.urls import ONLY_INPUTS, refuse_address
from dsindex.text.compressed import describe_lfs_pointer
from dsindex.text.conversion import (
    FAMILIES,
    MEGATRON_SPECIAL_TOKENS,
    MEGATRON_VOCABULARY_SIZE,
    SIZES,
    TiktokenEncoding,
    check_encoding,
    eod_of_family,
    family_of_file,
    make_encoding,
    read_megatron_ranks,
    read_rank_lines,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import tokenizers


# Tokenizers by name, such as `gpt2` or `meta-llama/Llama-3.1-8B@main`: from the Hugging Face cache, else from the hub.
#
# Only the files of a tokenizer are fetched, never code or weights. What is in the cache is used without asking the hub;
# HF_HUB_OFFLINE and HF_HOME have their usual meaning. The commit that was found is the tokenizer's revision.

_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?)(@(?P<revision>[\w][\w./-]*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MAIN_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "*.tiktoken")
_FILES = (
    *_MAIN_FILES, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt",
    "chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTokenizer:
    """A tokenizer's files on this machine."""

    path: str
    name: str | None = None
    """Its name in the hub; None for a path."""
    revision: str | None = None
    """The commit, in hexadecimal; None for a path."""


def can_be_name(path: str) -> bool:
    """Tell whether a text can be the name of a tokenizer, unless it is a path that exists.

    >>> can_be_name("gpt2"), can_be_name("openai/gpt2@main"), can_be_name("tokenizer.json"), can_be_name("./gpt2")
    (True, True, False, False)
    """
    return bool(_NAME.fullmatch(path)) and not path.endswith((".json", ".model", ".tiktoken", ".txt"))


def find_tokenizer(path: str) -> FoundTokenizer:
    """Return a path as it is if it exists or cannot be a name, else the local folder of the tokenizer of that name.

    Raises:
        TokenizerError: If there is neither a file, nor a copy in the cache, nor one that can be fetched.
    """
    match = _NAME.fullmatch(path)
    if os.path.exists(path) or match is None or not can_be_name(path):
        return FoundTokenizer(path=path)
    name, revision = match["name"], match["revision"]
    folder = _fetch(path, name, revision)
    commit = os.path.basename(folder)
    if not _COMMIT.fullmatch(commit):
        msg = f"{path}: expected a folder named after a commit in the Hugging Face cache, got {folder}; give its path"
        raise TokenizerError(msg)
    return FoundTokenizer(path=folder, name=name, revision=commit)


def _fetch(path: str, name: str, revision: str | None) -> str:
    """Return the folder with a tokenizer's files: that in the cache, else one that is fetched."""
    from huggingface_hub import snapshot_download

    download = functools.partial(snapshot_download, name, revision=revision, allow_patterns=list(_FILES))
    with contextlib.suppress(Exception):  # its errors differ by release; the hub is asked next
        folder = str(download(local_files_only=True))
        if _has_tokenizer(folder):
            return folder
    try:
        folder = str(download())
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise TokenizerError(_not_found(path, reason[:200])) from error
    if not _has_tokenizer(folder):
        raise TokenizerError(_not_found(path, "it has files of that name, but no tokenizer"))
    return folder


def _has_tokenizer(folder: str) -> bool:
    return any(name in _MAIN_FILES or name.endswith(".tiktoken") for name in os.listdir(folder))


def _not_found(path: str, reason: str) -> str:
    return (
        f"{path}: expected a file, a folder, or the name of a tokenizer in the Hugging Face cache or hub; there is no "
        f"such path, the cache has no such tokenizer, and the hub gave none ({reason}); give the path of a copy"
    )


# The folder of a Hugging Face tokenizer: which file in it is the tokenizer, and what its other files add.
#
# Whatever transformers would add from the other files must be in tokenizer.json itself.

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
    refuse_address(path, f"{ONLY_INPUTS}, or to storage that all nodes share", TokenizerError)
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
    raise TokenizerError(f"{path}: expected a folder with {what}, got one with {shown}; {_remedy(path, names)}")


def _remedy(path: str, names: list[str]) -> str:
    if "tokenizer.json" in names:
        return "for its tokenizer.json, use --tokenizer-type HuggingFaceTokenizer"
    whole = next((name for name in names if name.endswith((".model", ".tiktoken"))), None)
    if whole is not None:
        return (
            f"use the file itself, --tokenizer-model {os.path.join(path, whole)}, for the tokens of its own library; "
            f"those of transformers may be others"
        )
    if {"vocab.json", "merges.txt"} <= set(names):
        vocabulary, merges = (os.path.join(path, name) for name in ("vocab.json", "merges.txt"))
        return f"use --tokenizer-type GPT2BPETokenizer --vocab-file {vocabulary} --merge-file {merges}"
    return "use the folder that contains tokenizer.json"


_ANOTHER = "fetch or save the file again, or give another --tokenizer-model"


def require_object(file: str, document: object) -> dict[str, Any]:
    """Return the JSON of a file.

    Raises:
        TokenizerError: If it is not an object.
    """
    if not isinstance(document, dict):
        raise TokenizerError(f"{file}: expected a JSON object, got {type(document).__name__}; {_ANOTHER}")
    return document


def parse_json(file: str, content: bytes) -> object:
    """Return the JSON in a file.

    Raises:
        TokenizerError: If it holds none.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{file}: expected JSON, but it cannot be read ({error}); {_ANOTHER}") from error


def read_folder_config(folder: str) -> dict[str, Any]:
    """Read the folder's other files.

    As in transformers, special_tokens_map.json takes precedence over a tokenizer_config.json without an
    added_tokens_decoder, and otherwise the latter does.

    Raises:
        TokenizerError: If one holds no JSON object.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file = os.path.join(folder, name)
        if os.path.isfile(file):
            document = require_object(file, parse_json(file, read_tokenizer_bytes(file)))
            found[name] = {key: value for key, value in document.items() if value is not None}
    tokens, config = found.get("special_tokens_map.json", {}), found.get("tokenizer_config.json", {})
    return tokens | config if "added_tokens_decoder" in config else config | tokens


def set_token_flags(content: bytes, config: dict[str, Any]) -> bytes:
    """Return a tokenizer.json whose added tokens have the flags of tokenizer_config.json, as transformers has it.

    The bytes are the same if the files agree.
    """
    decoder = config.get("added_tokens_decoder")
    flags = {
        text: token for token in (decoder if isinstance(decoder, dict) else {}).values() if (text := token_text(token))
    }
    document = json.loads(content)
    differs = False
    for token in document.get("added_tokens") or []:
        own = flags.get(token.get("content"))
        if not isinstance(own, dict):
            continue
        for name in _TOKEN_FLAGS:
            if isinstance(own.get(name), bool) and token.get(name) != own[name]:
                token[name], differs = own[name], True
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() if differs else content


def token_text(token: object) -> str | None:
    """Return a token's text; the folder's files store a string, or an object with its content."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def check_config_agrees(folder: str, config: dict[str, Any], loaded: tokenizers.Tokenizer) -> None:
    """Refuse a folder from which transformers, and so Megatron, would load another tokenizer than tokenizer.json.

    Tokens that only the other files name get new ids, and an explicit add_bos_token or add_eos_token replaces the
    post-processor. Source: `TokenizersBackend.__init__` and `update_post_processor` of transformers 5.

    Raises:
        TokenizerError: Naming the difference.
    """
    remedy = f"use --tokenizer-model {os.path.join(folder, 'tokenizer.json')} for the tokenizer.json alone"
    if config.get("split_special_tokens"):
        raise TokenizerError(
            f"{folder}: expected special tokens to be found in texts, got split_special_tokens in "
            f"tokenizer_config.json, with which transformers splits them like other text; {remedy}"
        )
    missing = next((token for token in _config_tokens(config) if loaded.token_to_id(token) is None), None)
    if missing is not None:
        raise TokenizerError(
            f"{folder}: expected tokenizer.json to have all tokens of the other files, {missing!r} is missing; {remedy}"
        )
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    ends = [(config.get(f"add_{end}_token"), token_text(config.get(f"{end}_token"))) for end in ("bos", "eos")]
    bos, eos = ([loaded.token_to_id(token)] if wanted and token is not None else [] for wanted, token in ends)
    plain, processed = (loaded.encode("a text", add_special_tokens=flag).ids for flag in (False, True))
    if processed != [*bos, *plain, *eos]:
        raise TokenizerError(
            f"{folder}: tokenizer_config.json and the post-processor of tokenizer.json disagree on the tokens around a "
            f"text: add_bos_token and add_eos_token make it {[*bos, *plain, *eos]}, the latter {processed}; {remedy}"
        )


def _config_tokens(config: dict[str, Any]) -> Iterator[str]:
    values: list[object] = [config.get(name) for name in _NAMED_TOKENS]
    for name in ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder"):
        group = config.get(name)
        values.extend(group.values() if isinstance(group, dict) else group if isinstance(group, list) else [])
    yield from filter(None, map(token_text, values))


FileKind = Literal["tokenizer.json", "SentencePiece", "tiktoken", "ranks in JSON"]

TokenizerType = Literal[
    "HuggingFaceTokenizer",
    "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
    "Llama2Tokenizer",
    "TikTokenizer",
    "GPT2BPETokenizer",
]
"""Megatron's `--tokenizer-type`, as far as it stands for a format that can be read."""

_KINDS: dict[TokenizerType, tuple[FileKind, ...]] = {
    "HuggingFaceTokenizer": ("tokenizer.json",),
    "SentencePieceTokenizer": ("SentencePiece",),
    "GPTSentencePieceTokenizer": ("SentencePiece",),
    "Llama2Tokenizer": ("SentencePiece",),
    "TikTokenizer": ("ranks in JSON",),
    "GPT2BPETokenizer": ("tokenizer.json",),
}
_TYPES: dict[FileKind, str] = {
    "tokenizer.json": "HuggingFaceTokenizer",
    "SentencePiece": "SentencePieceTokenizer, which encodes as its own library does, without a BOS",
    "ranks in JSON": "TikTokenizer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerOptions:
    """What a tokenizer's file does not say, named as the options of Megatron-LM where it has them."""

    tokenizer_type: TokenizerType | None = None
    """The type that the file must be of; None for whatever its content is."""
    vocab_file: str | None = None
    """GPT-2's vocab.json, which is read together with `merge_file` in place of the path."""
    merge_file: str | None = None
    tiktoken_encoding: str | None = None
    """Name of the pattern and special tokens of a tiktoken file, one of FAMILIES; None if the file's name says it."""
    tiktoken_pattern: Literal["v1", "v2"] = "v2"
    """Megatron's pattern for ranks in JSON."""
    tiktoken_num_special_tokens: int = 1000
    vocab_size: int | None = None
    """Size of the vocabulary for ranks in JSON; None for Megatron's 131,072."""
    tokenizer_special_tokens: tuple[str, ...] = MEGATRON_SPECIAL_TOKENS
    """The first special tokens for ranks in JSON."""

    @property
    def folder_suffix(self) -> str | None:
        """How the name of the file ends that is meant by a folder; None for its tokenizer.json."""
        return ".model" if self.tokenizer_type is not None and "SentencePiece" in _KINDS[self.tokenizer_type] else None


def read_tokenizer_bytes(file: str) -> bytes:
    """Return a tokenizer's bytes.

    Raises:
        TokenizerError: If the file cannot be read, is a Git LFS pointer, or is far too large for a tokenizer.
    """
    try:
        with open_file(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > LARGEST_FILE_BYTES:
                msg = f"{file}: expected a tokenizer's file, got one of {size} bytes; pass the tokenizer, not the input"
                raise TokenizerError(msg)
            content = stream.read()
    except OSError as error:
        msg = f"{file}: the tokenizer cannot be read ({error.strerror}); check the path and its permissions"
        raise TokenizerError(msg) from error
    if (pointer := describe_lfs_pointer(content)) is not None:
        raise TokenizerError(f"{file}: expected a tokenizer's file, got {pointer}")
    return content


def kind_of_file(file: str, content: bytes, options: TokenizerOptions) -> tuple[FileKind, object]:
    """Return the kind of a tokenizer's file, by its content, and its JSON; None for a kind that is not JSON.

    Llama 3's `tokenizer.model` is tiktoken's.

    Raises:
        TokenizerError: If it is not what the type that was asked for reads.
    """
    kind, document = _kind_of_content(file, content)
    _check_options_apply(file, kind, options)
    wanted = options.tokenizer_type
    if wanted is not None and kind not in _KINDS[wanted]:
        article = "a" if kind == "SentencePiece" or kind == "tiktoken" else ""
        remedy = f"use --tokenizer-type {_TYPES[kind]}" if kind in _TYPES else "leave --tokenizer-type out"
        expected = "a folder with a tokenizer.json" if wanted == "HuggingFaceTokenizer" else _KINDS[wanted][0]
        msg = f"{file}: expected {expected} for --tokenizer-type {wanted}, got {article} {kind} file; {remedy}"
        raise TokenizerError(" ".join(msg.split()))
    return kind, document


def _check_options_apply(file: str, kind: FileKind, options: TokenizerOptions) -> None:
    if kind != "ranks in JSON" and options.tokenizer_special_tokens != MEGATRON_SPECIAL_TOKENS:
        raise TokenizerError(
            f"{file}: expected no --tokenizer-special-tokens, which only ranks in JSON take, got a {kind} file; leave "
            f"the option out"
        )
    if kind != "tiktoken" and options.tiktoken_encoding is not None:
        msg = f"{file}: expected a tiktoken file for --tiktoken-encoding, got a {kind} file; leave the option out"
        raise TokenizerError(msg)


def _kind_of_content(file: str, content: bytes) -> tuple[FileKind, object]:
    first = content[:4096].partition(b"\n")[0].strip()
    token, _, rank = first.partition(b" ")
    if token and rank.isdigit():
        try:
            base64.b64decode(token, validate=True)
        except binascii.Error:
            pass
        else:
            return "tiktoken", None
    # A SentencePiece model is a protobuf that begins with its first piece: field 1, length, field 1, length, text.
    if len(content) > 4 and content[0] == 0x0A and content[2] == 0x0A and 0 < content[3] < content[1]:
        return "SentencePiece", None
    if file.endswith((".model", ".tiktoken")):
        return "SentencePiece" if file.endswith(".model") else "tiktoken", None
    document = parse_json(file, content)
    if isinstance(document, list) and document and isinstance(document[0], dict) and "token_bytes" in document[0]:
        return "ranks in JSON", document
    return "tokenizer.json", document


def read_encoding(
    file: str, content: bytes, kind: FileKind, document: object, options: TokenizerOptions
) -> tuple[TiktokenEncoding, str | None]:
    """Return the encoding in a file of ranks, and the token that ends its documents.

    Args:
        file: The path.
        content: Its bytes.
        kind: Its kind.
        document: Its JSON, as `kind_of_file` returns it.
        options: What the file does not say.

    Raises:
        TokenizerError: If the file is damaged, or does not fit the options.
    """
    try:
        if kind == "tiktoken":
            family = _family(file, content, options)
            encoding, eod = make_encoding(family, read_rank_lines(content)), eod_of_family(family)
        else:
            eod, size = "</s>", MEGATRON_VOCABULARY_SIZE if options.vocab_size is None else options.vocab_size
            encoding = read_megatron_ranks(
                document,
                pattern=options.tiktoken_pattern,
                special_tokens=options.tokenizer_special_tokens,
                num_special=options.tiktoken_num_special_tokens,
                size=size,
            )
        check_encoding(encoding)
    except (ValueError, KeyError, TypeError) as error:
        msg = f"{file}: expected ranks of a byte-pair encoding, but they cannot be used: {error}; fetch the file again"
        raise TokenizerError(msg) from error
    return encoding, eod if encoding.token_id(eod) is not None else None


def _family(file: str, content: bytes, options: TokenizerOptions) -> str:
    family = options.tiktoken_encoding or family_of_file(file)
    if family in FAMILIES:
        return family
    num_ranks = content.count(b"\n") + (not content.endswith(b"\n"))
    near = f"a file of {num_ranks} ranks is usually {SIZES[num_ranks]}" if num_ranks in SIZES else "choose one"
    raise TokenizerError(
        f"{file}: expected --tiktoken-encoding, since a tiktoken file holds neither pattern nor special tokens, got "
        f"{'none' if family is None else repr(family)}; {near} (known: {', '.join(FAMILIES)})"
    )


def find_fault(document: dict[str, Any]) -> str | None:
    """Describe what makes `tokenizers` panic, or abort the process, in a tokenizer.json with a model; None for nothing.

    The library prints a panic to stderr, and an abort cannot be caught: it takes memory by a size in a charsmap, and
    cuts merged tokens where a prefix would end, without looking.
    """
    added, model = document.get("added_tokens"), document["model"]
    if added is not None and not isinstance(added, list):
        return f"added_tokens of the type {type(added).__name__}"
    prefix, merges = model.get("continuing_subword_prefix"), model.get("merges")
    if prefix and isinstance(prefix, str) and isinstance(merges, list):
        for merge in merges:
            pair = merge.split(" ") if isinstance(merge, str) else merge
            if isinstance(pair, list) and len(pair) == 2 and not str(pair[1]).startswith(prefix):
                return f"the merge {pair!r}, whose second token lacks the continuing_subword_prefix {prefix!r}"
    for part in _parts([document.get(name) for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder")]):
        find = _PART_FAULTS.get(str(part.get("type")))
        if find is not None and (fault := find(part)) is not None:
            return fault
    return None


def _parts(value: object) -> Iterator[dict[str, Any]]:
    """Yield all objects in the description of a part: the steps of a sequence, among others."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield found
            found = list(found.values())
        if isinstance(found, list):
            waiting += found


def _pattern_fault(part: dict[str, Any]) -> str | None:
    return "a Replace with an empty pattern" if part.get("pattern") in ({"String": ""}, {"Regex": ""}) else None


def _template_fault(part: dict[str, Any]) -> str | None:
    single, known = part.get("single"), part.get("special_tokens")
    for piece in single if isinstance(single, list) else []:
        for kind, described in piece.items() if isinstance(piece, dict) else ():
            wanted = described.get("id") if isinstance(described, dict) else None
            if kind == "Sequence" and wanted == "B":
                return "a TemplateProcessing with a second text where there is one"
            if kind == "SpecialToken" and isinstance(known, dict) and wanted not in known:
                return f"a TemplateProcessing with {wanted!r}, which its special_tokens lack"
    return None


def _charsmap_fault(part: dict[str, Any]) -> str | None:
    """Check the size of the trie, then the texts after it. Source: spm_precompiled."""
    try:
        content = base64.b64decode(part["precompiled_charsmap"], validate=True)
        end = 4 + int.from_bytes(content[:4], "little") // 4 * 4
        content[end:].decode()
    except (KeyError, TypeError, ValueError):
        content, end = b"", 1
    return "a precompiled_charsmap that is damaged" if not 4 <= end <= len(content) else None


_PART_FAULTS: dict[str, Callable[[dict[str, Any]], str | None]] = {
    "Replace": _pattern_fault,
    "Prepend": lambda part: "a Prepend of nothing" if part.get("prepend") == "" else None,
    "FixedLength": lambda part: "a FixedLength of 0" if part.get("length") == 0 else None,
    "TemplateProcessing": _template_fault,
    "Precompiled": _charsmap_fault,
}

TOKENIZER_TYPES = get_args(TokenizerType)
