"""Load a tokenizer and describe it as plain data, so that every worker gets the same bytes once.

The formats are a `tokenizer.json` of the `tokenizers` library, or a folder with one as written by `save_pretrained` of
transformers; a SentencePiece `.model`; ranks of tiktoken in two kinds of files; GPT-2's vocab.json and merges.txt.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from dsindex.errors import TokenizerError
from dsindex.text.conversion import END_OF_TEXT, convert_gpt2_files, make_tiktoken, read_definition
from dsindex.text.tokenizer_file import (
    LARGEST_FILE_BYTES,
    TokenizerOptions,
    check_config_agrees,
    find_fault,
    find_tokenizer,
    find_tokenizer_file,
    kind_of_file,
    parse_json,
    read_encoding,
    read_folder_config,
    read_tokenizer_bytes,
    require_object,
    set_token_flags,
    token_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import tiktoken
    import tokenizers


__all__ = [
    "LARGEST_FILE_BYTES",
    "LibraryError",
    "LibraryName",
    "Tokenizer",
    "TokenizerOptions",
    "decode",
    "library_errors",
    "load_tokenizer",
    "require_eod",
    "shared_sentencepiece",
    "shared_tokenizer",
]

LibraryName = Literal["tokenizers", "sentencepiece", "tiktoken"]
"""The library that defines a tokenizer's format, which is the reference for its tokens."""

_SHOWN_CHARACTERS = 200


class LibraryError(Exception):
    """A tokenizer's library failed; the message is what it said, on one line."""


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Make one error of all that a tokenizer's library raises: bare exceptions, and panics, which are none.

    Raises:
        LibraryError: In place of what the library raised, except a lack of memory, or of the library itself.
    """
    try:
        yield
    except (MemoryError, ModuleNotFoundError):
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
    json: bytes = b""
    """The bytes of tokenizer.json; empty for a tokenizer of another library."""
    sha256: str
    """SHA-256 of these bytes, or of `model`, in hexadecimal."""
    vocabulary_size: int
    """Number of tokens, including added ones: `len(tokenizer)` in transformers, which determines Megatron's dtype."""
    eod_id: int | None = None
    eod_token: str | None = None
    special_tokens: tuple[str, ...]
    """Strings that become one token wherever they occur in a text, in the order of their ids."""
    library: LibraryName = "tokenizers"
    model: bytes = b""
    """The bytes of a SentencePiece `.model`, or the definition of a tiktoken encoding; empty for a tokenizer.json."""
    revision: str | None = None
    """The commit in the hub that it was loaded from; None for a path."""


def load_tokenizer(path: str, *, eod_token: str | None = None, options: TokenizerOptions | None = None) -> Tokenizer:
    """Read a tokenizer and find its end-of-document token.

    Args:
        path: A tokenizer's file; a folder with a tokenizer.json and, optionally, tokenizer_config.json and
            special_tokens_map.json; or a name in the Hugging Face hub, optionally with `@` and a revision.
        eod_token: The end-of-document token; None for the folder's eos_token or the file's own, if it has one.
        options: What the file does not say.

    Raises:
        TokenizerError: If there is no tokenizer, it is of another kind, it is broken, its output would not be a
            function of the text, the folder's files disagree, or the EOD token is not in the vocabulary.
    """
    options = options or TokenizerOptions()
    if options.vocab_file is not None and options.merge_file is not None:
        file, tokenizer, own_eod = options.vocab_file, *_read_gpt2_files(options.vocab_file, options.merge_file)
    else:
        found = find_tokenizer(path)
        file = find_tokenizer_file(found.path, options.folder_suffix)
        tokenizer, own_eod = _read_file(found.path, file, options)
        if found.name is not None:
            tokenizer = replace(tokenizer, name=found.name, revision=found.revision)
    eod = eod_token if eod_token is not None else own_eod
    if eod is None:
        return tokenizer
    eod_id = _token_id(tokenizer, eod)
    if eod_id is None:
        raise TokenizerError(
            f"{file}: expected the EOD token {eod!r} in the vocabulary, but it is missing; "
            f"{_suggestion(tokenizer, eod)}choose another with --eod-token"
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


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of token ids, including special tokens, for showing samples."""
    try:
        with library_errors():
            return _decode(tokenizer, [int(token) for token in ids])
    except LibraryError as error:
        library = tokenizer.library
        msg = f"{tokenizer.name}: expected ids that {library} can decode, but it fails ({error}); check the ids"
        raise TokenizerError(msg) from error


def _decode(tokenizer: Tokenizer, numbers: list[int]) -> str:
    if tokenizer.library == "sentencepiece":
        return str(shared_sentencepiece(tokenizer).decode(numbers))
    if tokenizer.library == "tiktoken":
        encoding = read_definition(tokenizer.model)
        spelt = {number: token for token, number in encoding.ranks.items()}
        spelt.update((number, token.encode()) for token, number in encoding.special_tokens.items())
        return b"".join(spelt.get(number, b"") for number in numbers).decode(errors="replace")
    return shared_tokenizer(tokenizer).decode(numbers, skip_special_tokens=False)


def shared_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Return the process-wide `tokenizers` object: the reference, with truncation and padding off as in Megatron.

    Threads share it, and encode in parallel.

    Raises:
        TokenizerError: If the tokenizer is not a tokenizer.json.
    """
    if tokenizer.library != "tokenizers":
        raise TokenizerError(
            f"{tokenizer.name}: expected a tokenizer.json, got a tokenizer of {tokenizer.library}; `dsindex build` "
            f"reads such a file, this command does not"
        )
    return _load_json(tokenizer.json)


@functools.lru_cache(maxsize=4)
def _load_json(content: bytes) -> tokenizers.Tokenizer:
    import tokenizers

    loaded = tokenizers.Tokenizer.from_buffer(content)
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


def shared_sentencepiece(tokenizer: Tokenizer) -> Any:  # noqa: ANN401 - sentencepiece has no types
    """Return the process-wide SentencePieceProcessor, which threads share."""
    return _load_sentencepiece(tokenizer.model)


@functools.lru_cache(maxsize=4)
def _load_sentencepiece(content: bytes) -> Any:  # noqa: ANN401 - as above
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_proto=content)


def shared_tiktoken(tokenizer: Tokenizer) -> tiktoken.Encoding:
    """Return the process-wide tiktoken object, which threads share."""
    return _load_tiktoken(tokenizer.model)


@functools.lru_cache(maxsize=4)
def _load_tiktoken(content: bytes) -> tiktoken.Encoding:
    return make_tiktoken(read_definition(content))


def _read_file(path: str, file: str, options: TokenizerOptions) -> tuple[Tokenizer, str | None]:
    """Return the tokenizer in a file, and its own EOD token."""
    name, content = os.path.basename(os.path.abspath(path)), read_tokenizer_bytes(file)
    kind, document = kind_of_file(file, content, options)
    if kind == "tokenizer.json":
        config = read_folder_config(path) if os.path.isdir(path) else {}
        tokenizer = _describe(file, content, document, name=name)
        if config:
            check_config_agrees(path, config, shared_tokenizer(tokenizer))
            flagged = set_token_flags(content, config)
            if flagged != content:
                tokenizer = _describe(file, flagged, parse_json(file, flagged), name=name)
        return tokenizer, token_text(config.get("eos_token"))
    if kind == "SentencePiece":
        return _describe_sentencepiece(file, content, name=name)
    encoding, eod = read_encoding(file, content, kind, document, options)
    model = encoding.write()
    try:
        with library_errors():
            make_tiktoken(encoding)
    except LibraryError as error:
        msg = f"{file}: expected an encoding that tiktoken loads, got the error {error}; fetch the file again"
        raise TokenizerError(msg) from error
    special = tuple(sorted(encoding.special_tokens, key=encoding.special_tokens.__getitem__))
    return _of_model("tiktoken", model, name=name, size=encoding.vocabulary_size, special=special), eod


def _read_gpt2_files(vocab_file: str, merge_file: str) -> tuple[Tokenizer, str | None]:
    vocabulary = parse_json(vocab_file, read_tokenizer_bytes(vocab_file))
    try:
        content = convert_gpt2_files(vocabulary, read_tokenizer_bytes(merge_file))
    except ValueError as error:
        msg = f"{vocab_file} and {merge_file}: expected GPT-2's vocabulary and merges, but {error}; fetch them again"
        raise TokenizerError(msg) from error
    document = parse_json(vocab_file, content)
    tokenizer = _describe(vocab_file, content, document, name=os.path.basename(vocab_file))
    return tokenizer, END_OF_TEXT if tokenizer.special_tokens else None


def _describe_sentencepiece(file: str, content: bytes, *, name: str) -> tuple[Tokenizer, str | None]:
    try:
        with library_errors():
            loaded = _load_sentencepiece(content)
            if not content or not loaded.get_piece_size():
                raise ValueError("it has no pieces")
    except LibraryError as error:
        msg = f"{file}: expected a SentencePiece model, but it cannot be read ({error}); fetch or save it again"
        raise TokenizerError(msg) from error
    size, eos = loaded.get_piece_size(), loaded.eos_id()
    control = map(loaded.id_to_piece, filter(loaded.is_control, range(size)))
    tokenizer = _of_model("sentencepiece", content, name=name, size=size, special=control)
    return tokenizer, loaded.id_to_piece(eos) if eos >= 0 else None


def _of_model(library: LibraryName, model: bytes, *, name: str, size: int, special: Iterable[str]) -> Tokenizer:
    return Tokenizer(
        name=name,
        sha256=hashlib.sha256(model).hexdigest(),
        vocabulary_size=size,
        special_tokens=tuple(special),
        library=library,
        model=model,
    )


def _describe(file: str, content: bytes, parsed: object, *, name: str) -> Tokenizer:
    """Check a tokenizer.json and return its description without the EOD token."""
    document = require_object(file, parsed)
    version, model = document.get("version", "1.0"), document.get("model")
    if version != "1.0":
        msg = f"{file}: expected a tokenizer.json of version '1.0', got {version!r}; save it with a released tokenizers"
        raise TokenizerError(msg)
    if not isinstance(model, dict):
        msg = f"{file}: expected a tokenizer.json, got JSON without a model; pass the tokenizer's own file"
        raise TokenizerError(msg)
    if model.get("dropout"):
        raise TokenizerError(
            f"{file}: expected a deterministic tokenizer, got BPE dropout {model['dropout']!r}; "
            'set "dropout" to null in a copy of it'
        )
    fault = find_fault(document)
    if fault is not None:
        msg = f"{file}: expected a tokenizer.json that the tokenizers library can use, got {fault}; save it again"
        raise TokenizerError(msg)
    added = document.get("added_tokens") or []
    tokenizer = Tokenizer(
        name=name,
        json=content,
        sha256=hashlib.sha256(content).hexdigest(),
        vocabulary_size=0,
        special_tokens=tuple(token["content"] for token in added if isinstance(token, dict) and token.get("special")),
    )
    try:
        with library_errors():
            loaded = shared_tokenizer(tokenizer)
            size = loaded.get_vocab_size(with_added_tokens=True)
            with contextlib.suppress(Exception):  # an unknown token, for one, which other texts may not have
                loaded.encode("a text")  # a panic comes through
    except LibraryError as error:
        raise TokenizerError(
            f"{file}: expected a tokenizer.json that the tokenizers library reads, got the error {error}; save it again"
        ) from error
    return replace(tokenizer, vocabulary_size=size)


def _token_id(tokenizer: Tokenizer, token: str) -> int | None:
    if tokenizer.library == "tiktoken":
        return read_definition(tokenizer.model).token_id(token)
    if tokenizer.library == "sentencepiece":
        loaded = shared_sentencepiece(tokenizer)
        number = int(loaded.piece_to_id(token))
        return number if loaded.id_to_piece(number) == token else None
    return shared_tokenizer(tokenizer).token_to_id(token)


def _suggestion(tokenizer: Tokenizer, wanted: str) -> str:
    close = difflib.get_close_matches(wanted, tokenizer.special_tokens) or difflib.get_close_matches(
        wanted, _all_tokens(tokenizer)
    )
    shown = close or list(tokenizer.special_tokens[:3])
    return f"near it: {', '.join(map(repr, shown))}; " if shown else ""


def _all_tokens(tokenizer: Tokenizer) -> Iterable[str]:
    if tokenizer.library == "tiktoken":
        return ()
    if tokenizer.library == "sentencepiece":
        loaded = shared_sentencepiece(tokenizer)
        return map(str, map(loaded.id_to_piece, range(tokenizer.vocabulary_size)))
    return shared_tokenizer(tokenizer).get_vocab(with_added_tokens=True)
