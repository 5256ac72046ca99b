"""The options of `dsindex build`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from dsindex.options.config import Options, TextConfig, check_text
from dsindex.options.declare import option
from dsindex.options.numbers import parse_share
from dsindex.text.conversion import FAMILIES, MEGATRON_SPECIAL_TOKENS
from dsindex.text.tokenizer_file import TOKENIZER_TYPES, TokenizerOptions, TokenizerType

if TYPE_CHECKING:
    from dsindex.text.sampling import Sample

_WORD_PIECE = ", which is not read"
_OTHER_TYPES = {
    "HFTokenizer": ", which is called HuggingFaceTokenizer here",
    "BertWordPieceLowerCase": _WORD_PIECE,
    "BertWordPieceCase": _WORD_PIECE,
    "NullTokenizer": ", whose texts are numbers and need no tokenizer",
    "NullMultimodalTokenizer": ", whose texts are numbers and need no tokenizer",
    "MultimodalTokenizer": ", which is for images",
    "SFTTokenizer": ", which is for conversations; use `dsindex instruct`",
}
"""Why the other types of Megatron are refused, and what to do."""


class TokenizerFormats(Options):
    """What the file of a tokenizer does not say."""

    group: ClassVar = "tokenizer formats"
    tokenizer_type: TokenizerType | None = option(
        None, "Megatron's name of the kind of tokenizer, checked against the file", "TYPE", as_text=True
    )
    vocab_file: str | None = option(None, "vocab.json of a GPT2BPETokenizer", "PATH")
    merge_file: str | None = option(None, "merges.txt of a GPT2BPETokenizer", "PATH")
    tiktoken_encoding: str | None = option(
        None,
        f"pattern and special tokens of a tiktoken file whose name does not say them: {', '.join(FAMILIES)}",
        "NAME",
    )
    tiktoken_pattern: Literal["v1", "v2"] = option("v2", "pattern of a TikTokenizer (default: v2)")
    tiktoken_num_special_tokens: int = option(
        1000, "special tokens of a TikTokenizer (default: 1000)", "N", ge=0, le=1 << 20
    )
    vocab_size: int | None = option(
        None, "vocabulary of a TikTokenizer with its special tokens (default: 131072)", "N", ge=1, lt=1 << 31
    )
    tokenizer_special_tokens: tuple[str, ...] = option(
        MEGATRON_SPECIAL_TOKENS, "the first special tokens of a TikTokenizer", "T"
    )

    @field_validator("tokenizer_type", mode="before")
    @classmethod
    def _type_can_be_read(cls, value: object) -> object:
        if value is None or value in TOKENIZER_TYPES:
            return value
        msg = f"expected one of {', '.join(TOKENIZER_TYPES)}, got {value!r}{_OTHER_TYPES.get(str(value), '')}"
        raise ValueError(msg)

    @model_validator(mode="after")
    def _files_belong_together(self) -> Self:
        if (self.vocab_file is None) != (self.merge_file is None):
            msg = "expected --vocab-file and --merge-file together; a single file is named with --tokenizer-model"
            raise ValueError(msg)
        if self.vocab_file is not None and self.tokenizer_type not in {None, "GPT2BPETokenizer"}:
            raise ValueError(f"expected --vocab-file with --tokenizer-type GPT2BPETokenizer, got {self.tokenizer_type}")
        return self


class BuildConfig(TextConfig, TokenizerFormats):
    """`dsindex build`: from text to a merged dataset per key."""

    group: ClassVar = "input and output"
    output_prefix: str = option(..., "outputs are named P_KEY_document.*, here or in a bucket (s3://, gs://)", "P")
    json_keys: tuple[str, ...] = option(
        ("text",),
        "keys whose texts are tokenized: names, paths (.meta.text) or jq patterns (NAME=.a + .b) (default: text)",
        "KEY",
        min_length=1,
    )
    join: str | None = option(None, r"join the texts of all keys to one; \n, \t and \\ are escapes", "SEPARATOR")
    where: str | None = option(None, "leave out records for which this jq condition is not true", "CONDITION")
    token_ids: str | None = option(
        None, "take lists of token ids from this name or path, instead of --json-keys", "KEY"
    )
    append_eod: bool = option(default=False, help="end every document with the EOD token")
    empty_documents: Literal["keep", "eod"] = option(
        "keep",
        "store texts without tokens as empty documents, as Megatron's preprocess_data.py does, or as EOD alone, "
        "as its preprocess_data_fast.py does (default: keep)",
    )
    sample: float | None = option(
        None, "keep this share of the records (10% or 0.1), by their texts", "SHARE", as_text=True
    )
    hold_out: float | None = option(
        None,
        "write the records that --sample SHARE keeps to P_valid_KEY_document, and the others to P_KEY_document",
        "SHARE",
        as_text=True,
    )
    dry_run: bool = option(
        default=False, help="build nothing: say the sizes, tokens, memory and disk space that it would take", group=""
    )

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that are read from each record, as they are written."""
        return self.json_keys if self.token_ids is None else (self.token_ids,)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs."""
        from dsindex.text.joining import JOINED
        from dsindex.text.selection import output_name  # as others here, loads what a help text does not need

        if self.join is not None:
            return (JOINED,)
        return tuple(output_name(key) or "" for key in self.keys)

    @field_validator("join")
    @classmethod
    def _decode_escapes(cls, join: str | None) -> str | None:
        from dsindex.text.joining import decode_separator

        return None if join is None else decode_separator(join)

    @field_validator("where")
    @classmethod
    def _is_not_empty(cls, where: str | None) -> str | None:
        if where is not None and not where.strip():
            raise ValueError("expected a jq condition such as '.score > 0.5', got an empty one")
        return where

    @model_validator(mode="before")
    @classmethod
    def _model_of_type(cls, values: object) -> object:
        """Megatron's GPT2BPETokenizer needs no model: it has two files, or else GPT-2's own vocabulary."""
        if not isinstance(values, dict) or values.get("tokenizer_model") is not None:
            return values
        own = values.get("vocab_file") or ("gpt2" if values.get("tokenizer_type") == "GPT2BPETokenizer" else None)
        return values if own is None else {**values, "tokenizer_model": own}

    def tokenizer_options(self) -> TokenizerOptions:
        """Return what the tokenizer's file does not say."""
        return TokenizerOptions(**{name: getattr(self, name) for name in TokenizerOptions.__slots__})

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The records of each group of outputs: all that are kept, or those to train on and those that are held out."""
        from dsindex.text.sampling import Sample

        low, high = self.hold_out or 0.0, self.sample or 1.0
        held_out = () if self.hold_out is None else (Sample(high=self.hold_out, prefix="valid_"),)
        return (Sample(low=low, high=high), *held_out)

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """The names of all outputs, those of each sample after the other."""
        return tuple(f"{sample.prefix}{name}" for sample in self.samples for name in self.output_names)

    @field_validator("sample", "hold_out", mode="before")
    @classmethod
    def _is_share(cls, value: object) -> object:
        return None if value is None else parse_share(value)

    @model_validator(mode="after")
    def _samples_have_records(self) -> Self:
        if self.hold_out is None:
            return self
        if self.hold_out >= (self.sample or 1.0):
            msg = "expected --hold-out with a smaller share than that of all records to keep"
            raise ValueError(f"{msg}, got {self.hold_out}")
        if len(set(self.dataset_names)) < len(self.dataset_names):
            raise ValueError(f"expected outputs of different names with --hold-out, got {' '.join(self.dataset_names)}")
        return self

    @model_validator(mode="after")
    def _eod_is_appended(self) -> Self:
        if self.empty_documents == "eod" and not self.append_eod:
            raise ValueError("expected --empty-documents eod with --append-eod, without which no document gets an EOD")
        return self

    @field_validator("json_keys")
    @classmethod
    def _keys_differ(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(keys)) != len(keys):
            raise ValueError(f"expected each key once, got {' '.join(keys)}")
        return keys

    @model_validator(mode="after")
    def _keys_name_files(self) -> Self:
        """Names of outputs become parts of file names, so they must not lead out of the folder."""
        if self.token_ids is not None:
            other = "--json-keys" if "json_keys" in self.model_fields_set else "--join" if self.join is not None else ""
            if other:
                raise ValueError(f"expected either --token-ids or {other}, got both")
            from dsindex.text.selection import is_program

            if is_program(self.token_ids):
                msg = f"--token-ids: expected a name or a path such as .meta.ids, got the jq pattern {self.token_ids!r}"
                raise ValueError(msg)
        if self.join is None:
            _check_names("--json-keys" if self.token_ids is None else "--token-ids", self.keys)
        return self


def _check_names(flag: str, keys: tuple[str, ...]) -> None:
    from dsindex.text.selection import output_name

    names: dict[str, str] = {}
    for key in keys:
        name = output_name(key)
        if name is None:
            raise ValueError(
                f"{flag}: expected keys that can be part of a file name, got the jq pattern {key!r}; "
                f"name its output, as in NAME={key}"
            )
        check_text(name)
        if not name or "/" in name or len(os.fsencode(name)) > 200:
            remedy = f"; write NAME={key}" if key.startswith(".") else ""
            raise ValueError(f"{flag}: expected keys that can be part of a file name, got {name!r}{remedy}")
        if name in names:
            msg = f"{flag}: expected a different name for each output, got {name!r} for {names[name]} and {key}"
            raise ValueError(msg)
        names[name] = key
