"""The options of `dsindex build`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from dsindex.errors import UsageError
from dsindex.megatron.pretrain_command import TOKENIZER_NAMES
from dsindex.options.common import ExecutorConfig, OptionalPath, OptionalShare, Output, Size, TextConfig, Tokenizer
from dsindex.options.index import IndexBasics, IndexConfig
from dsindex.options.model import Options, Parsed, option, options_of
from dsindex.store.urls import refuse_address

if TYPE_CHECKING:
    from dsindex.text.blocks import Sample
    from dsindex.text.selection import Selection, TextKey
    from dsindex.text.tiktoken_files import TokenizerOptions

TokenizerType: TypeAlias = Literal[
    "HuggingFaceTokenizer",
    "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
    "Llama2Tokenizer",
    "TikTokenizer",
    "GPT2BPETokenizer",
]


class TokenizerFormats(Options):
    """Settings of tokenizers whose file does not have them."""

    group: ClassVar = "tokenizer formats"
    tokenizer_type: TokenizerType | None = option("TYPE", default=None)
    """Megatron's name for the type of tokenizer; checked against the file."""
    vocab_file: OptionalPath = option("PATH", default=None, needs=("merge_file",))
    """The vocab.json of a GPT2BPETokenizer."""
    merge_file: OptionalPath = option("PATH", default=None, needs=("vocab_file",))
    """The merges.txt of a GPT2BPETokenizer."""
    tiktoken_encoding: str | None = option("NAME", default=None)
    """Pattern and special tokens of a tiktoken file whose name does not identify them, as cl100k_base or llama3."""
    tiktoken_pattern: Literal["v1", "v2"] = option(default="v2")
    """Split pattern of a TikTokenizer (default: v2)."""
    tiktoken_num_special_tokens: int = option("N", default=1000, le=1 << 20)
    """Number of special tokens of a TikTokenizer (default: 1000)."""
    vocab_size: int | None = option("N", default=None, ge=1, le=(1 << 31) - 1)
    """Vocabulary size of a TikTokenizer, special tokens included (default: 131072)."""
    tokenizer_special_tokens: tuple[str, ...] | None = option("T", default=None)
    """First special tokens of a TikTokenizer (default: Megatron's)."""

    def _check_agreement(self) -> None:
        if self.vocab_file is not None and self.tokenizer_type not in {None, "GPT2BPETokenizer"}:
            raise ValueError(f"--vocab-file belongs to --tokenizer-type GPT2BPETokenizer, not {self.tokenizer_type}")


def _decode_separator(value: str) -> str:
    from dsindex.text.fields import decode_separator

    return decode_separator(value)


class BuildConfig(TextConfig, TokenizerFormats, IndexBasics):
    """The options of `dsindex.build`."""

    group: ClassVar = "input and output"
    output_prefix: Output = option("P")
    """Outputs are named P_KEY_document.*, on a disk or in a bucket (s3://, gs://, az://)."""
    tokenizer_model: Tokenizer = option("PATH", group="tokenizer", alias="tokenizer")
    """A tokenizer.json or its folder, a SentencePiece .model, a tiktoken file, or a name in the Hugging Face cache or
    Hub, such as gpt2 or ORG/NAME@REVISION."""
    json_keys: Parsed[str | tuple[str, ...] | list[str], tuple[str, ...]] = option("KEY", default=("text",))
    """Keys whose text is tokenized, each into a dataset of its own: names, alternative names ('text|content'), paths
    (.meta.text) or jq expressions (NAME=.a + .b) (default: text)."""
    join: Annotated[str | None, _decode_separator] = option("SEPARATOR", default=None, may_be_empty=True)
    r"""Join the texts of all keys into one document, with this between them; \n, \t and \\ are escapes."""
    where: str | None = option("CONDITION", default=None)
    """Keep only records that match this jq expression, such as '.lang == "en" and .score > 0.5'."""
    token_ids: str | None = option("KEY", default=None, excludes=("json_keys", "join"))
    """Read lists of token ids from this name or path, instead of text from --json-keys."""
    append_eod: bool = option(default=False)
    """End every document with the EOD token."""
    empty_documents: Literal["keep", "eod"] = option(default="keep", needs=("append_eod",))
    """How to store texts without tokens: as empty documents like Megatron's preprocess_data.py, or as a single EOD like
    its preprocess_data_fast.py (default: keep)."""
    sample: OptionalShare = option("SHARE", default=None)
    """Keep this share of the records (10% or 0.1), chosen by a hash of their text."""
    hold_out: OptionalShare = option("SHARE", default=None)
    """Write this share of the records to P_valid_KEY_document, and the rest to P_KEY_document."""
    max_dataset_size: Size = option("SIZE", default=None, ge=1)
    """Write several datasets, P_KEY_document_000 and so on, each of consecutive inputs of at most this size, and a list
    of them, P_KEY_document.txt, for --data-args-path."""

    @classmethod
    def prepare(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Use the vocabulary file as the model of a GPT2BPETokenizer; without one, it has GPT-2's vocabulary."""
        model = values.get("vocab_file") or ("gpt2" if values.get("tokenizer_type") == "GPT2BPETokenizer" else None)
        return values if model is None else {"tokenizer_model": model, **values}

    def _check_agreement(self) -> None:
        """Check shares, keys and names."""
        if self.hold_out is not None and self.hold_out >= (self.sample or 1.0):
            raise ValueError(f"--hold-out {self.hold_out} leaves nothing to train on")
        if self.token_ids is not None and self._parsed_keys[0].program is not None:
            msg = f"--token-ids: {self.token_ids!r} is a jq expression; only a name or a path such as .meta.ids works"
            raise ValueError(msg)
        for key, key_text in zip(self._parsed_keys, self.keys, strict=True) if self.join is None else ():
            is_long = len(os.fsencode(key.name)) > 200  # file systems allow 255 bytes
            if is_long or not key.name or key.name == key.program or {"/", "\0"} & set(key.name):
                msg = f"--json-keys: {key.name!r} cannot be part of a file name"
                raise UsageError(msg, hint=f"name the output, as in NAME={key_text}")
        names = self.dataset_names
        if not names:
            raise ValueError("--json-keys is empty")
        if len(set(names)) < len(names):
            raise UsageError(f"two outputs have the same name: {' '.join(names)}", hint="name them, as in NAME=.KEY")
        if self.index_config(self.output_prefix) is not None:
            hint = "leave out the options of index caches, and run `dsindex index` afterwards"
            if self.max_dataset_size is not None:
                raise UsageError("--max-dataset-size: index caches need all datasets at once", hint=hint)
            if self.hold_out is not None:
                raise UsageError("--hold-out: index caches for two datasets cannot be built together", hint=hint)
            refuse_address(self.output_prefix, f"index caches need an output on a disk; {hint}", ValueError)

    @property
    def share(self) -> float:
        """The share of the records that are kept."""
        return sum(sample.high - sample.low for sample in self.samples)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that are read from each record, as given."""
        return self.json_keys if self.token_ids is None else (self.token_ids,)

    @property
    def _parsed_keys(self) -> list[TextKey]:
        from dsindex.text.selection import parse_key  # slow to import, and not needed for a help text

        return list(map(parse_key, self.keys))

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs."""
        from dsindex.text.fields import JOINED

        return (JOINED,) if self.join is not None else tuple(key.name for key in self._parsed_keys)

    def tokenizer_options(self) -> TokenizerOptions:
        """Return settings that the tokenizer's file does not have."""
        from dsindex.text.tiktoken_files import TokenizerOptions  # slow to import

        settings = {name: getattr(self, name) for name in TokenizerOptions.__slots__}
        if self.tokenizer_type not in {None, "TikTokenizer"}:  # Megatron ignores the rest as well
            settings = {name: value for name, value in settings.items() if not name.startswith("tiktoken_")}
            settings["vocab_size"] = settings["tokenizer_special_tokens"] = None
        return TokenizerOptions(**{name: value for name, value in settings.items() if value is not None})

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The ranges of record hashes of each group of outputs: one for all, or one for training and one held out."""
        from dsindex.text.blocks import Sample

        low, high = self.hold_out or 0.0, self.sample or 1.0
        held_out = () if self.hold_out is None else (Sample(high=self.hold_out, prefix="valid_"),)
        return (Sample(low=low, high=high), *held_out)

    def selection(self, vocabulary_size: int | None = None) -> Selection:
        """Return what is read from records.

        Args:
            vocabulary_size: Token ids must be smaller than this; None if it is not known.

        Raises:
            InputError: If a jq program does not compile, or uses a part of jq that is not allowed.
        """
        from dsindex.text.selection import open_selection

        size = None if self.token_ids is None else vocabulary_size
        return open_selection(self.keys, where=self.where, join=self.join, vocabulary_size=size)

    def index_config(self, prefix: str) -> IndexConfig | None:
        """Return the options of a dataset's index caches; None if none are requested."""
        names = options_of(IndexBasics).keys() & self.given_names
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        if not values:
            return None
        is_job = "tokenizer_type" in self.given_names and bool({"train_iters", "train_samples"} & values.keys())
        if is_job or "megatron_release" in values:
            values |= {name: getattr(self, name) for name in TOKENIZER_NAMES if name in self.given_names}
        values |= {name: getattr(self, name) for name in options_of(ExecutorConfig)}
        return IndexConfig(data_path=(prefix,), **values)

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """The names of all outputs: first those for training, then those held out."""
        return tuple(f"{sample.prefix}{name}" for sample in self.samples for name in self.output_names)


class BuildFlags(BuildConfig):
    r"""Tokenize text and merge it into one dataset per key.

    Inputs are JSONL (plain or compressed), Parquet and more. They are tokenized in parallel into shards, which are
    merged into PREFIX_KEY_document.bin and .idx, byte for byte what Megatron-LM's preprocess_data.py writes. A manifest
    (record counts and digests) and the provenance of every document are written with them.

    Rerun the command to continue an interrupted build. Every option can also be set in a YAML file (--config), with
    underscores for dashes. Commands for preprocess_data.py work unchanged; a note lists their flags that have no
    effect here.

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
    """Build nothing; print the expected documents, tokens, memory and disk space."""
