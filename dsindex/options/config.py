"""The options that jobs have in common, typed and validated in one place for both YAML keys and command-line flags."""

from __future__ import annotations

import difflib
import os
import re
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from dsindex.errors import InputError
from dsindex.errors import UsageError as UsageError
from dsindex.option_problems import describe_problem, show_value
from dsindex.options.declare import option
from dsindex.options.numbers import (
    MAX_NUMBER,
    MAX_WORKERS,
    MEGATRON_COUNT,
    check_number,
    parse_shard_size,
    parse_size,
)
from dsindex.store.urls import (
    absolute,
    locate,
    locate_output,
    located,
    refuse_input_url,
    refuse_url,
    with_suffix,
)
from dsindex.text.tokenizer_file import TokenizerOptions

Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1, le=MAX_NUMBER)]
ShardSize = Annotated[int, BeforeValidator(parse_shard_size), Field(ge=1, le=MAX_NUMBER)]
Workers = Annotated[int, Field(ge=1, le=MAX_WORKERS)]
SequenceLength = Annotated[int, Field(ge=2, lt=MEGATRON_COUNT)]
EngineName = Literal["auto", "gigatoken", "reference", "tokenizers"]
LocalPath = Annotated[str, AfterValidator(refuse_url)]
"""The path of an output that only this machine writes."""
MappedPath = Annotated[str, AfterValidator(refuse_input_url)]
"""A path that only this machine reads."""


def _located(path: str) -> str:
    try:
        return located(path)
    except InputError as error:
        raise ValueError(str(error)) from error


DatasetPath = Annotated[str, AfterValidator(_located)]
"""The prefix or a file of one dataset, here or in an object store."""


MAY_BE_EMPTY = frozenset({"join", "find"})
"""Options that say themselves what an empty text means; elsewhere it is a variable of a script that was not set."""


class Options(BaseModel):
    """Base of all options: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _can_be_typed(cls, value: object, info: ValidationInfo) -> object:
        """YAML can contain what no command line can: NUL, characters of no file name, and switches for numbers."""
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, str):
                check_text(each)
                if not each and info.field_name not in MAY_BE_EMPTY:
                    raise ValueError("expected a value, got an empty text")
            elif isinstance(each, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
                raise ValueError(f"expected another value than true or false, got {show_value(value)}")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _can_be_stored(cls, value: object) -> object:
        return check_number(value)


Config = TypeVar("Config", bound=Options)


class ExecutorConfig(Options):
    """Options of the executor."""

    group: ClassVar = "execution"
    executor: Literal["auto", "local", "processes", "ray"] = option(
        "auto",
        "auto is Ray if --address names a cluster, or RAY_ADDRESS for a job with a work folder, else threads of "
        "this process, or processes where threads would wait for each other (default: auto)",
    )
    address: str | None = option(None, "the Ray cluster to join: HOST:6379, or auto for this machine's", "A")
    workers: Workers | None = option(None, "tasks that run at once (default: all CPUs)", "N")
    shard_deadline: float = option(
        3600.0,
        "end a task that takes longer, and try it again elsewhere with twice the time (default: 3600)",
        "SECONDS",
        gt=0,
        le=10**9,
    )


class TrainingLength(Options):
    """How long a training job runs, as its own flags say."""

    train_samples: int | None = option(None, "the job's training samples", "N", ge=1)
    train_iters: int | None = option(None, "the job's training iterations", "N", ge=1)
    global_batch_size: int | None = option(None, "samples per iteration", "N", ge=1)


class JsonOutput(Options):
    """Of commands that print a result."""

    as_json: bool = option(default=False, help="write one JSON object", flags=("--json",))


class WorkConfig(ExecutorConfig):
    """Options of a job that has a work folder."""

    group: ClassVar = "work folder"
    output_prefix: str
    work_dir: str | None = option(None, "the folder of shards and ledger (default: PREFIX.build)", "D")
    keep_shards: bool = option(default=False, help="keep the work folder after success")
    replace: bool = option(
        default=False,
        help="replace a finished output of other inputs once the new one is complete; kept shards of unchanged inputs "
        "are used again",
    )
    fresh: bool = option(default=False, help="start over; an old output is replaced once the new one is complete")

    @field_validator("output_prefix", "work_dir")
    @classmethod
    def _can_be_written(cls, path: str | None) -> str | None:
        return output_place(path)

    @field_validator("output_prefix")
    @classmethod
    def _ends_in_a_name(cls, prefix: str) -> str:
        if os.path.basename(prefix) in {"", ".", ".."}:
            msg = f"expected a path that ends in the beginning of a file name, such as out/docs, got {prefix!r}"
            raise ValueError(msg)
        return prefix


def work_folder_path(config: WorkConfig) -> str:
    """Return the absolute path of a job's work folder."""
    return absolute(config.work_dir or with_suffix(config.output_prefix, ".build"))


def output_place(path: str | None) -> str | None:
    """Return the path or the address of an output, or of a work folder, for a validator of pydantic's.

    Raises:
        PydanticCustomError: If it is an address at which nothing can be written, saying why.
    """
    try:
        return None if path is None else locate_output(path)
    except InputError as error:
        raise PydanticCustomError("address", "{reason}", {"reason": str(error)}) from None


class RecordsConfig(WorkConfig):
    """Options of a job that reads records."""

    group: ClassVar = "input and output"
    model_config = ConfigDict(validate_default=True)  # so that missing inputs are reported with what else is missing

    input_list: tuple[str, ...] = option(
        (),
        "files that list inputs, one path per line, read after --input; - reads a list from standard input",
        "FILE",
        accepts="Paths",
    )
    input: tuple[str, ...] = option(
        (),
        "files, patterns or folders, in the order of the output: JSONL, compressed or not, Parquet or Arrow; "
        "here or in object stores (s3://, gs://, az://, hf://, https://); - is standard input",
        "PATH",
    )
    input_split: str | None = option(
        None, "the split to take from a folder that has several, such as train; all takes every split", "NAME"
    )
    input_config: str | None = option(
        None, "the configuration of a dataset on the Hugging Face Hub (default: its default one)", "NAME"
    )
    input_format: Literal["auto", "jsonl", "lines", "document"] = option(
        "auto",
        "what the inputs hold: JSON lines, or plain text with a document per line or per file; Parquet and "
        "Arrow, and compression, are told by content (default: auto, by the file's name)",
    )
    tokenizer_model: str
    shard_size: ShardSize | None = option(
        None,
        "bytes of input per shard (default: by the size of the inputs, at most 64MiB)",
        "SIZE",
        as_text=True,
        group="",
    )
    largest_shard: ClassVar[int] = 64 << 20
    no_provenance: bool = option(default=False, help="do not record where documents came from", group="")
    on_bad_record: Literal["fail", "quarantine"] = option(
        "fail",
        "stop at the first bad record, or set bad records aside with file, line and reason (default: fail)",
        group="records",
    )
    max_bad_records: str | None = option(
        None, "stop when more are set aside", "N|N%", accepts="int | str | None", group="records"
    )
    max_record_size: Size | None = option(
        None, "treat longer lines as bad records", "SIZE", as_text=True, group="records"
    )

    @field_validator("input")
    @classmethod
    def _names_inputs(cls, given: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        lists = info.data.get("input_list", ())
        if not given and not lists:
            raise PydanticCustomError("missing", "expected at least one input")
        if (*given, *lists).count("-") > 1:
            raise ValueError("expected standard input (-) once, since it can be read only once; leave one out")
        try:
            return tuple(locate(path) for path in given)
        except InputError as error:
            raise PydanticCustomError("address", "{reason}", {"reason": str(error)}) from None

    @field_validator("max_bad_records", mode="before")
    @classmethod
    def _number_or_share(cls, value: object) -> object:
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}|[0-9]{1,18}(\.[0-9]{1,25})?%", str(value)):
            raise ValueError(f"expected a number such as 100 or a share such as 0.1%, got {show_value(value)}")
        if str(value).endswith("%") and float(str(value)[:-1]) > 100:
            raise ValueError(f"expected a share of at most 100%, got {value!r}")
        return str(value)


class TextConfig(RecordsConfig):
    """Options of a job that tokenizes texts as they are."""

    group: ClassVar = "tokenizer"
    tokenizer_model: str = option(
        ...,
        "a tokenizer.json or a folder with one, a SentencePiece .model, a file of tiktoken's, or a name in the "
        "Hugging Face cache or hub such as gpt2 or ORG/NAME@REVISION",
        "PATH",
    )
    eod_token: str | None = option(None, "the EOD token (default: the tokenizer folder's eos_token)", "T")
    tokenizer_hf_no_include_special_tokens: bool = option(
        default=False, help="do not run the tokenizer's post-processor, which may add a BOS to every text"
    )
    engine: EngineName = option(
        "auto",
        "the library that encodes; auto is gigatoken where it returns the same tokens, else the "
        "reference: the library of the tokenizer's own format (default: auto)",
    )

    def tokenizer_options(self) -> TokenizerOptions:
        """Return what the tokenizer's file does not say; nothing, for most jobs."""
        return TokenizerOptions()


def validation_message(error: ValidationError, kind: type[BaseModel]) -> str:
    """Describe invalid options of a model in one sentence, spelled as flags; unknown ones first."""
    sentences = []
    for problem in sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden"):
        name = "--" + "-".join(str(part) for part in problem["loc"][:1]).replace("_", "-")
        if problem["type"] == "missing":
            sentences.append(f"{name} is required")
        elif problem["type"] == "extra_forbidden":
            unknown = name.removeprefix("--").replace("-", "_")
            close = difflib.get_close_matches(unknown, kind.model_fields, n=1)
            sentences.append(f"there is no option {unknown!r}{f' (did you mean {close[0]!r}?)' if close else ''}")
        else:
            text = describe_problem(problem)
            sentences.append(f"{name}: {text}" if problem["loc"] else text)
    return "; ".join(sentences)


def check_text(text: str) -> None:
    """Check that a text can be part of a command line and of a file's name.

    Raises:
        ValueError: If it cannot.
    """
    try:
        is_text = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        is_text = False
    if not is_text:
        raise ValueError(f"expected a text that can be typed and can name a file, got {text!r}")


def validated(merged: dict[str, Any], kind: type[Config]) -> Config:
    """Return options as a validated configuration.

    Raises:
        UsageError: If they are invalid.
    """
    try:
        return kind(**merged)
    except ValidationError as error:
        raise UsageError(validation_message(error, kind)) from error


def name_lists(options: dict[str, Any]) -> dict[str, Any]:
    """Return options with a list of one text where an option that takes a list has a text."""
    for name in ("input", "input_list", "json_keys", "repeat", "export"):
        if isinstance(options.get(name), str):
            options[name] = [options[name]]
    return options
