"""Load a tokenizer and describe it as plain data, so that every worker gets the same bytes once.

The formats are a `tokenizer.json` of the `tokenizers` library, or a folder with one as written by `save_pretrained` of
transformers; a SentencePiece `.model`; ranks of tiktoken in two kinds of files; GPT-2's vocab.json and merges.txt. No
code of a tokenizer is run.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import difflib
import functools
import hashlib
import itertools
import json
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dsindex.errors import TokenizerError
from dsindex.store.local import open_file
from dsindex.store.urls import ONLY_INPUTS, refuse_address
from dsindex.text.compressed import describe_lfs_pointer
from dsindex.text.tiktoken_files import (
    END_OF_TEXT,
    MEGATRON_SPECIAL_TOKENS,
    TokenizerOptions,
    make_tiktoken,
    read_definition,
    read_megatron_ranks,
    read_rank_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import tokenizers

LibraryName = Literal["tokenizers", "sentencepiece", "tiktoken"]
"""The library that defines a tokenizer's format, which is the reference for its tokens."""

LARGEST_FILE_BYTES = 512 * 1024**2
"""Far more than any tokenizer's file, so that a corpus passed by mistake is refused before it is read."""

_SHOWN_CHARACTERS = 200
_AGAIN = "fetch or save the file again, or give another --tokenizer-model"


class LibraryError(Exception):
    """A tokenizer's library failed; the message is what it said, on one line."""


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Make one error of all that a tokenizer's library raises: bare exceptions, and panics, which are none.

    Raises:
        LibraryError: In place of what the library raised; not of our own errors, or a lack of memory or of the library.
    """
    try:
        yield
    except (MemoryError, ModuleNotFoundError, TokenizerError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        said = " ".join(str(error).split()) or type(error).__name__
        raise LibraryError(said if len(said) <= _SHOWN_CHARACTERS else f"{said[:_SHOWN_CHARACTERS]}…") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """A tokenizer as data: picklable, comparable, and the same on every node."""

    name: str
    """Name of the folder or file, or in the hub, for messages and the manifest."""
    library: LibraryName = "tokenizers"
    content: bytes
    """The bytes of tokenizer.json, of a SentencePiece `.model`, or of the definition of a tiktoken encoding."""
    sha256: str
    """SHA-256 of the content, in hexadecimal."""
    vocabulary_size: int
    """Number of tokens, including added ones: `len(tokenizer)` in transformers, which determines Megatron's dtype."""
    eod_id: int | None = None
    eod_token: str | None = None
    special_tokens: tuple[str, ...]
    """Strings that become one token wherever they occur in a text, in the order of their ids."""
    revision: str | None = None
    """The commit in the hub that it was loaded from; None for a path."""


def load_tokenizer(
    path: str, *, eod_token: str | None = None, options: TokenizerOptions | None = None, fetches: bool = True
) -> Tokenizer:
    """Read a tokenizer and find its end-of-document token.

    Args:
        path: A tokenizer's file; a folder with a tokenizer.json and, optionally, tokenizer_config.json and
            special_tokens_map.json; or a name in the Hugging Face hub, optionally with `@` and a revision.
        eod_token: The end-of-document token; None for the folder's eos_token or the file's own, if it has one.
        options: What the file does not say.
        fetches: Ask the hub for a tokenizer that is not in its cache.

    Raises:
        TokenizerError: If there is no tokenizer, it is of another kind, it is broken, its output would not be a
            function of the text, the folder's files disagree, or the EOD token is not in the vocabulary.
    """
    options = options or TokenizerOptions()
    if options.vocab_file is not None and options.merge_file is not None:
        file = options.vocab_file
        tokenizer, own_eod = _read_gpt2_files(options.vocab_file, options.merge_file)
    else:
        found, revision = find_tokenizer(path, fetches=fetches)
        file = _find_file(found, wants_model=options.tokenizer_type in _TYPES["SentencePiece"])
        tokenizer, own_eod = _read_file(found, file, options)
        if revision is not None:
            tokenizer = replace(tokenizer, name=path.partition("@")[0], revision=revision)
    eod = eod_token if eod_token is not None else own_eod
    if eod is None:
        return tokenizer
    eod_id = _token_id(tokenizer, eod)
    if eod_id is None:
        near = difflib.get_close_matches(eod, tokenizer.special_tokens) or tokenizer.special_tokens[:3]
        shown = f"near it: {', '.join(map(repr, near))}; " if near else ""
        raise TokenizerError(
            f"{file}: expected the EOD token {eod!r} in the vocabulary, but it is missing; {shown}choose another with "
            "--eod-token"
        )
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


def decode(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """Return the text of token ids, including special tokens, for showing samples."""
    numbers = [int(token) for token in ids]
    skips = {"skip_special_tokens": False} if tokenizer.library == "tokenizers" else {}
    try:
        with library_errors():
            return str(open_library(tokenizer).decode(numbers, **skips))
    except LibraryError as error:
        library = tokenizer.library
        msg = f"{tokenizer.name}: expected ids that {library} can decode, but it fails ({error}); check the ids"
        raise TokenizerError(msg) from error


def _token_id(tokenizer: Tokenizer, token: str) -> int | None:
    loaded = open_library(tokenizer)
    if tokenizer.library == "tiktoken":
        with contextlib.suppress(KeyError):
            return int(loaded.encode_single_token(token))
        return None
    if tokenizer.library == "sentencepiece":
        number = int(loaded.piece_to_id(token))
        return number if loaded.id_to_piece(number) == token else None
    found: int | None = loaded.token_to_id(token)
    return found


def open_library(tokenizer: Tokenizer) -> Any:  # noqa: ANN401 - of three libraries
    """Return the object of the tokenizer's library, which all threads of a process share."""
    return _open_library(tokenizer.library, tokenizer.content)


@functools.lru_cache(maxsize=8)
def _open_library(library: LibraryName, content: bytes) -> Any:  # noqa: ANN401 - as above
    if library == "sentencepiece":
        import sentencepiece

        return sentencepiece.SentencePieceProcessor(model_proto=content)
    if library == "tiktoken":
        return make_tiktoken(read_definition(content))
    import tokenizers

    loaded = tokenizers.Tokenizer.from_buffer(content)
    loaded.no_truncation()  # as in Megatron
    loaded.no_padding()
    return loaded


def shared_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Return the process-wide object of `tokenizers`, with truncation and padding off.

    Raises:
        TokenizerError: If the tokenizer is not a tokenizer.json.
    """
    if tokenizer.library != "tokenizers":
        raise TokenizerError(
            f"{tokenizer.name}: expected a tokenizer.json, got a tokenizer of {tokenizer.library}; `dsindex build` "
            f"reads such a file, this command does not"
        )
    loaded: tokenizers.Tokenizer = open_library(tokenizer)
    return loaded


# Where a tokenizer is: a path, or a name such as `gpt2` or `meta-llama/Llama-3.1-8B@main`.
#
# Only the files of a tokenizer are fetched, never code or weights. What is in the Hugging Face cache is used without
# asking the hub; HF_HUB_OFFLINE and HF_HOME have their usual meaning. The commit that was found is the revision.

_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?)(@(?P<revision>[\w][\w./-]*))?")
_FILE_SUFFIXES = (".json", ".model", ".tiktoken", ".txt")
_MAIN_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "*.tiktoken")
_FILES = (
    *_MAIN_FILES, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt",
    "chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja",
)  # fmt: skip


def find_tokenizer(path: str, *, fetches: bool = True) -> tuple[str, str | None]:
    """Return where a tokenizer is on this machine, and the commit of one that is given by its name in the hub.

    Returns:
        The path itself, if it exists or cannot be a name, and None; or a folder of the cache, and the commit.

    Raises:
        TokenizerError: If there is neither a file, nor a copy in the cache, nor one that can be fetched.
    """
    match = _NAME.fullmatch(path)
    if match is None or os.path.exists(path) or path.endswith(_FILE_SUFFIXES):
        return path, None
    from huggingface_hub import snapshot_download

    download = functools.partial(
        snapshot_download, match["name"], revision=match["revision"], allow_patterns=list(_FILES)
    )
    folder = ""
    with contextlib.suppress(Exception):  # its errors differ by release; the hub is asked next
        folder = str(download(local_files_only=True))
    try:
        if not fetches and not _has_tokenizer(folder):
            raise FileNotFoundError("it was not asked, because only a manifest names this tokenizer")
        folder = folder if _has_tokenizer(folder) else str(download())
        if not _has_tokenizer(folder):
            raise FileNotFoundError("it has files of that name, but no tokenizer")
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
        raise TokenizerError(
            f"{path}: expected a file, a folder, or the name of a tokenizer in the Hugging Face cache or hub; there is "
            f"no such path, the cache has no such tokenizer, and the hub gave none ({reason}); give the path of a copy"
        ) from error
    return folder, os.path.basename(folder)


def _has_tokenizer(folder: str) -> bool:
    names = os.listdir(folder) if folder else []
    return any(name in _MAIN_FILES or name.endswith(".tiktoken") for name in names)


def _find_file(path: str, *, wants_model: bool) -> str:
    """Return the path of a tokenizer's file: the path itself, or the tokenizer.json or SentencePiece model of a folder.

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
    wanted = [name for name in names if (name.endswith(".model") if wants_model else name == "tokenizer.json")]
    if len(wanted) == 1 and os.path.isfile(os.path.join(path, wanted[0])):
        return os.path.join(path, wanted[0])
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "nothing"
    what = "one *.model" if wants_model else "a tokenizer.json"
    remedy = "name a file itself, or vocab.json and merges.txt with --vocab-file and --merge-file"
    raise TokenizerError(f"{path}: expected a folder with {what}, got one with {shown}; {remedy}")


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


def _parse_json(file: str, content: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{file}: expected JSON, but it cannot be read ({error}); {_AGAIN}") from error


def _parse_object(file: str, document: object) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise TokenizerError(f"{file}: expected a JSON object, got {type(document).__name__}; {_AGAIN}")
    return document


# What a file is: told by its content, and compared with the type that was asked for.

FileKind = Literal["tokenizer.json", "SentencePiece", "tiktoken", "ranks in JSON"]

_TYPES: dict[FileKind, tuple[str, ...]] = {
    "tokenizer.json": ("HuggingFaceTokenizer", "GPT2BPETokenizer"),
    "SentencePiece": ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer"),
    "ranks in JSON": ("TikTokenizer",),
    "tiktoken": (),
}
"""Megatron's types that read each kind, first the one to use."""


def _read_file(path: str, file: str, options: TokenizerOptions) -> tuple[Tokenizer, str | None]:
    """Return the tokenizer in a file, and its own EOD token."""
    name, content = os.path.basename(os.path.abspath(path)), read_tokenizer_bytes(file)
    kind, document = _tell_kind(file, content)
    has_special = options.tokenizer_special_tokens != MEGATRON_SPECIAL_TOKENS
    for option, is_wrong in (
        (f"--tokenizer-type {options.tokenizer_type}", options.tokenizer_type not in {None, *_TYPES[kind]}),
        ("--tokenizer-special-tokens", has_special and kind != "ranks in JSON"),
        ("--tiktoken-encoding", options.tiktoken_encoding is not None and kind != "tiktoken"),
    ):
        if is_wrong:
            fitting = "".join(f", or use --tokenizer-type {each}" for each in _TYPES[kind][:1])
            raise TokenizerError(f"{file}: expected a file for {option}, got {kind}; leave it out{fitting}")
    if kind == "tokenizer.json":
        return _read_tokenizer_json(path, file, content, document, name=name)
    if kind == "SentencePiece":
        return _read_sentencepiece(file, content, name=name)
    try:
        with library_errors():
            if kind == "tiktoken":
                encoding, eod = read_rank_file(file, content, options.tiktoken_encoding)
            else:
                encoding, eod = read_megatron_ranks(document, options)
            make_tiktoken(encoding)
    except LibraryError as error:
        msg = f"{file}: expected ranks of a byte-pair encoding, but they cannot be used: {error}; fetch the file again"
        raise TokenizerError(msg) from error
    special = sorted(encoding.special_tokens, key=encoding.special_tokens.__getitem__)
    definition, size = msgspec.json.encode(encoding), encoding.vocabulary_size
    return _of("tiktoken", definition, name=name, size=size, special=special), eod


def _tell_kind(file: str, content: bytes) -> tuple[FileKind, Any]:
    """Return what a file is, and its JSON if it is some. Llama 3's `tokenizer.model` is tiktoken's."""
    token, _, rank = content[:4096].partition(b"\n")[0].strip().partition(b" ")
    with contextlib.suppress(binascii.Error):
        if token and rank.isdigit() and base64.b64decode(token, validate=True):
            return "tiktoken", None
    # A SentencePiece model is a protobuf that begins with its first piece: field 1, length, field 1, length, text.
    is_model = len(content) > 4 and content[0] == 0x0A and content[2] == 0x0A and 0 < content[3] < content[1]
    if is_model or file.endswith(".model"):
        return "SentencePiece", None
    if file.endswith(".tiktoken"):
        return "tiktoken", None
    document = _parse_json(file, content)
    if isinstance(document, list) and document and isinstance(document[0], dict) and "token_bytes" in document[0]:
        return "ranks in JSON", document
    return "tokenizer.json", document


def _read_sentencepiece(file: str, content: bytes, *, name: str) -> tuple[Tokenizer, str | None]:
    try:
        with library_errors():
            loaded = _open_library("sentencepiece", content)
            if not content or not loaded.get_piece_size():
                raise ValueError("it has no pieces")
    except LibraryError as error:
        msg = f"{file}: expected a SentencePiece model, but it cannot be read ({error}); fetch or save it again"
        raise TokenizerError(msg) from error
    size, eos = loaded.get_piece_size(), loaded.eos_id()
    control = map(loaded.id_to_piece, filter(loaded.is_control, range(size)))
    tokenizer = _of("sentencepiece", content, name=name, size=size, special=control)
    return tokenizer, loaded.id_to_piece(eos) if eos >= 0 else None


def _of(library: LibraryName, content: bytes, *, name: str, size: int, special: Iterable[str]) -> Tokenizer:
    sha256 = hashlib.sha256(content).hexdigest()
    return Tokenizer(
        name=name, library=library, content=content, sha256=sha256, vocabulary_size=size, special_tokens=tuple(special)
    )


def _read_gpt2_files(vocab_file: str, merge_file: str) -> tuple[Tokenizer, str | None]:
    import tokenizers

    for file in (vocab_file, merge_file):
        read_tokenizer_bytes(file)  # refuses what is no tokenizer's file
    try:
        with library_errors():
            loaded = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(vocab_file, merge_file))
            if not loaded.get_vocab_size():
                raise ValueError("they have no tokens")
    except LibraryError as error:
        what = "expected the vocabulary and the merges of GPT-2, but they cannot be read"
        raise TokenizerError(f"{vocab_file} and {merge_file}: {what} ({error}); fetch them again") from error
    loaded.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    loaded.decoder = tokenizers.decoders.ByteLevel()
    has_eod = loaded.token_to_id(END_OF_TEXT) is not None
    loaded.add_special_tokens([END_OF_TEXT] if has_eod else [])
    content = loaded.to_str().encode()
    tokenizer = _describe_json(vocab_file, content, json.loads(content), name=os.path.basename(vocab_file))
    return tokenizer, END_OF_TEXT if has_eod else None


# A tokenizer.json, and what the other files of its folder say about it: what transformers makes of them, and so
# Megatron, or a refusal. Source: `TokenizersBackend.__init__` and `update_post_processor` of transformers 5.

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TOKEN_GROUPS = ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder")
_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _read_tokenizer_json(
    path: str, file: str, content: bytes, parsed: object, *, name: str
) -> tuple[Tokenizer, str | None]:
    document = _parse_object(file, parsed)
    tokenizer = _describe_json(file, content, document, name=name)
    config = read_folder_config(path) if os.path.isdir(path) else {}
    if not config:
        return tokenizer, None
    for fault in _find_faults(config, shared_tokenizer(tokenizer)):
        remedy = f"use --tokenizer-model {file} for the tokenizer.json alone"
        raise TokenizerError(f"{path}: expected files that agree with tokenizer.json, but {fault}; {remedy}")
    flagged = _set_token_flags(document, config)
    if flagged is not None:
        tokenizer = _describe_json(file, flagged, document, name=name)
    return tokenizer, token_text(config.get("eos_token"))


def _describe_json(file: str, content: bytes, document: dict[str, Any], *, name: str) -> Tokenizer:
    """Check a tokenizer.json and return its description without the EOD token."""
    model, added = document.get("model"), document.get("added_tokens")
    if not isinstance(model, dict):
        msg = f"{file}: expected a tokenizer.json, got JSON without a model; pass the tokenizer's own file"
        raise TokenizerError(msg)
    if model.get("dropout"):
        raise TokenizerError(
            f"{file}: expected a deterministic tokenizer, got BPE dropout {model['dropout']!r}; "
            'set "dropout" to null in a copy of it'
        )
    try:
        with library_errors():
            loaded = _open_library("tokenizers", content)
            size = loaded.get_vocab_size(with_added_tokens=True)
            for text in ("", "a text"):
                with contextlib.suppress(Exception):  # an unknown token, for one, which other texts may not have
                    loaded.encode(text)  # a panic comes through
    except LibraryError as error:
        raise TokenizerError(
            f"{file}: expected a tokenizer.json that the tokenizers library reads, got the error {error}; save it again"
        ) from error
    special = (token["content"] for token in added or [] if token.get("special"))
    return _of("tokenizers", content, name=name, size=size, special=special)


def read_folder_config(folder: str) -> dict[str, Any]:
    """Read the folder's other files.

    As in transformers, special_tokens_map.json takes precedence over a tokenizer_config.json without an
    added_tokens_decoder, and otherwise the latter does.

    Raises:
        TokenizerError: If one holds no JSON object.
    """
    found: list[dict[str, Any]] = []
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file, document = os.path.join(folder, name), {}
        if os.path.isfile(file):
            document = _parse_object(file, _parse_json(file, read_tokenizer_bytes(file)))
        found.append({key: value for key, value in document.items() if value is not None})
    tokens, config = found
    return tokens | config if "added_tokens_decoder" in config else config | tokens


def token_text(token: object) -> str | None:
    """Return a token's text; the folder's files store a string, or an object with its content."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _set_token_flags(document: dict[str, Any], config: dict[str, Any]) -> bytes | None:
    """Give added tokens the flags of tokenizer_config.json; return the tokenizer.json, None if it had them."""
    decoder = config.get("added_tokens_decoder")
    tokens = [token for token in (decoder if isinstance(decoder, dict) else {}).values() if isinstance(token, dict)]
    flags = {token_text(token): token for token in tokens}
    differs = False
    for token in document.get("added_tokens") or []:
        own = flags.get(token.get("content"), {})
        for name in _TOKEN_FLAGS:
            if isinstance(own.get(name), bool) and token.get(name) != own[name]:
                token[name], differs = own[name], True
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() if differs else None


def _find_faults(config: dict[str, Any], loaded: tokenizers.Tokenizer) -> Iterator[str]:
    """Yield why transformers would load another tokenizer from a folder than its tokenizer.json.

    Tokens that only the other files name get new ids, and an explicit add_bos_token or add_eos_token replaces the
    post-processor.
    """
    if config.get("split_special_tokens"):
        yield "split_special_tokens in tokenizer_config.json has special tokens split like other text"
    groups = [config.get(name) for name in _TOKEN_GROUPS]
    listed = [list(group.values() if isinstance(group, dict) else group or []) for group in groups]
    for token in map(token_text, [*map(config.get, _NAMED_TOKENS), *itertools.chain(*listed)]):
        if token and loaded.token_to_id(token) is None:
            yield f"{token!r} is missing there"
    if "add_bos_token" in config or "add_eos_token" in config:
        ends = [(config.get(f"add_{end}_token"), token_text(config.get(f"{end}_token"))) for end in ("bos", "eos")]
        bos, eos = ([loaded.token_to_id(token)] if wanted and token is not None else [] for wanted, token in ends)
        plain, processed = (loaded.encode("a text", add_special_tokens=flag).ids for flag in (False, True))
        if processed != [*bos, *plain, *eos]:
            yield (
                f"they disagree on the tokens around a text: add_bos_token and add_eos_token make it "
                f"{[*bos, *plain, *eos]}, its post-processor {processed}"
            )


# What transformers makes of the class that tokenizer_config.json names; it was tried with transformers 5.23.

_SPACE_CLASSES = {"LlamaTokenizer": True, "CodeLlamaTokenizer": True, "GemmaTokenizer": False}
"""Classes that set up the space before a text themselves, and whether they add one if the folder does not say."""
_TOLD_CLASSES = ("LlamaTokenizer", "CodeLlamaTokenizer", "GPT2Tokenizer", "Qwen2Tokenizer")
"""Classes that heed `add_prefix_space`."""


def describe_folder(path: str, tokenizer: Tokenizer) -> str | None:
    """Return a note if transformers, by the class that a folder names, treats the space before a text differently.

    Args:
        path: What `load_tokenizer` was given.
        tokenizer: What it returned.
    """
    folder, _ = find_tokenizer(path)
    if tokenizer.library != "tokenizers" or not os.path.isdir(folder):
        return None
    config, document = read_folder_config(folder), json.loads(tokenizer.content)
    name = str(config.get("tokenizer_class")).removesuffix("Fast")
    parts = [*flat_steps(document.get("pre_tokenizer")), *flat_steps(document.get("normalizer"))]
    if name in _SPACE_CLASSES and any(part.get("type") == "ByteLevel" for part in parts):
        return None  # such a class leaves a tokenizer.json of another family alone
    told = config.get("add_prefix_space") if name in _TOLD_CLASSES else None
    wanted = told if isinstance(told, bool) else _SPACE_CLASSES.get(name)
    adds = any(
        part.get("add_prefix_space") is True
        or part.get("prepend_scheme") in {"always", "first"}
        or part.get("type") == "Prepend"
        for part in parts
    )
    if wanted is None or wanted == adds:
        return None
    return (
        f"{folder}: tokenizer.json is used as it is, and tokenizer_config.json names {name}, with which transformers "
        f"adds {'a' if wanted else 'no'} space before every text"
    )


def flat_steps(part: object) -> list[dict[str, Any]]:
    """Return the steps of a pre-tokenizer or normalizer of a tokenizer.json in order, with sequences flattened."""
    if not isinstance(part, dict):  # `tokenizers` reads a list as well, and does without a type
        return [] if part is None else [{"type": type(part).__name__}]
    if part.get("type") != "Sequence":
        return [part]
    inner = part.get("pretokenizers") or part.get("normalizers") or []
    return [step for each in inner for step in flat_steps(each)]
