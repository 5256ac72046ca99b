"""Load a tokenizer and describe it as plain data, which every worker receives once.

The formats are a `tokenizer.json` of the `tokenizers` library, or a folder with one as written by `save_pretrained` of
transformers; a SentencePiece `.model`; tiktoken ranks in two kinds of files; GPT-2's vocab.json and merges.txt. Code
that comes with a tokenizer is never run.
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
import math
import os
import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dsindex.errors import TokenizerError
from dsindex.messages import show_value
from dsindex.store.local import open_file
from dsindex.store.read import is_stored
from dsindex.store.urls import ONLY_INPUTS, refuse_address
from dsindex.text.compressed import LFS_POINTER, PULL_HINT
from dsindex.text.tiktoken_files import (
    END_OF_TEXT,
    MEGATRON_SPECIAL_TOKENS,
    PATTERNS,
    TokenizerOptions,
    read_definition,
    read_megatron_ranks,
    read_rank_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import tokenizers

LibraryName = Literal["tokenizers", "sentencepiece", "tiktoken"]
"""The library that defines a tokenizer's format, which is the reference for its tokens."""

LARGEST_FILE_BYTES = 128 << 20
"""The largest published tokenizers have 35 MB. Parsing one of tiny tokens takes up to 60 times its size in memory."""
LARGEST_CONFIG_BYTES = 16 << 20

_SHOWN_CHARACTERS = 200
_FETCH_HINT = "fetch or save the file again, or pass another --tokenizer-model"


class LibraryError(Exception):
    """A tokenizer's library failed; the message is the library's own, on one line."""


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Turn everything that a tokenizer's library raises, including panics, into LibraryError.

    Raises:
        LibraryError: With the library's message. TokenizerError, MemoryError and ModuleNotFoundError pass unchanged.
    """
    try:
        yield
    except (MemoryError, ModuleNotFoundError, TokenizerError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        raise LibraryError(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…") from error


@contextlib.contextmanager
def wrap_errors(problem: str, hint: str | None = None) -> Iterator[None]:
    """Turn everything that a library raises into an error about a tokenizer.

    Raises:
        TokenizerError: With `problem`, followed by the library's message.
    """
    try:
        with library_errors():
            yield
    except LibraryError as error:
        raise TokenizerError(f"{problem}: {error}", hint=hint) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """A tokenizer as data: picklable, comparable, and the same on every node."""

    name: str
    """Name of the folder or file, or in the Hub, for messages and the manifest."""
    library: LibraryName = "tokenizers"
    content: bytes
    """The bytes of tokenizer.json, of a SentencePiece `.model`, or of the definition of a tiktoken encoding."""
    sha256: str
    """SHA-256 of the content, in hexadecimal."""
    vocabulary_size: int
    """Number of tokens, including added ones: `len(tokenizer)` in transformers, which determines Megatron's dtype."""
    special_tokens: tuple[str, ...]
    """Strings that become one token wherever they occur in a text."""
    eod_id: int | None = None
    eod_token: str | None = None
    revision: str | None = None
    """The Hub commit from which it was loaded; None for a path."""
    note: str | None = None
    """A sentence about how transformers treats the tokenizer's folder differently, if it does."""


def load_tokenizer(
    path: str, *, eod_token: str | None = None, options: TokenizerOptions | None = None, fetches: bool = True
) -> Tokenizer:
    """Read a tokenizer and find its end-of-document token.

    Args:
        path: A tokenizer's file; a folder with a tokenizer.json and, optionally, tokenizer_config.json and
            special_tokens_map.json; or a name in the Hugging Face hub, optionally with `@` and a revision.
        eod_token: The end-of-document token; None for the folder's eos_token or the file's own, if it has one.
        options: Facts that the file lacks.
        fetches: Whether to ask the Hub for a tokenizer that is not in its cache.

    Raises:
        TokenizerError: If there is no tokenizer, it is unknown or damaged, its tokens are random, the folder's files
            disagree, or the EOD token is not in the vocabulary.
    """
    options, revision = options or TokenizerOptions(), None
    if options.vocab_file is not None and options.merge_file is not None:
        local_path = file = options.vocab_file
        tokenizer = _read_gpt2_files(options.vocab_file, options.merge_file)
    else:
        local_path, revision = find_tokenizer(path, fetches=fetches)
        file = _find_file(local_path, wants_model=options.tokenizer_type in _MEGATRON_TYPES["SentencePiece"])
        tokenizer = _read_file(local_path, file, options)
    eod = tokenizer.eod_token if eod_token is None else eod_token
    with wrap_errors(f"{file}: the EOD token {show_value(eod)} is not a text", "choose another with --eod-token"):
        eod_id = None if eod is None else _token_id(tokenizer, eod)
    if eod is not None and eod_id is None:
        similar_tokens = difflib.get_close_matches(eod, tokenizer.special_tokens) or tokenizer.special_tokens[:3]
        suggestion = f", such as {' or '.join(map(repr, similar_tokens))}" if similar_tokens else ""
        problem = f"the EOD token {show_value(eod)} is not in the vocabulary"
        raise TokenizerError(f"{file}: {problem}", hint=f"choose another with --eod-token{suggestion}")
    name = os.path.basename(os.path.abspath(local_path)) if revision is None else path.partition("@")[0]
    return replace(tokenizer, name=name, revision=revision, eod_id=eod_id, eod_token=eod)


def require_eod(tokenizer: Tokenizer) -> int:
    """Return the id of the end-of-document token.

    Raises:
        TokenizerError: If the tokenizer has none.
    """
    if tokenizer.eod_id is None:
        token_list = ", ".join(repr(token) for token in tokenizer.special_tokens[:8])
        suggestion = f"; its special tokens are {token_list}" if token_list else ""
        problem = f"{tokenizer.name}: the tokenizer names no eos_token{suggestion}"
        raise TokenizerError(problem, hint="choose one with --eod-token")
    return tokenizer.eod_id


def decode(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """Return the text of token ids, including special tokens, for showing samples."""
    numbers = [int(token) for token in ids]
    options = {"skip_special_tokens": False} if tokenizer.library == "tokenizers" else {}
    with wrap_errors(f"{tokenizer.name}: {tokenizer.library} cannot decode these ids"):
        return str(open_library(tokenizer).decode(numbers, **options))


def _token_id(tokenizer: Tokenizer, token: str) -> int | None:
    loaded = open_library(tokenizer)
    if tokenizer.library == "tokenizers":
        token_id: int | None = loaded.token_to_id(token)
        return token_id
    if tokenizer.library == "sentencepiece":
        number = int(loaded.piece_to_id(token))
        return number if loaded.id_to_piece(number) == token else None
    ids: list[int] = loaded.encode(token, allowed_special="all")
    return ids[0] if len(ids) == 1 else None


def open_library(tokenizer: Tokenizer) -> Any:  # noqa: ANN401 - of three libraries
    """Return the tokenizer as an object of its library, which all threads of a process share."""
    return _open_library(tokenizer.library, tokenizer.content)


@functools.lru_cache(maxsize=8)
def _open_library(library: LibraryName, content: bytes) -> Any:  # noqa: ANN401 - as above
    if library == "sentencepiece":
        import sentencepiece

        return sentencepiece.SentencePieceProcessor(model_proto=content)
    if library == "tiktoken":
        import tiktoken

        encoding = read_definition(content)
        ranks, specials = encoding.ranks, encoding.special_tokens
        return tiktoken.Encoding("dsindex", pat_str=encoding.pattern, mergeable_ranks=ranks, special_tokens=specials)
    loaded = _import_tokenizers().Tokenizer.from_buffer(content)
    loaded.no_truncation()  # as in Megatron
    loaded.no_padding()
    return loaded


def _import_tokenizers() -> Any:  # noqa: ANN401 - a module
    import tokenizers

    if not hasattr(tokenizers.Tokenizer, "from_buffer"):
        problem = f"tokenizers {tokenizers.__version__} has another API, and other tokens for some texts"
        raise TokenizerError(problem, hint="pip install 'tokenizers<1'")
    return tokenizers


def shared_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Return the process-wide object of `tokenizers`, with truncation and padding off.

    Raises:
        TokenizerError: If the tokenizer is not a tokenizer.json.
    """
    if tokenizer.library != "tokenizers":
        problem = f"this command needs a tokenizer.json, and this is a tokenizer of {tokenizer.library}"
        raise TokenizerError(f"{tokenizer.name}: {problem}", hint="only `dsindex build` reads such a file")
    loaded: tokenizers.Tokenizer = open_library(tokenizer)
    return loaded


# Find a tokenizer by its path, or by its Hub name, such as `gpt2` or `meta-llama/Llama-3.1-8B@main`.
#
# Only the files of a tokenizer are fetched, never code or weights. Files in the Hugging Face cache are used without
# asking the Hub; HF_HUB_OFFLINE and HF_HOME have their usual meaning. The commit that was found is the revision.

_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?)(@(?P<revision>[\w][\w./-]*))?")
_FILE_SUFFIXES = (".json", ".model", ".tiktoken", ".txt")
_MAIN_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "*.tiktoken")
_FILES = (
    *_MAIN_FILES, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt",
    "chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja",
)  # fmt: skip


def find_tokenizer(path: str, *, fetches: bool = True) -> tuple[str, str | None]:
    """Return the local path of a tokenizer, and its commit if it was found by its Hub name.

    Returns:
        The path itself and None, if it exists or cannot be a name; otherwise a folder of the cache, and the commit.

    Raises:
        TokenizerError: If there is no such file, no copy in the cache, and no tokenizer to fetch.
    """
    match = _NAME.fullmatch(path)
    if match is None or os.path.exists(path) or path.endswith(_FILE_SUFFIXES):
        return path, None
    from huggingface_hub import snapshot_download

    name, revision = match["name"], match["revision"]
    download = functools.partial(snapshot_download, name, revision=revision, allow_patterns=list(_FILES))
    failure: Exception | None = None
    for is_local in (True, False) if fetches else (True,):
        try:
            folder = str(download(local_files_only=is_local))
            if any(name in _MAIN_FILES or name.endswith(".tiktoken") for name in os.listdir(folder)):
                return folder, os.path.basename(folder)
            failure = FileNotFoundError("it has files of that name, but no tokenizer")
        except Exception as error:  # noqa: BLE001 - the errors of huggingface_hub differ by release
            failure = error
    reason = next(iter(str(failure).strip().splitlines()), type(failure).__name__)[:200].removeprefix("Got: ")
    reason = reason if fetches else "which was not asked, because only a manifest names this tokenizer"
    problem = f"neither a path nor a tokenizer in the Hugging Face cache or Hub ({reason})"
    raise TokenizerError(f"{path}: {problem}", hint="check the name, or pass the path of a copy") from failure


_FOREIGN_FILES = {"tekken.json", "tiktoken.model"}
"""Files of Mistral and Kimi, whose pattern and special tokens are in the publishers' code."""


def _find_file(path: str, *, wants_model: bool) -> str:
    """Return the path of a tokenizer's file: the path itself, or the tokenizer.json or SentencePiece model of a folder.

    Raises:
        TokenizerError: If the folder has no such file.
    """
    refuse_address(path, f"{ONLY_INPUTS}, or to storage that all nodes share", TokenizerError)
    if not os.path.exists(path):
        raise TokenizerError(f"{path}: no such file or folder", hint="check the path of the tokenizer")
    if not os.path.isdir(path):
        return path
    names = sorted(os.listdir(path))
    candidates = [name for name in names if (name.endswith(".model") if wants_model else name == "tokenizer.json")]
    if len(candidates) == 1 and os.path.isfile(os.path.join(path, candidates[0])):
        return os.path.join(path, candidates[0])
    listing = ", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "nothing"
    problem = f"{'several' if len(candidates) > 1 else 'no'} {'*.model' if wants_model else 'tokenizer.json'}"
    hint = "pass a file of it; `dsindex build` also reads vocab.json and merges.txt: --vocab-file and --merge-file"
    if file_names := _FOREIGN_FILES.intersection(names):
        hint = f"pass the tokenizer.json of this model; {min(file_names)} needs its publisher's code, which is not run"
    raise TokenizerError(f"{path}: {problem} in this folder, which has {listing}", hint=hint)


def read_tokenizer_bytes(file: str, *, max_bytes: int = LARGEST_FILE_BYTES) -> bytes:
    """Return the content of a tokenizer's file.

    Raises:
        TokenizerError: If the file cannot be read, is a Git LFS pointer, or has more than `max_bytes` bytes.
    """
    try:
        with open_file(file) as stream:
            if os.fstat(stream.fileno()).st_size > max_bytes:
                problem = f"more than {max_bytes >> 20} MiB, too large for a tokenizer"
                raise TokenizerError(f"{file}: {problem}", hint="pass the tokenizer, not the input")
            content = stream.read()
    except OSError as error:
        raise TokenizerError(f"{file}: the tokenizer cannot be read: {error.strerror}") from error
    if content.startswith(LFS_POINTER):
        raise TokenizerError(f"{file}: a Git LFS pointer in place of the tokenizer's file", hint=PULL_HINT)
    return content


def _read_config(file: str) -> dict[str, Any]:
    """Parse a small JSON object as transformers does: with Python's parser, which also accepts `Infinity`."""
    content = read_tokenizer_bytes(file, max_bytes=LARGEST_CONFIG_BYTES)
    with wrap_errors(f"{file}: not valid", _FETCH_HINT):
        document = json.loads(content)
        json.dumps(document, ensure_ascii=False).encode()  # raises for a lone surrogate
        if not isinstance(document, dict):
            raise ValueError(f"a JSON object is needed, not {type(document).__name__}")
    return {key: value for key, value in document.items() if value is not None}


# The kind of a file is detected from its content, and compared with the requested type.

FileKind = Literal["tokenizer.json", "SentencePiece", "tiktoken", "ranks in JSON"]

_MEGATRON_TYPES: dict[FileKind, tuple[str, ...]] = {
    "tokenizer.json": ("HuggingFaceTokenizer", "GPT2BPETokenizer"),
    "SentencePiece": ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer"),
    "ranks in JSON": ("TikTokenizer",),
    "tiktoken": (),
}
"""Megatron's types that read each kind; the first one is suggested to users."""


def _read_file(path: str, file: str, options: TokenizerOptions) -> Tokenizer:
    """Return the tokenizer in a file, with its own EOD token."""
    content = read_tokenizer_bytes(file)
    kind = _detect_kind(file, content)
    has_special_tokens = options.tokenizer_special_tokens != MEGATRON_SPECIAL_TOKENS
    for option, is_wrong in (
        (f"--tokenizer-type {options.tokenizer_type}", options.tokenizer_type not in {None, *_MEGATRON_TYPES[kind]}),
        ("--tokenizer-special-tokens", has_special_tokens and kind != "ranks in JSON"),
        ("--tiktoken-encoding", options.tiktoken_encoding is not None and kind != "tiktoken"),
    ):
        if is_wrong:
            suggestion = "".join(f", or use --tokenizer-type {name}" for name in _MEGATRON_TYPES[kind][:1])
            raise TokenizerError(f"{file}: {option} does not read {kind}", hint=f"leave the option out{suggestion}")
    if kind == "tokenizer.json":
        return _read_tokenizer_json(path, file, content)
    if kind == "SentencePiece":
        return _read_sentencepiece(file, content)
    with wrap_errors(f"{file}: not the ranks of a byte-pair encoding", _FETCH_HINT):
        if kind == "tiktoken":
            encoding, eod = read_rank_file(file, content, options.tiktoken_encoding)
        else:
            encoding, eod = read_megatron_ranks(content, options)
        definition = msgspec.json.encode(encoding)
        _open_library("tiktoken", definition)
    specials = sorted(encoding.special_tokens, key=encoding.special_tokens.__getitem__)
    return _make_tokenizer("tiktoken", definition, size=encoding.vocabulary_size, special_tokens=specials, eod=eod)


def _detect_kind(file: str, content: bytes) -> FileKind:
    """Detect the kind of a file from its content; Llama 3's `tokenizer.model` is a tiktoken file."""
    token, _, rank = content[:4096].partition(b"\n")[0].strip().partition(b" ")
    with contextlib.suppress(binascii.Error):
        if token and rank.isdigit() and base64.b64decode(token, validate=True):
            return "tiktoken"
    # A SentencePiece model is a protobuf that begins with its first piece: field 1, length, field 1, length, text.
    is_model = len(content) > 4 and content[0] == 0x0A and content[2] == 0x0A and 0 < content[3] < content[1]
    if is_model or file.endswith(".model"):
        return "SentencePiece"
    if file.endswith(".tiktoken"):
        return "tiktoken"
    is_list = content.lstrip()[:1] == b"[" and b'"token_bytes"' in content[:4096]
    return "ranks in JSON" if is_list else "tokenizer.json"


def _read_sentencepiece(file: str, content: bytes) -> Tokenizer:
    with wrap_errors(f"{file}: not a SentencePiece model", _FETCH_HINT):
        loaded = _open_library("sentencepiece", content)
        if not content or not loaded.get_piece_size():
            raise ValueError("it has no pieces")
        pieces = list(map(loaded.id_to_piece, range(loaded.get_piece_size())))  # raises if one is not UTF-8
    control_pieces, eos = itertools.compress(pieces, map(loaded.is_control, range(len(pieces)))), loaded.eos_id()
    eod = pieces[eos] if 0 <= eos < len(pieces) else None
    return _make_tokenizer("sentencepiece", content, size=len(pieces), special_tokens=control_pieces, eod=eod)


def _make_tokenizer(
    library: LibraryName, content: bytes, *, size: int, special_tokens: Iterable[str], eod: str | None = None
) -> Tokenizer:
    return Tokenizer(
        name="",  # set by load_tokenizer
        library=library,
        content=content,
        sha256=hashlib.sha256(content).hexdigest(),
        vocabulary_size=size,
        special_tokens=tuple(special_tokens),
        eod_token=eod,
    )


def _read_gpt2_files(vocab_file: str, merge_file: str) -> Tokenizer:
    library = _import_tokenizers()
    for file in (vocab_file, merge_file):
        read_tokenizer_bytes(file)  # refuses large files and pointers
    with wrap_errors(f"{vocab_file} and {merge_file}: not the vocabulary and the merges of GPT-2", "fetch them again"):
        loaded = library.Tokenizer(library.models.BPE.from_file(vocab_file, merge_file))
        if not (size := loaded.get_vocab_size()):
            raise ValueError("they have no tokens")
    loaded.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    loaded.decoder = library.decoders.ByteLevel()
    special_tokens = [] if loaded.token_to_id(END_OF_TEXT) is None else [END_OF_TEXT]
    loaded.add_special_tokens(special_tokens)
    eod = special_tokens[0] if special_tokens else None
    return _make_tokenizer("tokenizers", loaded.to_str().encode(), size=size, special_tokens=special_tokens, eod=eod)


# A tokenizer.json and the other files of its folder are read as transformers, and so Megatron, reads them, or refused.
# Source: `TokenizersBackend.__init__` and `update_post_processor` of transformers 5.

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class _Model(msgspec.Struct):
    dropout: Any = None


class _Document(msgspec.Struct):
    """The fields of a tokenizer.json that its description needs."""

    model: _Model | None = None
    added_tokens: list[dict[str, Any]] | None = None
    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    decoder: Any = None
    padding: dict[str, Any] | None = None


def _read_tokenizer_json(path: str, file: str, content: bytes) -> Tokenizer:
    with wrap_errors(f"{file}: not valid JSON of a tokenizer", _FETCH_HINT):
        document = msgspec.json.decode(content, type=_Document)
    tokenizer = _describe_json(file, content, document)
    if not os.path.isdir(path):
        return tokenizer
    config, loaded = read_folder_config(path), shared_tokenizer(tokenizer)
    eod, note = token_text(config.get("eos_token")), _describe_class(path, config, document)
    try:
        _require_same_ends(config, loaded)
        tokens = _find_changed_tokens(config, document)
        missing_text = next((text for text in tokens if loaded.token_to_id(text) is None), None)
        if missing_text is not None:
            raise ValueError(f"{missing_text!r} is missing there")
    except ValueError as error:
        hint = f"use --tokenizer-model {shlex.quote(file)} for the tokenizer.json alone"
        raise TokenizerError(f"{path}: its files disagree with its tokenizer.json: {error}", hint=hint) from error
    if tokens:
        objects = {token["content"]: token for token in document.added_tokens or []}
        objects |= {text: {"id": loaded.token_to_id(text), "content": text, **flags} for text, flags in tokens.items()}
        document.added_tokens = sorted(objects.values(), key=lambda token: token["id"])
        content = msgspec.json.encode({**msgspec.json.decode(content), "added_tokens": document.added_tokens})
        tokenizer = _describe_json(file, content, document)
    return replace(tokenizer, eod_token=eod, note=note)


def _describe_json(file: str, content: bytes, document: _Document) -> Tokenizer:
    """Check a tokenizer.json and return its description."""
    if document.model is None:
        is_tekken = b'"default_num_special_tokens"' in content
        problem = "a tekken.json of Mistral's, which dsindex does not read" if is_tekken else "JSON without a model"
        raise TokenizerError(f"{file}: {problem}", hint="pass the tokenizer.json of this model")
    if document.model.dropout:
        problem = f"its BPE dropout {document.model.dropout!r} makes tokens random"
        raise TokenizerError(f"{file}: {problem}", hint='set "dropout" to null in a copy of it')
    if (growth := _find_growth(document)) is not None:
        raise TokenizerError(f"{file}: {growth}", hint=_FETCH_HINT)
    with wrap_errors(f"{file}: the tokenizers library cannot read it", _FETCH_HINT):
        loaded = _open_library("tokenizers", content)
        size = loaded.get_vocab_size(with_added_tokens=True)
        for text in ("", "a text"):
            with contextlib.suppress(Exception):  # for example an unknown token, which other texts may lack
                loaded.encode(text)  # a panic is not suppressed
    special_tokens = (token["content"] for token in document.added_tokens or [] if token.get("special"))
    return _make_tokenizer("tokenizers", content, size=size, special_tokens=special_tokens)


# A small file can produce texts, token lists or decoded texts of any size, for example by two replacements of `a` with
# `aa` in a row, or by a template that repeats the text. Published tokenizers have at most 8 steps, and make a text at
# most 3 times as long.

_MAX_STEPS = 64
_MAX_GROWTH = 1000
_LONGEST_ADDED_TOKEN = 4096


def _find_growth(document: _Document) -> str | None:
    """Return why a tokenizer.json may need memory out of proportion to its size and the text's; None if it does not."""
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        steps = flat_steps(getattr(document, part))
        growth = math.prod(map(_growth, steps))
        if len(steps) > _MAX_STEPS or growth > _MAX_GROWTH:
            return f"its {part} has {len(steps)} steps that can make a text {growth:.1g} times as long"
    max_length = max((len(str(token.get("content"))) for token in document.added_tokens or []), default=0)
    return f"it has an added token of {max_length} characters" if max_length > _LONGEST_ADDED_TOKEN else None


def _growth(step: dict[str, Any]) -> float:
    """Return the factor by which a step can lengthen a text."""
    content, pieces, special_tokens = (step.get(name) for name in ("content", "single", "special_tokens"))
    if isinstance(content, str):
        return 1.0 + len(content)
    if isinstance(pieces, list) and isinstance(special_tokens, dict):
        ids = (token.get("ids") for token in special_tokens.values() if isinstance(token, dict))
        return 1.0 + len(pieces) * max((len(token_ids) for token_ids in ids if isinstance(token_ids, list)), default=1)
    return 2.0 if step.get("type") == "ByteLevel" else 1.0


def read_folder_config(folder: str) -> dict[str, Any]:
    """Read the folder's other files; tokens from added_tokens.json are under the key of that name.

    As in transformers, special_tokens_map.json and added_tokens.json count only if tokenizer_config.json has no
    added_tokens_decoder.

    Raises:
        TokenizerError: If a file holds no JSON object.
    """
    names = ("special_tokens_map.json", "added_tokens.json", "tokenizer_config.json")
    files = [os.path.join(folder, name) for name in names]
    tokens, added, config = (_read_config(file) if is_stored(file) else {} for file in files)
    if "added_tokens_decoder" in config:
        return config
    return config | tokens | ({"added_tokens.json": added} if added else {})


def token_text(token: object) -> str | None:
    """Return a token's text; in the folder's files, a token is a string or an object with its content."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _find_changed_tokens(config: dict[str, Any], document: _Document) -> dict[str, dict[str, bool]]:
    """Return the flags of the added tokens that transformers adds to or changes in a tokenizer.json, by text.

    Raises:
        ValueError: If transformers would fail on a setting.
    """
    added_tokens = document.added_tokens or []
    flags_by_text = {token["content"]: {name: token.get(name) for name in _TOKEN_FLAGS} for token in added_tokens}
    names = dict.fromkeys([*_NAMED_TOKENS, *(name for name in config if name.endswith("_token"))])
    extra_tokens = _list_tokens("extra_special_tokens", config)
    has_names = bool(extra_tokens) and isinstance(config["extra_special_tokens"], dict)
    other_tokens = extra_tokens if extra_tokens and not has_names else _list_tokens("additional_special_tokens", config)
    specials = set(map(token_text, [*map(config.get, _NAMED_TOKENS), *([] if has_names else other_tokens)]))
    config = {"pad_token": (document.padding or {}).get("pad_token"), **config}
    named_tokens = [*map(config.get, names), *(extra_tokens if has_names else [])]
    always_special = set(map(token_text, named_tokens))
    distinct_tokens = {repr(token): token for token in [*named_tokens, *other_tokens]}.values()  # without repetitions
    tokens_by_text = {text: token for token in distinct_tokens if (text := token_text(token))}  # the last of each text
    if "added_tokens_decoder" in config:
        decoder = _list_tokens("added_tokens_decoder", config)
        choices = {text: _flags(token) for token in decoder if isinstance(token, dict) and (text := token_text(token))}
    else:
        ids, numbers = {token["id"] for token in added_tokens}, config.get("added_tokens.json", {})
        if (fault := next((text for text, number in numbers.items() if not isinstance(number, int)), None)) is not None:
            raise ValueError(f"added_tokens.json has no number for {show_value(fault)}")
        choices = {text: _flags({"special": text in specials}) for text, number in numbers.items() if number not in ids}
    changed_flags = {text: flags for text, flags in choices.items() if flags != flags_by_text.get(text)}
    for text, token in tokens_by_text.items():
        if text not in flags_by_text:
            changed_flags.setdefault(text, _flags(token if isinstance(token, dict) else {"special": True}))
        if text in changed_flags and text in always_special:
            changed_flags[text]["special"] = True
    return changed_flags


def _list_tokens(name: str, config: dict[str, Any]) -> list[Any]:
    group = config.get(name) or []
    if isinstance(group, dict):
        return list(group.values())
    if not isinstance(group, list):
        raise ValueError(f"{name} is {show_value(group)}, not a list of tokens")
    return group


def _flags(token: dict[str, Any]) -> dict[str, bool]:
    """Return the flags of an added token, with the defaults of `tokenizers.AddedToken`."""
    set_flags = {name: token[name] for name in _TOKEN_FLAGS if isinstance(token.get(name), bool)}
    return dict.fromkeys(_TOKEN_FLAGS, False) | {"normalized": not set_flags.get("special", False)} | set_flags


def _require_same_ends(config: dict[str, Any], loaded: tokenizers.Tokenizer) -> None:
    """Refuse settings that change the special tokens of every text.

    In transformers, except in 5.24, an explicit add_bos_token or add_eos_token replaces the post-processor.

    Raises:
        ValueError: If a folder's settings and its tokenizer.json disagree.
    """
    if config.get("split_special_tokens"):
        raise ValueError("split_special_tokens in tokenizer_config.json has special tokens split like other text")
    if "add_bos_token" in config or "add_eos_token" in config:
        options = [(config.get(f"add_{end}_token"), token_text(config.get(f"{end}_token"))) for end in ("bos", "eos")]
        affixes = tuple((loaded.token_to_id(token),) if adds and token is not None else () for adds, token in options)
        if (ends := tokens_around(loaded)) != affixes:
            raise ValueError(f"add_bos_token and add_eos_token put {affixes} around a text, its post-processor {ends}")


def tokens_around(loaded: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the tokens that the post-processor adds before and after a text; None if it does something else."""
    plain_ids, full_ids = (loaded.encode("a text", add_special_tokens=flag).ids for flag in (False, True))
    for begin in range(len(full_ids) - len(plain_ids) + 1):
        if full_ids[begin : begin + len(plain_ids)] == plain_ids:
            return tuple(full_ids[:begin]), tuple(full_ids[begin + len(plain_ids) :])
    return None


# What transformers does for the class that tokenizer_config.json names; tested with transformers 5.23.

_SPACE_CLASSES = {"LlamaTokenizer": True, "CodeLlamaTokenizer": True, "GemmaTokenizer": False}
"""Classes that set up the space before a text themselves → whether they add one by default."""
_CLASSES_WITH_OPTION = ("LlamaTokenizer", "CodeLlamaTokenizer", "GPT2Tokenizer", "Qwen2Tokenizer")
"""Classes that obey `add_prefix_space`."""
_CLASS_STEPS = {
    "GPT2Tokenizer": ["ByteLevel"], "CodeGenTokenizer": ["ByteLevel"], "GPTNeoXTokenizer": ["NFC", "ByteLevel"],
    "CohereTokenizer": ["NFC", "Digits", "ByteLevel"],
    "Qwen2Tokenizer": ["NFC", *PATTERNS["qwen2"]], "Qwen3_5Tokenizer": ["NFC", *PATTERNS["qwen3.5"]],
}  # fmt: skip
"""Classes that replace a file's normalizer and pre-tokenizer in transformers 5 → the steps or patterns of the class."""


def _pattern_or_type(step: dict[str, Any]) -> object:
    """Return the regular expression of a step, or else its type."""
    pattern = step.get("pattern")
    return pattern.get("Regex") if isinstance(pattern, dict) else step.get("type")


def _describe_class(folder: str, config: dict[str, Any], document: _Document) -> str | None:
    """Return a note if transformers splits a text or treats the space before it differently, because of its class."""
    name = str(config.get("tokenizer_class")).removesuffix("Fast")
    steps = [*flat_steps(document.normalizer), *flat_steps(document.pre_tokenizer)]
    if name in _SPACE_CLASSES and any(step.get("type") == "ByteLevel" for step in steps):
        return None  # such a class does not change a tokenizer.json of another family
    option = config.get("add_prefix_space") if name in _CLASSES_WITH_OPTION else None
    transformers_adds = option if isinstance(option, bool) else _SPACE_CLASSES.get(name)
    file_adds = any(
        step.get("add_prefix_space") is True
        or step.get("prepend_scheme") in ("always", "first")
        or step.get("type") == "Prepend"
        for step in steps
    )
    difference = None
    patterns = [_pattern_or_type(step) for step in steps if step.get("use_regex") is not False]
    if name in _CLASS_STEPS and patterns != _CLASS_STEPS[name]:
        difference = "5 may split texts differently"
    elif transformers_adds is not None and transformers_adds != file_adds:
        difference = f"adds {'a' if transformers_adds else 'no'} space before every text"
    origin = f"{folder}: tokenizer.json is used as it is, and tokenizer_config.json names {name}"
    return difference and f"{origin}, with which transformers {difference}"


_SEQUENCE_KEYS = ("pretokenizers", "normalizers", "processors", "decoders")


def flat_steps(part: object) -> list[dict[str, Any]]:
    """Return the steps of a part of a tokenizer.json in order, with sequences flattened.

    >>> flat_steps({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]})
    [{'type': 'NFC'}, {'type': 'Strip'}]
    """
    steps: list[dict[str, Any]] = []
    pending = [] if part is None else [part]
    while pending:
        step = pending.pop()
        if not isinstance(step, dict):  # `tokenizers` also accepts a list, and steps without a type
            steps.append({"type": type(step).__name__})
        elif step.get("type") != "Sequence":
            steps.append(step)
        else:
            sub_steps = next((sub_steps for key in _SEQUENCE_KEYS if isinstance(sub_steps := step.get(key), list)), [])
            pending += reversed(sub_steps)
    return steps
