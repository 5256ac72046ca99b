"""Options that several commands share."""

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
    single_prefix,
    tokenizer_path,
)
from dsindex.errors import UsageError
from dsindex.messages import show_value, split_unit
from dsindex.options.model import Options, Parsed, option
from dsindex.options.numbers import parse_share, parse_size
from dsindex.store.urls import absolute, locate, locate_output, refuse_url

if TYPE_CHECKING:
    import tokenizers

    from dsindex.text.tiktoken_files import TokenizerOptions

    TokenizerObject: TypeAlias = tokenizers.Tokenizer
    ProgressFunction: TypeAlias = Callable[[Any], object]
else:
    TokenizerObject = ProgressFunction = Any  # tokenizers is slow to import

EngineName: TypeAlias = Literal["auto", "gigatoken", "reference", "tokenizers"]

# Paths, tokenizers and datasets; functions also take them as objects.

Path: TypeAlias = Parsed[AnyPath, str]
OptionalPath: TypeAlias = Parsed[AnyPath | None, str | None]
Paths: TypeAlias = Parsed[AnyPath | Iterable[AnyPath], tuple[str, ...]]
Output: TypeAlias = Annotated[Path, locate_output]
LocalPath: TypeAlias = Annotated[Path, os.fspath, refuse_url]
OptionalLocalPath: TypeAlias = Annotated[OptionalPath, os.fspath, refuse_url]
"""A file that only this machine writes."""
Dataset: TypeAlias = Annotated[Parsed[AnyDataset, str], single_prefix]
OptionalDataset: TypeAlias = Annotated[Parsed[AnyDataset | None, str | None], single_prefix]
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


# Models that several commands share.


class ProgressConfig(Options):
    """The option of commands that show their progress."""

    progress: Progress = option(default=False)


class ExecutorConfig(ProgressConfig):
    """Options of the executor."""

    group: ClassVar = "execution"
    executor: Literal["auto", "local", "processes", "ray"] = option(default="auto")
    """Where tasks run. auto: Ray if --address is set, or RAY_ADDRESS for commands with --work-dir; otherwise threads of
    this process, or processes for work that holds the GIL (default: auto)."""
    address: str | None = option("A", default=None)
    """Ray cluster to join: HOST:6379, or auto for the one that runs on this machine."""
    workers: int | None = option("N", default=None, ge=1, le=1 << 20)
    """Number of tasks that run at the same time (default: one per CPU)."""
    shard_deadline: float = option("SECONDS", default=3600.0, ge=0.001, le=10**9)
    """Time after which a worker process is stopped and its task is retried with twice the time; threads (--executor
    local) are never stopped (default: 3600)."""


class TrainingLength(Options):
    """The length of a training job, under the names of its own flags."""

    train_samples: int | None = option("N", default=None, ge=1)
    """Number of samples that the job trains on."""
    train_iters: int | None = option("N", default=None, ge=1)
    """Number of iterations that the job trains for."""
    global_batch_size: int | None = option("N", default=None, ge=1)
    """Samples per iteration."""


class WorkConfig(ExecutorConfig):
    """Options of commands with a work folder."""

    group: ClassVar = "work folder"
    output_prefix: Output = option("P")
    """Prefix of the output files."""
    work_dir: Annotated[OptionalPath, locate_output] = option("D", default=None)
    """Folder that keeps finished shards until the output is complete (default: PREFIX.build)."""
    keep_shards: bool = option(default=False)
    """Keep the work folder after the command succeeds."""
    replace: bool = option(default=False)
    """Overwrite the existing output once the new one is complete; shards of unchanged inputs are reused if they were
    kept."""

    def _check_agreement(self) -> None:
        """Refuse a prefix that is a folder."""
        if os.path.basename(self.output_prefix) in {"", ".", ".."}:
            problem = f"--output-prefix: {self.output_prefix!r} is a folder"
            raise UsageError(problem, hint="add the beginning of a file name, such as out/docs")


def work_folder_path(config: WorkConfig) -> str:
    """Return the absolute path of a job's work folder."""
    return absolute(config.work_dir or f"{config.output_prefix}.build")


def _parse_number_or_share(value: object) -> str:
    number, unit = split_unit(str(value))
    is_share = number is not None and unit == "%" and number <= 100
    if not is_share and not re.fullmatch(r"[0-9]{1,18}", str(value)):
        raise ValueError(f"{show_value(value)} is not a number such as 100 or a share up to 100% such as 0.1%")
    return str(value)


class RecordsConfig(WorkConfig):
    """Options of commands that read records."""

    group: ClassVar = "input and output"
    input: Paths = option("PATH", default=(), kw_only=False)
    """Files, patterns or folders, in the order of the output: JSONL (plain or compressed), Parquet or Arrow, on a disk
    or in an object store (s3://, gs://, az://, hf://, https://). - reads standard input."""
    input_list: Paths = option("FILE", default=())
    """Files with one input path per line, read after --input. - reads the list from standard input."""
    exclude: Paths = option("PATTERN", default=())
    """Leave out inputs whose path ends like this: a name such as '*.log.jsonl', or folders and a name such as
    'tmp/**'."""
    input_split: str | None = option("NAME", default=None)
    """Split to read from a folder that has several, such as train; all reads every split."""
    input_config: str | None = option("NAME", default=None)
    """Configuration of a dataset from the Hugging Face Hub (default: the one that the dataset names)."""
    input_format: Literal["auto", "jsonl", "lines", "document"] = option(default="auto")
    """Format of the inputs: JSON lines, or plain text with one document per line or per file. Parquet, Arrow and
    compression are detected from the content (default: auto, from the file name)."""
    tokenizer_model: Tokenizer = option("PATH", group="tokenizer", alias="tokenizer")
    """A tokenizer.json or its folder, or a name in the Hugging Face cache or Hub, such as gpt2 or ORG/NAME@REVISION."""
    engine: EngineName = option(default="auto", group="tokenizer")
    """Library that encodes. auto: gigatoken if it returns the same tokens, otherwise reference, the library of the
    tokenizer's own format (default: auto)."""
    shard_size: Size = option("SIZE", default=None, group="execution", ge=1)
    """Bytes of input per shard (default: chosen from the size of the inputs)."""
    largest_shard: ClassVar[int] = 64 << 20
    no_provenance: bool = option(default=False)
    """Do not record which input line each document comes from."""
    on_bad_record: Literal["fail", "quarantine"] = option(default="fail", group="records")
    """fail: stop at the first bad record. quarantine: write bad records to a file of their own, with file, line and
    reason, and go on (default: fail)."""
    max_bad_records: Annotated[Parsed[int | str | None, str | None], _parse_number_or_share] = option(
        "N|N%", default=None, group="records", needs=("on_bad_record",)
    )
    """Stop if more records than this are quarantined; a number, or a share of all records."""
    max_record_size: Size = option("SIZE", default=None, group="records", ge=1)
    """Treat longer lines as bad records."""

    def _check_agreement(self) -> None:
        """Refuse a command without inputs, and normalize addresses."""
        if not self.input and not self.input_list:
            raise ValueError("--input is required")
        if (*self.input, *self.input_list).count("-") > 1:
            raise ValueError("--input: standard input (-) is given twice, but can be read only once")
        self.__dict__["input"] = tuple(map(locate, self.input))


class TextConfig(RecordsConfig):
    """Options of commands that tokenize plain text."""

    group: ClassVar = "tokenizer"
    eod_token: str | None = option("T", default=None)
    """EOD token (default: eos_token of the tokenizer's folder)."""
    tokenizer_hf_no_include_special_tokens: bool = option(default=False)
    """Do not run the tokenizer's post-processor, which may add a BOS token to every text."""

    def tokenizer_options(self) -> TokenizerOptions:
        """Return settings that the tokenizer's file does not have; most commands have none."""
        from dsindex.text.tiktoken_files import TokenizerOptions  # slow to import, and not needed for a help text

        return TokenizerOptions()
