"""The file of a tokenizer: its bytes, its kind by content, and whether the type asked for fits that kind."""

from __future__ import annotations

import base64
import binascii
import os
from dataclasses import dataclass
from typing import Literal, get_args

from dsindex.errors import TokenizerError
from dsindex.regular_files import open_file
from dsindex.text.conversion.families import (
    FAMILIES,
    MEGATRON_SPECIAL_TOKENS,
    MEGATRON_VOCABULARY_SIZE,
    SIZES,
    eod_of_family,
    family_of_file,
    make_encoding,
    read_megatron_ranks,
    read_tekken,
)
from dsindex.text.conversion.ranks import TiktokenEncoding, check_encoding, read_rank_lines
from dsindex.text.tokenizer_folder import LARGEST_FILE_BYTES, parse_json

FileKind = Literal["tokenizer.json", "SentencePiece", "tiktoken", "tekken.json", "ranks in JSON"]

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
        TokenizerError: If the file cannot be read, or is far too large for a tokenizer.
    """
    try:
        with open_file(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > LARGEST_FILE_BYTES:
                msg = f"{file}: expected a tokenizer's file, got one of {size} bytes; pass the tokenizer, not the input"
                raise TokenizerError(msg)
            return stream.read()
    except OSError as error:
        msg = f"{file}: expected a readable tokenizer, got {error.strerror}; check the path and its permissions"
        raise TokenizerError(msg) from error


def kind_of_file(file: str, content: bytes, options: TokenizerOptions) -> FileKind:
    """Return the kind of a tokenizer's file, by its content: Llama 3's `tokenizer.model` is tiktoken's.

    Raises:
        TokenizerError: If it is not what the type that was asked for reads.
    """
    kind = _kind_of_content(file, content)
    _check_options_apply(file, kind, options)
    wanted = options.tokenizer_type
    if wanted is not None and kind not in _KINDS[wanted]:
        article = "a" if kind == "SentencePiece" or kind == "tiktoken" else ""
        remedy = f"use --tokenizer-type {_TYPES[kind]}" if kind in _TYPES else "leave --tokenizer-type out"
        expected = "a folder with a tokenizer.json" if wanted == "HuggingFaceTokenizer" else _KINDS[wanted][0]
        msg = f"{file}: expected {expected} for --tokenizer-type {wanted}, got {article} {kind} file; {remedy}"
        raise TokenizerError(" ".join(msg.split()))
    return kind


def _check_options_apply(file: str, kind: FileKind, options: TokenizerOptions) -> None:
    if kind != "ranks in JSON" and options.tokenizer_special_tokens != MEGATRON_SPECIAL_TOKENS:
        msg = (
            f"{file}: expected no --tokenizer-special-tokens, which only ranks in JSON take, got a {kind} file; leave "
            f"the option out"
        )
        raise TokenizerError(msg)
    if kind != "tiktoken" and options.tiktoken_encoding is not None:
        msg = f"{file}: expected a tiktoken file for --tiktoken-encoding, got a {kind} file; leave the option out"
        raise TokenizerError(msg)


def _kind_of_content(file: str, content: bytes) -> FileKind:
    first = content[:4096].partition(b"\n")[0].strip()
    token, _, rank = first.partition(b" ")
    if token and rank.isdigit():
        try:
            base64.b64decode(token, validate=True)
        except binascii.Error:
            pass
        else:
            return "tiktoken"
    # A SentencePiece model is a protobuf that begins with its first piece: field 1, length, field 1, length, text.
    if len(content) > 4 and content[0] == 0x0A and content[2] == 0x0A and 0 < content[3] < content[1]:
        return "SentencePiece"
    if file.endswith((".model", ".tiktoken")):
        return "SentencePiece" if file.endswith(".model") else "tiktoken"
    document = parse_json(file, content)
    if isinstance(document, list) and document and isinstance(document[0], dict) and "token_bytes" in document[0]:
        return "ranks in JSON"
    is_tekken = isinstance(document, dict) and "model" not in document and isinstance(document.get("vocab"), list)
    return "tekken.json" if is_tekken else "tokenizer.json"


def read_encoding(
    file: str, content: bytes, kind: FileKind, options: TokenizerOptions
) -> tuple[TiktokenEncoding, str | None]:
    """Return the encoding in a file of ranks, and the token that ends its documents.

    Raises:
        TokenizerError: If the file is damaged, or does not fit the options.
    """
    try:
        if kind == "tiktoken":
            family = _family(file, content, options)
            encoding, eod = make_encoding(family, read_rank_lines(content)), eod_of_family(family)
        elif kind == "tekken.json":
            document = parse_json(file, content)
            encoding, eod = read_tekken(document if isinstance(document, dict) else {}), "</s>"
        else:
            encoding, eod = _megatron_encoding(file, content, options), "</s>"
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
    msg = (
        f"{file}: expected --tiktoken-encoding, since a tiktoken file holds neither pattern nor special tokens, got "
        f"{'none' if family is None else repr(family)}; {near} (known: {', '.join(FAMILIES)})"
    )
    raise TokenizerError(msg)


def _megatron_encoding(file: str, content: bytes, options: TokenizerOptions) -> TiktokenEncoding:
    return read_megatron_ranks(
        parse_json(file, content),
        pattern=options.tiktoken_pattern,
        special_tokens=options.tokenizer_special_tokens,
        num_special=options.tiktoken_num_special_tokens,
        size=MEGATRON_VOCABULARY_SIZE if options.vocab_size is None else options.vocab_size,
    )


TOKENIZER_TYPES = get_args(TokenizerType)
