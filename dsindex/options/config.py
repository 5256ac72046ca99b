"""The options that jobs have in common."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from dsindex.datasets.subjects import PBIN_SUFFIX as PBIN_SUFFIX
from dsindex.datasets.subjects import AnyDataset, AnyPath, Caches, tokenizer_path
from dsindex.errors import UsageError as UsageError
from dsindex.option_problems import show_value
from dsindex.options.model import Model, Options, Parsed, option
from dsindex.options.numbers import MAX_WORKERS, parse_shard_size, parse_size
from dsindex.store.urls import absolute, locate, locate_output, refuse_url, with_suffix

if TYPE_CHECKING:
    import tokenizers

    from dsindex.text.tokenizer_file import TokenizerOptions

    TokenizerObject: TypeAlias = tokenizers.Tokenizer
    ProgressFunction: TypeAlias = Callable[[Any], object]
else:
    TokenizerObject = ProgressFunction = Any  # not imported for a help text

EngineName: TypeAlias = Literal["auto", "gigatoken", "reference", "tokenizers"]

# Paths, tokenizers and datasets, which functions take as objects too.

Path: TypeAlias = Parsed[AnyPath, str]
OptionalPath: TypeAlias = Parsed[AnyPath | None, str | None]
Paths: TypeAlias = Parsed[AnyPath | Iterable[AnyPath], tuple[str, ...]]
Dataset: TypeAlias = Parsed[AnyDataset, str]
Datasets: TypeAlias = Parsed[AnyDataset | Iterable[AnyDataset], tuple[str, ...]]
Folder: TypeAlias = Parsed[AnyDataset | Caches, str]
OptionalFolder: TypeAlias = Parsed[AnyPath | Caches | None, str | None]
Tokenizer: TypeAlias = Parsed[AnyPath | TokenizerObject, str]
OptionalTokenizer: TypeAlias = Parsed[AnyPath | TokenizerObject | None, str | None]
Progress: TypeAlias = bool | ProgressFunction


# Models of what jobs have in common.


class Reported(Options):
    """A function that shows its progress."""

    progress: Progress = option(default=False)


class ExecutorConfig(Reported):
    """Options of the executor."""

    group: ClassVar = "execution"
    executor: Literal["auto", "local", "processes", "ray"] = option(
        "auto is Ray if --address names a cluster, or RAY_ADDRESS for a job with a work folder, else threads of this "
        "process, or processes where threads would wait for each other (default: auto)",
        default="auto",
    )
    address: str | None = option("the Ray cluster to join: HOST:6379, or auto for this machine's", "A", default=None)
    workers: int | None = option("tasks that run at once (default: all CPUs)", "N", default=None, ge=1, le=MAX_WORKERS)
    shard_deadline: float = option(
        "end a task that takes longer, and try it again elsewhere with twice the time (default: 3600)",
        "SECONDS",
        default=3600.0,
        gt=0,
        le=10**9,
    )


class TrainingLength(Options):
    """How long a training job runs, as its own flags say."""

    train_samples: int | None = option("the job's training samples", "N", default=None, ge=1)
    train_iters: int | None = option("the job's training iterations", "N", default=None, ge=1)
    global_batch_size: int | None = option("samples per iteration", "N", default=None, ge=1)


class JsonOutput(Options):
    """Of commands that print a result."""

    as_json: bool = option("write one JSON object", flag="--json", default=False)


class WorkConfig(ExecutorConfig):
    """Options of a job that has a work folder."""

    group: ClassVar = "work folder"
    output_prefix: Path = option("the beginning of the outputs' names", "P", parse=locate_output)
    work_dir: OptionalPath = option(
        "the folder of shards and ledger (default: PREFIX.build)", "D", default=None, parse=locate_output
    )
    keep_shards: bool = option("keep the work folder after success", default=False)
    replace: bool = option(
        "replace what has the output's name once the new one is complete; kept shards of unchanged inputs are used "
        "again",
        default=False,
    )

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
    if not re.fullmatch(r"[0-9]{1,18}|[0-9]{1,18}(\.[0-9]{1,25})?%", str(value)):
        raise ValueError(f"expected a number such as 100 or a share such as 0.1%, got {show_value(value)}")
    if str(value).endswith("%") and float(str(value)[:-1]) > 100:
        raise ValueError(f"expected a share of at most 100%, got {value!r}")
    return str(value)


class RecordsConfig(WorkConfig):
    """Options of a job that reads records."""

    group: ClassVar = "input and output"
    input: Paths = option(
        "files, patterns or folders, in the order of the output: JSONL, compressed or not, Parquet or Arrow; here or "
        "in object stores (s3://, gs://, az://, hf://, https://); - is standard input",
        "PATH",
        default=(),
        kw_only=False,
    )
    input_list: Paths = option(
        "files that list inputs, one path per line, read after --input; - reads a list from standard input",
        "FILE",
        default=(),
    )
    input_split: str | None = option(
        "the split to take from a folder that has several, such as train; all takes every split", "NAME", default=None
    )
    input_config: str | None = option(
        "the configuration of a dataset on the Hugging Face Hub (default: its default one)", "NAME", default=None
    )
    input_format: Literal["auto", "jsonl", "lines", "document"] = option(
        "what the inputs hold: JSON lines, or plain text with a document per line or per file; Parquet and Arrow, "
        "and compression, are told by content (default: auto, by the file's name)",
        default="auto",
    )
    tokenizer_model: Tokenizer = option(
        "a tokenizer.json or a folder with one, a SentencePiece .model, a file of tiktoken's, or a name in the "
        "Hugging Face cache or hub such as gpt2 or ORG/NAME@REVISION",
        "PATH",
        group="tokenizer",
        alias="tokenizer",
        parse=tokenizer_path,
    )
    engine: EngineName = option(
        "the library that encodes; auto is gigatoken where it returns the same tokens, else the reference: the "
        "library of the tokenizer's own format (default: auto)",
        default="auto",
        group="tokenizer",
    )
    shard_size: Parsed[int | str | None, int | None] = option(
        "bytes of input per shard (default: by the size of the inputs)",
        "SIZE",
        default=None,
        group="execution",
        parse=parse_shard_size,
        ge=1,
    )
    largest_shard: ClassVar[int] = 64 << 20
    no_provenance: bool = option("do not record where documents came from", default=False)
    on_bad_record: Literal["fail", "quarantine"] = option(
        "stop at the first bad record, or set bad records aside with file, line and reason (default: fail)",
        default="fail",
        group="records",
    )
    max_bad_records: Parsed[int | str | None, str | None] = option(
        "stop when more are set aside", "N|N%", default=None, group="records", parse=_number_or_share
    )
    max_record_size: Parsed[int | str | None, int | None] = option(
        "treat longer lines as bad records", "SIZE", default=None, group="records", parse=parse_size, ge=1
    )

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
    eod_token: str | None = option("the EOD token (default: the tokenizer folder's eos_token)", "T", default=None)
    tokenizer_hf_no_include_special_tokens: bool = option(
        "do not run the tokenizer's post-processor, which may add a BOS to every text", default=False
    )

    def tokenizer_options(self) -> TokenizerOptions:
        """Return what the tokenizer's file does not say; nothing, for most jobs."""
        from dsindex.text.tokenizer_file import TokenizerOptions  # loads what a help text does not need

        return TokenizerOptions()


def local_output(value: Any) -> str:  # noqa: ANN401 - anything the caller passed
    """Return the path of an output that only this machine writes."""
    return refuse_url(os.fspath(value))


def validated(merged: dict[str, Any], kind: type[Model]) -> Model:
    """Return options as a model.

    Raises:
        UsageError: If they are invalid.
    """
    return kind(**merged)
