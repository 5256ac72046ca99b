"""The options that jobs have in common."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from dsindex.datasets.arguments import (
    AnyDataset,
    AnyPath,
    Caches,
    cache_folder,
    list_prefixes,
    list_text_prefixes,
    one_prefix,
    tokenizer_path,
)
from dsindex.messages import show_value, split_unit
from dsindex.options.model import Options, Parsed, option
from dsindex.options.numbers import parse_share, parse_size
from dsindex.store.urls import absolute, locate, locate_output, refuse_url, with_suffix

if TYPE_CHECKING:
    import tokenizers

    from dsindex.text.tiktoken_files import TokenizerOptions

    TokenizerObject: TypeAlias = tokenizers.Tokenizer
    ProgressFunction: TypeAlias = Callable[[Any], object]
else:
    TokenizerObject = ProgressFunction = Any  # not imported for a help text

EngineName: TypeAlias = Literal["auto", "gigatoken", "reference", "tokenizers"]

# Paths, tokenizers and datasets, which functions take as objects too.

Path: TypeAlias = Parsed[AnyPath, str]
OptionalPath: TypeAlias = Parsed[AnyPath | None, str | None]
Paths: TypeAlias = Parsed[AnyPath | Iterable[AnyPath], tuple[str, ...]]
Output: TypeAlias = Annotated[Path, locate_output]
LocalPath: TypeAlias = Annotated[Path, os.fspath, refuse_url]
OptionalLocalPath: TypeAlias = Annotated[OptionalPath, os.fspath, refuse_url]
"""Of files that only this machine writes."""
Dataset: TypeAlias = Annotated[Parsed[AnyDataset, str], one_prefix]
OptionalDataset: TypeAlias = Annotated[Parsed[AnyDataset | None, str | None], one_prefix]
Datasets: TypeAlias = Annotated[Parsed[AnyDataset | Iterable[AnyDataset], tuple[str, ...]], list_prefixes]
OptionalDatasets: TypeAlias = Annotated[
    Parsed[AnyDataset | Iterable[AnyDataset] | None, tuple[str, ...] | None], list_prefixes
]
TextDatasets: TypeAlias = Annotated[Parsed[AnyDataset | Iterable[AnyDataset], tuple[str, ...]], list_text_prefixes]
Folder: TypeAlias = Annotated[Parsed[AnyDataset | Caches, str], cache_folder]
OptionalLocalFolder: TypeAlias = Annotated[Parsed[AnyPath | Caches | None, str | None], cache_folder, refuse_url]
Tokenizer: TypeAlias = Annotated[Parsed[AnyPath | TokenizerObject, str], tokenizer_path]
OptionalTokenizer: TypeAlias = Annotated[Parsed[AnyPath | TokenizerObject | None, str | None], tokenizer_path]
Size: TypeAlias = Annotated[Parsed[int | str | None, int | None], parse_size]
Share: TypeAlias = Annotated[Parsed[float | str, float], parse_share]
OptionalShare: TypeAlias = Annotated[Parsed[float | str | None, float | None], parse_share]
Progress: TypeAlias = bool | ProgressFunction


# Models of what jobs have in common.


class Reported(Options):
    """A function that shows its progress."""

    progress: Progress = option(default=False)


class ExecutorConfig(Reported):
    """Options of the executor."""

    group: ClassVar = "execution"
    executor: Literal["auto", "local", "processes", "ray"] = option(default="auto")
    """Where tasks run; auto is Ray if --address names a cluster, or RAY_ADDRESS for a job with a work folder, else
    threads of this process, or processes where threads would wait for each other (default: auto)."""
    address: str | None = option("A", default=None)
    """The Ray cluster to join: HOST:6379, or auto for this machine's."""
    workers: int | None = option("N", default=None, ge=1, le=1 << 20)
    """Tasks that run at once (default: all CPUs)."""
    shard_deadline: float = option("SECONDS", default=3600.0, ge=0.001, le=10**9)
    """End a worker process whose task takes longer, and try the task again elsewhere with twice the time; threads
    (--executor local) cannot be ended (default: 3600)."""


class TrainingLength(Options):
    """How long a training job runs, as its own flags say."""

    train_samples: int | None = option("N", default=None, ge=1)
    """The job's training samples."""
    train_iters: int | None = option("N", default=None, ge=1)
    """The job's training iterations."""
    global_batch_size: int | None = option("N", default=None, ge=1)
    """Samples per iteration."""


class WorkConfig(ExecutorConfig):
    """Options of a job that has a work folder."""

    group: ClassVar = "work folder"
    output_prefix: Output = option("P")
    """The beginning of the outputs' names."""
    work_dir: Annotated[OptionalPath, locate_output] = option("D", default=None)
    """The folder of shards and ledger (default: PREFIX.build)."""
    keep_shards: bool = option(default=False)
    """Keep the work folder after success."""
    replace: bool = option(default=False)
    """Replace what has the output's name once the new one is complete; kept shards of unchanged inputs are used
    again."""

    def _agree(self) -> None:
        """Refuse a prefix that is a folder."""
        if os.path.basename(self.output_prefix) in {"", ".", ".."}:
            raise ValueError(
                "--output-prefix: expected a path that ends in the beginning of a file name, such as out/docs, got "
                f"{self.output_prefix!r}"
            )


def work_folder_path(config: WorkConfig) -> str:
    """Return the absolute path of a job's work folder."""
    return absolute(config.work_dir or with_suffix(config.output_prefix, ".build"))


def _number_or_share(value: object) -> str:
    number, unit = split_unit(str(value))
    is_share = number is not None and unit == "%" and number <= 100
    if not is_share and not re.fullmatch(r"[0-9]{1,18}", str(value)):
        raise ValueError(f"expected a number such as 100, or a share up to 100% such as 0.1%, got {show_value(value)}")
    return str(value)


class RecordsConfig(WorkConfig):
    """Options of a job that reads records."""

    group: ClassVar = "input and output"
    input: Paths = option("PATH", default=(), kw_only=False)
    """Files, patterns or folders, in the order of the output: JSONL, compressed or not, Parquet or Arrow; here or in
    object stores (s3://, gs://, az://, hf://, https://); - is standard input."""
    input_list: Paths = option("FILE", default=())
    """Files that list inputs, one path per line, read after --input; - reads a list from standard input."""
    input_split: str | None = option("NAME", default=None)
    """The split to take from a folder that has several, such as train; all takes every split."""
    input_config: str | None = option("NAME", default=None)
    """The configuration of a dataset on the Hugging Face Hub (default: its default one)."""
    input_format: Literal["auto", "jsonl", "lines", "document"] = option(default="auto")
    """What the inputs hold: JSON lines, or plain text with a document per line or per file; Parquet and Arrow, and
    compression, are told by content (default: auto, by the file's name)."""
    tokenizer_model: Tokenizer = option("PATH", group="tokenizer", alias="tokenizer")
    """A tokenizer.json or a folder with one, a SentencePiece .model, a file of tiktoken's, or a name in the Hugging
    Face cache or hub such as gpt2 or ORG/NAME@REVISION."""
    engine: EngineName = option(default="auto", group="tokenizer")
    """The library that encodes; auto is gigatoken where it returns the same tokens, else the reference: the library of
    the tokenizer's own format (default: auto)."""
    shard_size: Size = option("SIZE", default=None, group="execution", ge=1)
    """Bytes of input per shard (default: by the size of the inputs)."""
    largest_shard: ClassVar[int] = 64 << 20
    no_provenance: bool = option(default=False)
    """Do not record where documents came from."""
    on_bad_record: Literal["fail", "quarantine"] = option(default="fail", group="records")
    """Stop at the first bad record, or set bad records aside with file, line and reason (default: fail)."""
    max_bad_records: Annotated[Parsed[int | str | None, str | None], _number_or_share] = option(
        "N|N%", default=None, group="records"
    )
    """Stop when more are set aside."""
    max_record_size: Size = option("SIZE", default=None, group="records", ge=1)
    """Treat longer lines as bad records."""

    def _agree(self) -> None:
        """Refuse a job without inputs; addresses are brought into one form."""
        if not self.input and not self.input_list:
            raise ValueError("--input is required")
        if (*self.input, *self.input_list).count("-") > 1:
            raise ValueError("--input: expected standard input (-) once, since it can be read only once; leave one out")
        self.__dict__["input"] = tuple(map(locate, self.input))


class TextConfig(RecordsConfig):
    """Options of a job that tokenizes texts as they are."""

    group: ClassVar = "tokenizer"
    eod_token: str | None = option("T", default=None)
    """The EOD token (default: the tokenizer folder's eos_token)."""
    tokenizer_hf_no_include_special_tokens: bool = option(default=False)
    """Do not run the tokenizer's post-processor, which may add a BOS to every text."""

    def tokenizer_options(self) -> TokenizerOptions:
        """Return what the tokenizer's file does not say; nothing, for most jobs."""
        from dsindex.text.tiktoken_files import TokenizerOptions  # loads what a help text does not need

        return TokenizerOptions()
