"""The options of `dsindex build`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from dsindex.megatron.pretrain_command import TOKENIZER_NAMES
from dsindex.options.common import ExecutorConfig, OptionalPath, OptionalShare, Output, TextConfig
from dsindex.options.index import IndexBasics, IndexConfig
from dsindex.options.model import Options, Parsed, option, options_of
from dsindex.store.urls import refuse_address

if TYPE_CHECKING:
    from dsindex.text.blocks import Sample
    from dsindex.text.selection import Selection, TextKey
    from dsindex.text.tiktoken_files import TokenizerOptions

LONGEST_NAME = 200
"""Bytes of a key in the names of files."""


TokenizerType: TypeAlias = Literal[
    "HuggingFaceTokenizer",
    "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
    "Llama2Tokenizer",
    "TikTokenizer",
    "GPT2BPETokenizer",
]


class TokenizerFormats(Options):
    """What the file of a tokenizer does not say."""

    group: ClassVar = "tokenizer formats"
    tokenizer_type: TokenizerType | None = option("TYPE", default=None)
    """Megatron's name of the kind of tokenizer, checked against the file."""
    vocab_file: OptionalPath = option("PATH", default=None, needs=("merge_file",))
    """Vocab.json of a GPT2BPETokenizer."""
    merge_file: OptionalPath = option("PATH", default=None, needs=("vocab_file",))
    """Merges.txt of a GPT2BPETokenizer."""
    tiktoken_encoding: str | None = option("NAME", default=None)
    """Pattern and special tokens of a tiktoken file whose name does not say them, such as cl100k_base or llama3."""
    tiktoken_pattern: Literal["v1", "v2"] = option(default="v2")
    """Pattern of a TikTokenizer (default: v2)."""
    tiktoken_num_special_tokens: int = option("N", default=1000, le=1 << 20)
    """Special tokens of a TikTokenizer (default: 1000)."""
    vocab_size: int | None = option("N", default=None, ge=1, le=(1 << 31) - 1)
    """Vocabulary of a TikTokenizer with its special tokens (default: 131072)."""
    tokenizer_special_tokens: tuple[str, ...] | None = option("T", default=None)
    """The first special tokens of a TikTokenizer (default: Megatron's)."""

    def _agree(self) -> None:
        if self.vocab_file is not None and self.tokenizer_type not in {None, "GPT2BPETokenizer"}:
            raise ValueError(f"expected --vocab-file with --tokenizer-type GPT2BPETokenizer, got {self.tokenizer_type}")


def _separator(value: str) -> str:
    from dsindex.text.fields import decode_separator

    return decode_separator(value)


class BuildConfig(TextConfig, TokenizerFormats, IndexBasics):
    """The options of `dsindex.build`: from text to a merged dataset per key, and to its index caches."""

    group: ClassVar = "input and output"
    output_prefix: Output = option("P")
    """Outputs are named P_KEY_document.*, here or in a bucket (s3://, gs://)."""
    json_keys: Parsed[str | tuple[str, ...] | list[str], tuple[str, ...]] = option("KEY", default=("text",))
    """Keys whose texts are tokenized: names, paths (.meta.text) or jq patterns (NAME=.a + .b) (default: text)."""
    join: Annotated[str | None, _separator] = option("SEPARATOR", default=None, may_be_empty=True)
    r"""Join the texts of all keys to one; \n, \t and \\ are escapes."""
    where: str | None = option("CONDITION", default=None)
    """Leave out records for which this jq condition is not true."""
    token_ids: str | None = option("KEY", default=None, excludes=("json_keys", "join"))
    """Take lists of token ids from this name or path, instead of --json-keys."""
    append_eod: bool = option(default=False)
    """End every document with the EOD token."""
    empty_documents: Literal["keep", "eod"] = option(default="keep", needs=("append_eod",))
    """Store texts without tokens as empty documents, as Megatron's preprocess_data.py does, or as EOD alone, as its
    preprocess_data_fast.py does (default: keep)."""
    sample: OptionalShare = option("SHARE", default=None)
    """Keep this share of the records (10% or 0.1), by their texts."""
    hold_out: OptionalShare = option("SHARE", default=None)
    """Write the records that --sample SHARE keeps to P_valid_KEY_document, and the others to P_KEY_document."""

    @classmethod
    def prepare(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Megatron's GPT2BPETokenizer needs no model: it has two files, or else GPT-2's own vocabulary."""
        own = values.get("vocab_file") or ("gpt2" if values.get("tokenizer_type") == "GPT2BPETokenizer" else None)
        return values if own is None else {"tokenizer_model": own, **values}

    def _agree(self) -> None:
        """Check samples, keys and the EOD."""
        if self.hold_out is not None and self.hold_out >= (self.sample or 1.0):
            msg = f"expected --hold-out with a smaller share than that of all records to keep, got {self.hold_out}"
            raise ValueError(msg)
        if self.token_ids is not None and self._parsed_keys[0].program is not None:
            msg = f"--token-ids: expected a name or a path such as .meta.ids, got the jq pattern {self.token_ids!r}"
            raise ValueError(msg)
        for key, written in zip(self._parsed_keys, self.keys, strict=True) if self.join is None else ():
            is_long = len(os.fsencode(key.name)) > LONGEST_NAME
            if is_long or not key.name or key.name == key.program or {"/", "\0"} & set(key.name):
                what = "expected keys that can be part of a file name"
                raise ValueError(f"{what}, got {key.name!r}; name the output, as in NAME={written}")
        names = self.dataset_names
        if not names or len(set(names)) < len(names):
            raise ValueError(f"expected outputs of different names, got {' '.join(names) or 'none'}")
        if self.index_config(self.output_prefix) is not None:
            remedy = "leave the options of index caches out, and run `dsindex index` afterwards"
            if self.hold_out is not None:
                raise ValueError(f"--hold-out: its datasets are read by jobs of their own splits; {remedy}")
            refuse_address(self.output_prefix, f"expected an output on a disk, got an address; {remedy}", ValueError)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that are read from each record, as they are written."""
        return self.json_keys if self.token_ids is None else (self.token_ids,)

    @property
    def _parsed_keys(self) -> list[TextKey]:
        from dsindex.text.selection import parse_key  # as others here, loads what a help text does not need

        return list(map(parse_key, self.keys))

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs."""
        from dsindex.text.fields import JOINED

        return (JOINED,) if self.join is not None else tuple(key.name for key in self._parsed_keys)

    def tokenizer_options(self) -> TokenizerOptions:
        """Return what the tokenizer's file does not say."""
        from dsindex.text.tiktoken_files import TokenizerOptions  # loads what a help text does not need

        given = {name: getattr(self, name) for name in TokenizerOptions.__slots__}
        if self.tokenizer_type not in {None, "TikTokenizer"}:  # Megatron ignores the rest, too
            given = {name: value for name, value in given.items() if not name.startswith("tiktoken_")}
            given["vocab_size"] = given["tokenizer_special_tokens"] = None
        return TokenizerOptions(**{name: value for name, value in given.items() if value is not None})

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The records of each group of outputs: all that are kept, or those to train on and those that are held out."""
        from dsindex.text.blocks import Sample

        low, high = self.hold_out or 0.0, self.sample or 1.0
        held_out = () if self.hold_out is None else (Sample(high=self.hold_out, prefix="valid_"),)
        return (Sample(low=low, high=high), *held_out)

    def selection(self, vocabulary_size: int | None = None) -> Selection:
        """Return what is read from records; of token ids, those below the size of the vocabulary, if it is known.

        Raises:
            InputError: If a jq program does not compile, or uses a part of jq that is not allowed.
        """
        from dsindex.text.selection import open_selection

        size = None if self.token_ids is None else vocabulary_size
        return open_selection(self.keys, where=self.where, join=self.join, vocabulary_size=size)

    def index_config(self, prefix: str) -> IndexConfig | None:
        """Return the options of the index caches of a dataset; None if there are none."""
        given: dict[str, Any] = {name: getattr(self, name) for name in options_of(IndexBasics).keys() & self.given}
        if not given:
            return None
        is_job = "tokenizer_type" in self.given and bool({"train_iters", "train_samples"} & given.keys())
        if is_job or "megatron_release" in given:
            given |= {name: getattr(self, name) for name in TOKENIZER_NAMES if name in self.given}
        given |= {name: getattr(self, name) for name in options_of(ExecutorConfig)}
        return IndexConfig(data_path=(prefix,), **given)

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """The names of all outputs, those of each sample after the other."""
        return tuple(f"{sample.prefix}{name}" for sample in self.samples for name in self.output_names)


class BuildFlags(BuildConfig):
    r"""Tokenize text and merge it into one dataset per key.

    Text is JSONL, compressed or not, Parquet and more. It is tokenized in parallel into shards, and these are merged
    into PREFIX_KEY_document.bin and .idx, byte for byte what Megatron-LM's preprocess_data.py writes, with a manifest
    (record counts and digests) and the provenance of every document.

    Run the same command again to continue an interrupted build. Every option can also be set in a YAML file (--config),
    with underscores for dashes. A command of preprocess_data.py works as it stands: its other flags are accepted, and
    those without effect are named.

    Examples:
        dsindex build --input docs.jsonl --tokenizer-model FOLDER --append-eod \
          --output-prefix out/docs
        dsindex build --input data/ --json-keys text title --tokenizer-model gpt2 \
          --output-prefix out/web --address auto --workers 64
        dsindex build --config build.yaml --seq-length 4096 --epochs 2 \
          --data-cache-path out/cache
    """

    ignored: ClassVar = {
        **dict.fromkeys(("--partitions", "--log-interval", "--dataset-impl", "--chat-template", "--lang"), 1),
        **dict.fromkeys(("--padded-vocab-size", "--max-documents", "--vocab-extra-ids"), 1),
        **dict.fromkeys(("--keep-sequential-samples", "--keep-newlines", "--use-gigatoken", "--trust-remote-code"), 0),
        **dict.fromkeys(("--no-pad-vocab-size", "--disable-pad-vocab-size"), 0),
    }
    """Flags of Megatron's preprocess_data.py that change no output here, with the number of values that follow."""
    last_group: ClassVar = ("index caches (optional)", IndexBasics)
    """Title and model of the options at the end of the help."""
    dry_run: bool = option(default=False, group="input and output")
    """Build nothing: say the sizes, tokens, memory and disk space that it would take."""
