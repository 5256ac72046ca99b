"""The options that jobs have in common, typed and validated in one place for both YAML keys and command-line flags."""

from __future__ import annotations

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
from dsindex.option_problems import describe_problem, show_value
from dsindex.options.numbers import MAX_NUMBER, MAX_WORKERS, MEGATRON_COUNT, check_number, parse_size
from dsindex.store.urls import (
    Access,
    absolute,
    check_endpoint,
    is_url,
    lengthened,
    parse_output_url,
    parse_url,
    refuse_url,
)
from dsindex.text.tokenizer_file import TokenizerOptions

Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1, le=MAX_NUMBER)]
Workers = Annotated[int, Field(ge=1, le=MAX_WORKERS)]
SequenceLength = Annotated[int, Field(ge=2, lt=MEGATRON_COUNT)]
LocalPath = Annotated[str, AfterValidator(refuse_url)]
"""The path of an output that only this machine writes."""


class UsageError(Exception):
    """Raised for invalid options: the command line exits with 2, and the API raises OptionsError."""


MAY_BE_EMPTY = frozenset({"join", "find", "region", "endpoint_url"})
"""Options that say themselves what an empty text means; elsewhere it is a variable of a script that was not set."""


class Options(BaseModel):
    """Base of all options: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _can_be_typed(cls, value: object, info: ValidationInfo) -> object:
        """YAML can contain what no command line can: NUL, characters of no file name, and switches for numbers."""
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, str):
                check_text(each)
                if not each and info.field_name not in MAY_BE_EMPTY:
                    msg = "expected a value, got an empty text"
                    raise ValueError(msg)
            elif isinstance(each, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
                msg = f"expected another value than true or false, got {show_value(value)}"
                raise ValueError(msg)
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _can_be_stored(cls, value: object) -> object:
        return check_number(value)


Config = TypeVar("Config", bound=Options)


class ExecutorConfig(Options):
    """Options of the executor."""

    executor: Literal["auto", "local", "processes", "ray"] = "auto"
    address: str | None = None
    installed: bool = False
    """dsindex is installed on the cluster's nodes, so this node's code is not sent."""
    workers: Workers | None = None
    """Tasks that run at once; None: all CPUs this process may use, on Ray all CPUs of the cluster."""
    shard_deadline: float | None = Field(default=None, gt=0, le=10**9)
    """Seconds after which an unfinished task is dispatched a second time; None: 8 times the median."""


class WorkConfig(ExecutorConfig):
    """Options of a job that has a work folder."""

    endpoint_url: str | None = None
    """Address of the server of `s3://`; None for AWS_ENDPOINT_URL or Amazon's own."""
    region: str | None = None
    """Region of the buckets of `s3://`; None for AWS_REGION or us-east-1."""
    output_prefix: str
    work_dir: str | None = None
    keep_shards: bool = False
    fresh: bool = False
    log_json: bool = False
    """Progress and errors as JSON lines."""

    @field_validator("endpoint_url")
    @classmethod
    def _is_server(cls, url: str | None) -> str | None:
        return None if url is None else check_endpoint(url)

    @property
    def access(self) -> Access:
        """How the object stores of inputs and outputs are reached."""
        return Access(endpoint_url=self.endpoint_url, region=self.region)

    @field_validator("output_prefix", "work_dir")
    @classmethod
    def _can_be_written(cls, path: str | None, info: ValidationInfo) -> str | None:
        return output_place(path, info)

    @field_validator("output_prefix")
    @classmethod
    def _ends_in_a_name(cls, prefix: str) -> str:
        if os.path.basename(prefix) in {"", ".", ".."}:
            msg = f"expected a path that ends in the beginning of a file name, such as out/docs, got {prefix!r}"
            raise ValueError(msg)
        return prefix


def work_folder_path(config: WorkConfig) -> str:
    """Return the absolute path of a job's work folder."""
    return absolute(config.work_dir or lengthened(config.output_prefix, ".build"))


def validated_access(endpoint_url: str | None, region: str | None) -> Access:
    """Return how stores are reached, from flags.

    Raises:
        ValueError: If the address of the server is none.
    """
    return Access(endpoint_url=None if endpoint_url is None else check_endpoint(endpoint_url), region=region)


def output_place(path: str | None, info: ValidationInfo) -> str | None:
    """Return the path or the address of an output, or of a work folder, for a validator of pydantic's.

    Raises:
        PydanticCustomError: If it is an address at which nothing can be written, saying why.
    """
    if path is None or not is_url(path):
        return path
    try:
        return parse_output_url(path, access_of(info))
    except InputError as error:
        raise PydanticCustomError("address", "{reason}", {"reason": str(error)}) from None


def access_of(info: ValidationInfo) -> Access:
    """Return how stores are reached, from options that were validated already."""
    return Access(endpoint_url=info.data.get("endpoint_url"), region=info.data.get("region"))


class RecordsConfig(WorkConfig):
    """Options of a job that reads records."""

    model_config = ConfigDict(validate_default=True)  # so that missing inputs are reported with what else is missing

    input_list: tuple[str, ...] = ()
    """Lists of paths; their entries come after those of `input`."""
    input: tuple[str, ...] = ()
    """Files, patterns and folders, here or in object stores, and `-` for standard input."""
    input_split: str | None = None
    """The split to take from folders that have several."""
    input_format: Literal["auto", "jsonl", "lines", "document", "csv", "tsv"] = "auto"
    """What the inputs hold that are not Parquet or Arrow; `auto` goes by their names."""
    tokenizer_model: str
    shard_size: Size | None = None
    """Bytes of input per shard; None: chosen by the inputs, up to `largest_shard`."""
    largest_shard: ClassVar[int] = 64 << 20
    no_provenance: bool = False
    on_bad_record: Literal["fail", "quarantine"] = "fail"
    on_bad_input: Literal["fail", "skip-file"] = "fail"
    """Whether a damaged input ends the job, or is left out as a whole, after all inputs were read once."""
    max_bad_records: str | None = None
    """A number or a share such as `1%`; None: no limit."""
    max_record_size: Size | None = None

    @field_validator("input")
    @classmethod
    def _names_inputs(cls, given: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        lists = info.data.get("input_list", ())
        if not given and not lists:
            raise PydanticCustomError("missing", "expected at least one input")
        if (*given, *lists).count("-") > 1:
            msg = "expected standard input (-) once, since it can be read only once; leave one out"
            raise ValueError(msg)
        access = access_of(info)
        try:
            return tuple(parse_url(path, access) if is_url(path) else path for path in given)
        except InputError as error:
            raise PydanticCustomError("address", "{reason}", {"reason": str(error)}) from None

    @field_validator("max_bad_records", mode="before")
    @classmethod
    def _number_or_share(cls, value: object) -> object:
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}|[0-9]{1,18}(\.[0-9]{1,25})?%", str(value)):
            msg = f"expected a number such as 100 or a share such as 0.1%, got {show_value(value)}"
            raise ValueError(msg)
        if str(value).endswith("%") and float(str(value)[:-1]) > 100:
            msg = f"expected a share of at most 100%, got {value!r}"
            raise ValueError(msg)
        return str(value)


class TextConfig(RecordsConfig):
    """Options of a job that tokenizes texts as they are."""

    eod_token: str | None = None
    tokenizer_hf_no_include_special_tokens: bool = False
    engine: Literal["auto", "gigatoken", "reference", "tokenizers"] = "auto"

    def tokenizer_options(self) -> TokenizerOptions:
        """Return what the tokenizer's file does not say; nothing, for most jobs."""
        return TokenizerOptions()


def validation_message(error: ValidationError) -> str:
    """Describe invalid options in one sentence, spelled as flags."""
    sentences = []
    for problem in error.errors():
        name = "--" + "-".join(str(part) for part in problem["loc"][:1]).replace("_", "-")
        if problem["type"] == "missing":
            sentences.append(f"{name} is required")
        elif problem["type"] == "extra_forbidden":
            sentences.append(f"there is no option {name.removeprefix('--').replace('-', '_')!r}")
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
        msg = f"expected a text that can be typed and can name a file, got {text!r}"
        raise ValueError(msg)


def validated(merged: dict[str, Any], kind: type[Config]) -> Config:
    """Return options as a validated configuration.

    Raises:
        UsageError: If they are invalid.
    """
    try:
        return kind(**merged)
    except ValidationError as error:
        raise UsageError(validation_message(error)) from error
