"""The options of commands about datasets that exist: convert, export, verify, inspect, report, trace.

A model that is called a command has what the command line adds to the options of a function of the API.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from dsindex.formats.pbin import CURRENT_VERSION, PbinEra
from dsindex.options.config import (
    DatasetPath,
    EngineName,
    ExecutorConfig,
    JsonOutput,
    LocalPath,
    MappedPath,
    Options,
)
from dsindex.options.declare import option
from dsindex.options.numbers import parse_share, parse_steps

PBIN_SUFFIX = ".pbin"
DatasetPaths = tuple[DatasetPath, ...]
Count = Annotated[int, Field(ge=0)]


class ConvertConfig(ExecutorConfig):
    """The options of `dsindex convert`."""

    pbin_era: PbinEra | None = option(
        None, f"version of the .pbin to write (default: {CURRENT_VERSION.name}), or to read if DST is MMIDIDX"
    )
    flatten: bool = option(default=False, help="join the sequences of each document")
    token_type: Literal["uint8", "uint16", "int32"] | None = option(
        None, "token type of the MMIDIDX dataset to write (default: by the tokens' size)"
    )


class ConvertCommand(ConvertConfig):
    """`dsindex convert`: MMIDIDX to `.pbin` or back."""

    source: DatasetPath = option(..., "PREFIX or FILE.pbin, here or in an object store", "SRC", positional=True)
    destination: LocalPath = option(..., "FILE.pbin or PREFIX; it must not exist", "DST", positional=True)

    @model_validator(mode="after")
    def _one_is_packed(self) -> Self:
        if not (self.source.endswith(PBIN_SUFFIX) or self.destination.endswith(PBIN_SUFFIX)):
            raise ValueError(f"expected SRC or DST to end in .pbin, got {self.source} and {self.destination}")
        return self


class SourceConfig(ExecutorConfig):
    """Options of a job that needs the source of an existing dataset."""

    tokenizer_model: str | None = option(None, "the tokenizer that the dataset was made with", "PATH")
    engine: EngineName = option(
        "auto", "the library that tokenizes again; tokenizers, the reference, is slow (default: auto)"
    )


class VerifyConfig(SourceConfig):
    """Options of `dsindex verify`."""

    cache: MappedPath | None = option(None, "check the index caches in this folder against the data", "FOLDER")
    against_source: bool = option(default=False, help="tokenize the inputs again and compare")
    sample: Annotated[float, BeforeValidator(parse_share)] = option(
        1.0, "compare only a share of the documents, such as 1% or 0.01", "SHARE", as_text=True
    )
    same_as: DatasetPath | None = option(None, "tell whether this dataset has the same documents", "B")


class VerifyCommand(VerifyConfig, JsonOutput):
    """`dsindex verify`: what is wrong with datasets."""

    as_json: bool = option(default=False, help="write one JSON object per dataset", flags=("--json",))
    prefix: DatasetPaths = option(
        ...,
        "datasets: paths without .bin and .idx, here or in an object store; or FILE.pbin",
        "PREFIX",
        positional=True,
    )

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        if "sample" in self.model_fields_set and not self.against_source:
            raise ValueError("--sample needs --against-source: it is the share of documents to compare with the source")
        if self.same_as is not None and len(self.prefix) != 1:
            raise ValueError(f"--same-as compares one dataset with another, got {len(self.prefix)}")
        packed = next((prefix for prefix in self.prefix if prefix.endswith(PBIN_SUFFIX)), None)
        if packed is not None and self.cache is not None:
            msg = f"--cache checks Megatron's index caches, which {packed} cannot have; leave one of them out"
            raise ValueError(msg)
        return self


class ReportConfig(Options):
    """`dsindex report`: a page about datasets."""

    prefix: DatasetPaths = option(
        ...,
        "a dataset: a prefix, one of its files, or a .pbin, here or in an object store",
        "PREFIX",
        positional=True,
    )
    output: LocalPath = option(..., "the page to write, such as report.html", "FILE", flags=("-o", "--output"))
    tokenizer_model: str | None = option(None, "decode with this tokenizer (default: the one in each manifest)", "T")
    cache: tuple[MappedPath, ...] = option((), "folders of index caches: show splits, epochs and blends, too", "D")


class InspectConfig(JsonOutput):
    """`dsindex inspect`: what a path is. Without a choice, an overview."""

    path: DatasetPath = option(
        ..., "a prefix or a dataset's file, here or in an object store; or a folder", "PATH", positional=True
    )
    document: int | None = option(None, "one document, counted from 0", "I", "what to show")
    sample: int | None = option(None, "one training sample of an index cache", "K", "what to show")
    tokens: Count | None = option(None, "show at most this many tokens of each document", "N")
    tokenizer_model: str | None = option(None, "decode with this tokenizer", "T")
    split: Literal["train", "valid", "test"] | None = option(None, "the split of an index cache")
    data_path: DatasetPaths | None = option(None, "the datasets of an index cache, if they were moved", "PREFIX")

    @property
    def is_overview(self) -> bool:
        """Whether nothing was chosen."""
        return self.document is None and self.sample is None


def _in_a_tuple(value: object) -> object:
    return (value,) if isinstance(value, int) else value


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) else value


class TraceConfig(JsonOutput):
    """`dsindex trace`: where samples come from, and which samples have a line."""

    group: ClassVar = "steps"
    cache: MappedPath = option(
        ..., "the folder of index caches, the description of one, or packs", "CACHE", "", positional=True
    )
    split: str | None = option(None, "train, valid or test (default: train)", "NAME", "")
    prefix: DatasetPaths | None = option(
        None, "the datasets, in the order of the blend, if they moved; here or in an object store", "P", ""
    )
    sample: Annotated[tuple[int, ...], BeforeValidator(_in_a_tuple)] | None = option(
        None, "samples, by number", "K", "what to trace, one of", accepts="int | Sequence[int] | None"
    )
    step: Annotated[tuple[int, int], BeforeValidator(parse_steps)] | None = option(
        None, "all samples of a step, or of steps such as 10-19; needs --global-batch-size", "S",
        "what to trace, one of", as_text=True, accepts="int | str | None",
    )  # fmt: skip
    document: Annotated[str, BeforeValidator(_as_text)] | None = option(
        None, "a document; in a blend with its dataset's prefix", "[PREFIX:]N", "what to trace, one of",
        accepts="int | str | None",
    )  # fmt: skip
    line: str | None = option(None, "a line of an input", "FILE:LINE", "what to trace, one of")
    consumed: int | None = option(
        None, "tokens by how often the first N samples read them, for each dataset", "N", "what to trace, one of", ge=0
    )
    global_batch_size: int | None = option(None, "samples in a step", "N")
    micro_batch_size: int | None = option(None, "samples that a rank reads at once", "N")
    data_parallel_size: int | None = option(None, "number of data-parallel ranks", "N")
    data_parallel_rank: int | None = option(None, "only the samples of this rank", "R")
    tokenizer_model: str | None = option(None, "the tokenizer, if it moved or is not recorded", "PATH", "output")
    text_tokens: Count = option(32, "show the text of the first N tokens of each part (default: 32)", "N", "output")

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        names = ("sample", "step", "document", "line", "consumed")
        asked = [f"--{name}" for name in names if getattr(self, name) is not None]
        if len(asked) != 1:
            got = " and ".join(asked) or "none"
            raise ValueError(f"expected one of --sample, --step, --document, --line and --consumed, got {got}")
        sizes = (self.micro_batch_size, self.data_parallel_size)
        if self.global_batch_size is None and (
            self.step is not None or sizes != (None, None) or self.data_parallel_rank is not None
        ):
            raise ValueError("expected --global-batch-size, on which steps depend, got none")
        if self.data_parallel_rank is not None and (self.step is None or None in sizes):
            raise ValueError("--data-parallel-rank needs --step, --micro-batch-size and --data-parallel-size")
        return self


class RawIndexConfig(ExecutorConfig):
    """`dsindex raw-index`: the lines of a JSONL file."""

    file: str = option(..., "the file to index", "FILE.jsonl", positional=True)
    output: str | None = option(None, "the index to write (default: beside the file, as .idx)", "FILE.idx")
    drop_faulty_entries: bool = option(default=False, help="leave out lines that are not JSON, and count them")
