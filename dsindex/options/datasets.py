"""The options of commands about datasets that exist: convert, verify, inspect, report, trace, raw-index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal, TypeAlias

from dsindex.datasets.subjects import (
    AnyDataset,
    AnyPath,
    Caches,
    cache_folder,
    list_prefixes,
    one_prefix,
    tokenizer_path,
)
from dsindex.options.config import (
    PBIN_SUFFIX,
    Dataset,
    Datasets,
    EngineName,
    ExecutorConfig,
    Folder,
    OptionalFolder,
    OptionalPath,
    OptionalTokenizer,
    Path,
    Reported,
    local_output,
)
from dsindex.options.model import Options, Parsed, option
from dsindex.options.numbers import parse_share, parse_steps
from dsindex.store.urls import refuse_input_url

PbinEra: TypeAlias = Literal["spec", "2024-01-30", "2024-04", "current"]
"""Versions of .pbin files, oldest first."""
OptionalDatasets: TypeAlias = Parsed[AnyDataset | Iterable[AnyDataset] | None, tuple[str, ...] | None]


class Decoded(Options):
    """Of commands that show tokens as text."""

    tokenizer_model: OptionalTokenizer = option(
        "the tokenizer, if it moved or is not recorded", "PATH", default=None, alias="tokenizer", parse=tokenizer_path
    )


class ConvertCommand(ExecutorConfig):
    """`dsindex convert`: MMIDIDX to `.pbin` or back."""

    source: Dataset = option(
        "PREFIX or FILE.pbin, here or in an object store", "SRC", positional=True, kw_only=False, parse=one_prefix
    )
    destination: Path = option(
        "FILE.pbin or PREFIX; it must not exist", "DST", positional=True, kw_only=False, parse=local_output
    )
    pbin_era: PbinEra | None = option(
        "version of the .pbin to write (default: current), or to read if DST is MMIDIDX", default=None
    )
    flatten: bool = option("join the sequences of each document", default=False)
    token_type: Literal["uint8", "uint16", "int32"] | None = option(
        "token type of the MMIDIDX dataset to write (default: by the tokens' size)", default=None
    )

    def _agree(self) -> None:
        if not (self.source.endswith(PBIN_SUFFIX) or self.destination.endswith(PBIN_SUFFIX)):
            raise ValueError(f"expected SRC or DST to end in .pbin, got {self.source} and {self.destination}")


class VerifyConfig(ExecutorConfig, Decoded):
    """`dsindex verify`: what is wrong with datasets."""

    prefix: Datasets = option(
        "datasets: paths without .bin and .idx, here or in an object store; or FILE.pbin",
        "PREFIX",
        default=(),
        positional=True,
        kw_only=False,
        parse=list_prefixes,
    )
    cache: OptionalFolder = option(
        "check the index caches in this folder against the data",
        "FOLDER",
        default=None,
        parse=lambda value: refuse_input_url(cache_folder(value)),
    )
    against_source: bool = option("tokenize the inputs again and compare", default=False)
    sample: Parsed[float | str, float] = option(
        "compare only a share of the documents, such as 1% or 0.01", "SHARE", default=1.0, parse=parse_share
    )
    engine: EngineName = option(
        "the library that tokenizes again; tokenizers, the reference, is slow (default: auto)", default="auto"
    )
    same_as: Parsed[AnyDataset | None, str | None] = option(
        "tell whether this dataset has the same documents", "B", default=None, parse=one_prefix
    )

    def _agree(self) -> None:
        if "sample" in self.given and not self.against_source:
            raise ValueError("--sample needs --against-source: it is the share of documents to compare with the source")
        if self.same_as is not None and len(self.prefix) > 1:
            raise ValueError(f"--same-as compares one dataset with another, got {len(self.prefix)}")
        packed = next((prefix for prefix in self.prefix if prefix.endswith(PBIN_SUFFIX)), None)
        if packed is not None and self.cache is not None:
            msg = f"--cache checks Megatron's index caches, which {packed} cannot have; leave one of them out"
            raise ValueError(msg)


class ReportConfig(Reported, Decoded):
    """`dsindex report`: a page about datasets."""

    prefix: Datasets = option(
        "a dataset: a prefix, one of its files, or a .pbin, here or in an object store",
        "PREFIX",
        positional=True,
        kw_only=False,
        parse=list_prefixes,
    )
    output: Path = option("the page to write, such as report.html", "FILE", short="-o", parse=local_output)
    cache: Parsed[AnyPath | Sequence[AnyPath] | Caches, tuple[str, ...]] = option(
        "folders of index caches: show splits, epochs and blends, too",
        "D",
        default=(),
        parse=lambda value: value.folders if isinstance(value, Caches) else value,
    )


class InspectConfig(Decoded):
    """`dsindex inspect`: what a path is. Without a choice, an overview."""

    path: Folder = option(
        "a prefix or a dataset's file, here or in an object store; or a folder",
        "PATH",
        positional=True,
        kw_only=False,
        parse=cache_folder,
    )
    document: int | None = option("one document, counted from 0", "I", default=None, group="what to show")
    sample: int | None = option("one training sample of an index cache", "K", default=None, group="what to show")
    tokens: int | None = option("show at most this many tokens of each document", "N", default=None, ge=0)
    split: Literal["train", "valid", "test"] | None = option("the split of an index cache", default=None)
    data_path: OptionalDatasets = option(
        "the datasets of an index cache, if they were moved", "PREFIX", default=None, parse=list_prefixes
    )

    @property
    def is_overview(self) -> bool:
        """Whether nothing was chosen."""
        return self.document is None and self.sample is None


class TraceConfig(Decoded):
    """`dsindex trace`: where samples come from, and which samples have a line."""

    group: ClassVar = "steps"
    cache: Folder = option(
        "the folder of index caches, the description of one, or packs",
        "CACHE",
        positional=True,
        kw_only=False,
        group="",
        parse=lambda value: refuse_input_url(cache_folder(value)),
    )
    split: str | None = option("train, valid or test (default: train)", "NAME", default=None, group="")
    prefix: OptionalDatasets = option(
        "the datasets, in the order of the blend, if they moved; here or in an object store",
        "P",
        default=None,
        group="",
        parse=list_prefixes,
    )
    sample: Parsed[int | Sequence[int] | None, tuple[int, ...] | None] = option(
        "samples, by number", "K", default=None, group="what to trace, one of"
    )
    step: Parsed[int | str | None, tuple[int, int] | None] = option(
        "all samples of a step, or of steps such as 10-19; needs --global-batch-size",
        "S",
        default=None,
        group="what to trace, one of",
        parse=parse_steps,
    )
    document: Parsed[int | str | None, str | None] = option(
        "a document; in a blend with its dataset's prefix",
        "[PREFIX:]N",
        default=None,
        group="what to trace, one of",
        parse=str,
    )
    line: str | None = option("a line of an input", "FILE:LINE", default=None, group="what to trace, one of")
    consumed: int | None = option(
        "tokens by how often the first N samples read them, for each dataset",
        "N",
        default=None,
        group="what to trace, one of",
        ge=0,
    )
    global_batch_size: int | None = option("samples in a step", "N", default=None)
    micro_batch_size: int | None = option("samples that a rank reads at once", "N", default=None)
    data_parallel_size: int | None = option("number of data-parallel ranks", "N", default=None)
    data_parallel_rank: int | None = option("only the samples of this rank", "R", default=None)
    text_tokens: int = option(
        "show the text of the first N tokens of each part (default: 32)", "N", default=32, ge=0, group="output"
    )

    def _agree(self) -> None:
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


class RawIndexConfig(ExecutorConfig):
    """`dsindex raw-index`: the lines of a JSONL file."""

    file: Path = option("the file to index", "FILE.jsonl", positional=True, kw_only=False)
    output: OptionalPath = option("the index to write (default: beside the file, as .idx)", "FILE.idx", default=None)
    drop_faulty_entries: bool = option("leave out lines that are not JSON, and count them", default=False)
