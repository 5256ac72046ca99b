"""The options of commands about datasets that exist: convert, verify, inspect, report, trace, raw-index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, TypeAlias

from dsindex.datasets.arguments import PBIN_SUFFIX, AnyPath, Caches
from dsindex.options.common import (
    Dataset,
    Datasets,
    EngineName,
    ExecutorConfig,
    Folder,
    LocalPath,
    OptionalDataset,
    OptionalDatasets,
    OptionalLocalFolder,
    OptionalPath,
    OptionalTokenizer,
    Path,
    Reported,
    Share,
)
from dsindex.options.model import Options, Parsed, option
from dsindex.options.numbers import parse_steps
from dsindex.store.urls import refuse_url

PbinEra: TypeAlias = Literal["spec", "2024-01-30", "2024-04", "current"]
"""Versions of .pbin files, oldest first."""


def _folders(value: AnyPath | Sequence[AnyPath] | Caches) -> AnyPath | Sequence[AnyPath]:
    return value.folders if isinstance(value, Caches) else value


class Decoded(Options):
    """Of commands that show tokens as text."""

    tokenizer_model: OptionalTokenizer = option("PATH", default=None, group="", alias="tokenizer")
    """The tokenizer, if it moved or is not recorded."""


class ConvertCommand(Options):
    """Convert an MMIDIDX dataset to a .pbin of Modalities, or back.

    Without loss: MMIDIDX (Megatron-LM; a prefix, or its .bin or .idx) to .pbin or back, or a .pbin to another version.
    A path that ends in .pbin is a .pbin.

    Documents and tokens stay the same, empty documents included. A .pbin has no sequences within a document: --flatten
    joins them. It stores the size of a token but not its type: 1, 2 and 4 bytes are read as uint8, uint16 and int32,
    unless --token-type names another type. The version of a .pbin is detected; `spec`, the oldest, has 4-byte tokens
    only.

    Examples:
        dsindex convert out/docs_text_document out/docs.pbin
    """

    source: Dataset = option("SRC", positional=True, kw_only=False)
    """PREFIX or FILE.pbin, here or in an object store."""
    destination: LocalPath = option("DST", positional=True, kw_only=False)
    """FILE.pbin or PREFIX; it must not exist."""
    pbin_era: PbinEra | None = option(default=None)
    """Version of the .pbin to write (default: current), or to read if DST is MMIDIDX."""
    flatten: bool = option(default=False)
    """Join the sequences of each document."""
    token_type: Literal["uint8", "uint16", "int32"] | None = option(default=None)
    """Token type of the MMIDIDX dataset to write (default: by the tokens' size)."""

    def _agree(self) -> None:
        if not (self.source.endswith(PBIN_SUFFIX) or self.destination.endswith(PBIN_SUFFIX)):
            raise ValueError(f"expected SRC or DST to end in .pbin, got {self.source} and {self.destination}")


class VerifyConfig(ExecutorConfig, Decoded):
    r"""Prove that a dataset is intact.

    What is checked: sizes, and the structure and every entry of its .idx, or of a .pbin of any version; if it has a
    manifest, also digests and records. A path that ends in .pbin is a .pbin; the folder of an export of `dsindex
    instruct` is one as well.

    --cache checks index caches against the data: that descriptions, names and arrays agree, and that every sample has
    the right tokens; those of dsindex by their digests. --against-source reads and tokenizes the inputs again, and
    names the first document that differs with its file and line. --same-as compares with another dataset, of any tool,
    and names the first document that differs.

    Exit code 0: intact. 1: damaged; each finding is one line.

    Examples:
        dsindex verify out/docs_text_document
        dsindex verify out/docs_text_document --against-source --sample 1% \
          --tokenizer-model FOLDER
    """

    prefix: Datasets = option("PREFIX", positional=True, kw_only=False)
    """Datasets: paths without .bin and .idx, here or in an object store; or FILE.pbin."""
    cache: OptionalLocalFolder = option("FOLDER", default=None)
    """Check the index caches in this folder against the data."""
    against_source: bool = option(default=False)
    """Tokenize the inputs again and compare."""
    sample: Share = option("SHARE", default=1.0, needs=("against_source",))
    """Compare only a share of the documents, such as 1% or 0.01."""
    engine: EngineName = option(default="auto")
    """The library that tokenizes again; tokenizers, the reference, is slow (default: auto)."""
    same_as: OptionalDataset = option("B", default=None)
    """Tell whether this dataset has the same documents."""

    def _agree(self) -> None:
        if self.same_as is not None and len(self.prefix) > 1:
            raise ValueError(f"--same-as compares one dataset with another, got {len(self.prefix)}")
        packed = next((prefix for prefix in self.prefix if prefix.endswith(PBIN_SUFFIX)), None)
        if packed is not None and self.cache is not None:
            msg = f"--cache checks Megatron's index caches, which {packed} cannot have; leave one of them out"
            raise ValueError(msg)


class ReportConfig(Reported, Decoded):
    r"""Write a page about datasets, to look at and to keep.

    One HTML page about one or several datasets comes from their manifests and one pass over their tokens: sources,
    lengths, tokens, repeated documents and examples; with --cache, what a mixture draws. The page works offline.

    Datasets of any tool are taken: .bin and .idx, .pbin, instruction data. What is not recorded is left out and named.
    A file is replaced only if it is such a page.

    The exit code is 1 if something is damaged; the page is written all the same.

    Examples:
        dsindex report out/docs_text_document -o report.html
        dsindex report out/web_text_document out/books_text_document \
          --cache out/cache -o report.html
    """

    prefix: Datasets = option("PREFIX", positional=True, kw_only=False)
    """A dataset: a prefix, one of its files, or a .pbin, here or in an object store."""
    output: LocalPath = option("FILE", short="-o")
    """The page to write, such as report.html."""
    cache: Annotated[Parsed[AnyPath | Sequence[AnyPath] | Caches, tuple[str, ...]], _folders] = option("D", default=())
    """Folders of index caches: show splits, epochs and blends, too."""


class InspectConfig(Decoded):
    """Show what a dataset is and what it holds, down to its tokens.

    A path is told from its files: a dataset of .bin and .idx, a .pbin of any version, a raw index, an index cache,
    instruction data, the work folder of a job, or a manifest. Without a choice: type, sizes, origin, quantiles of the
    documents' lengths, and documents drawn from all of it as text.

    Tokens are divided by │, and characters that control a terminal are escaped. The tokenizer is the one in the
    manifest, if it is unchanged; without one, ids are shown. Tokens of instruction data that are trained on are in
    brackets.

    Exit code 0: readable. 1: damaged; each finding is one line.

    Examples:
        dsindex inspect out/docs_text_document
        dsindex inspect out/docs_text_document --document 7
        dsindex inspect out/cache --sample 3
    """

    path: Folder = option("PATH", positional=True, kw_only=False)
    """A prefix or a dataset's file, here or in an object store; or a folder."""
    document: int | None = option("I", default=None, group="what to show")
    """One document, counted from 0."""
    sample: int | None = option("K", default=None, group="what to show")
    """One training sample of an index cache."""
    tokens: int | None = option("N", default=None)
    """Show at most this many tokens of each document."""
    split: Literal["train", "valid", "test"] | None = option(default=None)
    """The split of an index cache."""
    data_path: OptionalDatasets = option("PREFIX", default=None)
    """The datasets of an index cache, if they were moved."""


class TraceConfig(Decoded):
    """Show where training samples come from.

    The documents and lines of the inputs that a sample or step consists of; or with --consumed, how often the tokens of
    each dataset were read. Works on the index caches of dsindex and Megatron, and on packs of `dsindex instruct`:
    P_packing_L.

    Samples and documents count from 0; steps, epochs and lines from 1. Token ranges such as 12:140 end before the
    second number, and count from the document's first token. A step is one of Megatron's iterations with
    --dataloader-type single and a fixed --global-batch-size.

    Examples:
        dsindex trace out/cache --sample 3
        dsindex trace out/cache --step 1200 --global-batch-size 1024
        dsindex trace out/cache --consumed 400000
        dsindex trace out/chat_packing_4096 --sample 7
    """

    group: ClassVar = "steps"
    cache: Annotated[Folder, refuse_url] = option("CACHE", positional=True, kw_only=False, group="")
    """The folder of index caches, the description of one, or packs."""
    split: str | None = option("NAME", default=None, group="")
    """Train, valid or test (default: train)."""
    prefix: OptionalDatasets = option("P", default=None, group="")
    """The datasets, in the order of the blend, if they moved; here or in an object store."""
    sample: Parsed[int | Sequence[int] | None, tuple[int, ...] | None] = option(
        "K", default=None, group="what to trace, one of", excludes=("step", "consumed")
    )
    """Samples, by number."""
    step: Annotated[Parsed[int | str | None, tuple[int, int] | None], parse_steps] = option(
        "S",
        default=None,
        group="what to trace, one of",
        needs=("global_batch_size",),
        excludes=("consumed",),
    )
    """All samples of a step, or of steps such as 10-19; needs --global-batch-size."""
    consumed: int | None = option("N", default=None, group="what to trace, one of")
    """Tokens by how often the first N samples read them, for each dataset."""
    global_batch_size: int | None = option("N", default=None, ge=1)
    """Samples in a step."""
    text_tokens: int = option("N", default=32, group="output")
    """Show the text of the first N tokens of each part (default: 32)."""

    def _agree(self) -> None:
        if self.sample is None and self.step is None and self.consumed is None:
            raise ValueError("give --sample, --step or --consumed")


class RawIndexConfig(Options):
    """Write Modalities' index of the lines of a JSONL file.

    Where each line begins and how long it is, as Modalities' `create_raw_index` writes it, byte for byte.

    Every line must be JSON by the rules of Python's json.loads; a blank line is faulty. The first faulty line is an
    error, unless --drop-faulty-entries leaves such lines out of the index.

    An existing file is never replaced; if it is the same index already, the command succeeds.

    Examples:
        dsindex raw-index docs.jsonl --output docs.idx
    """

    file: Path = option("FILE.jsonl", positional=True, kw_only=False)
    """The file to index."""
    output: OptionalPath = option("FILE.idx", default=None)
    """The index to write (default: beside the file, as .idx)."""
    drop_faulty_entries: bool = option(default=False)
    """Leave out lines that are not JSON, and count them."""
