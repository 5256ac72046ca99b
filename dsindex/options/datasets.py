"""The options of commands that read datasets: merge, convert, verify, inspect, report, trace, raw-index."""

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
    Output,
    Path,
    ProgressConfig,
    Share,
    TextDatasets,
    WorkConfig,
)
from dsindex.options.model import Options, Parsed, option
from dsindex.options.numbers import parse_steps
from dsindex.store.urls import refuse_address, refuse_url

PbinEra: TypeAlias = Literal["spec", "2024-01-30", "2024-04", "current"]
"""Versions of .pbin files, oldest first."""


def _folders(value: AnyPath | Sequence[AnyPath] | Caches) -> AnyPath | Sequence[AnyPath]:
    return value.folders if isinstance(value, Caches) else value


class DecodingConfig(Options):
    """Options of commands that show tokens as text."""

    tokenizer_model: OptionalTokenizer = option("PATH", default=None, group="", alias="tokenizer")
    """Tokenizer to use if the recorded one has moved, or if the files name no tokenizer."""
    contact: tuple[str, ...] = option("ADDRESS", default=(), group="")
    """Buckets and servers (s3://BUCKET, https://HOST) to contact although only a manifest names them."""


class MergeConfig(WorkConfig):
    r"""Merge datasets into one.

    Merges .bin/.idx datasets of any program in the order given. (Megatron's merge_datasets.py takes the names in a
    folder in lexicographic order, _10 before _2.) Sequence modes and all documents are kept, empty ones included.
    Datasets with different token types cannot be merged, nor datasets with and without modes.

    Examples:
        dsindex merge --input out/a_text_document out/b_text_document \
          --output-prefix out/all_text_document
    """

    group: ClassVar = ""
    input: TextDatasets = option("PREFIX", kw_only=False)
    """Datasets in the order of the output: paths without .bin and .idx, on a disk or in object stores."""
    output_prefix: Output = option("P")
    """Writes P.bin and P.idx, on a disk or in a bucket (s3://, gs://, az://)."""
    shuffle_documents: int | None = option("SEED", default=None, excludes=("replace", "keep_shards", "work_dir"))
    """Write the documents in a random order, for readers that keep the order; P is on a disk and gets no manifest."""

    def _check_agreement(self) -> None:
        if self.shuffle_documents is not None:
            refuse_address(self.output_prefix, "--shuffle-documents needs an output on a disk", ValueError)


class ConvertCommand(Options):
    """Convert between .bin/.idx datasets and Modalities' .pbin files.

    Converts a Megatron dataset (a prefix, or its .bin or .idx) to .pbin or back, or a .pbin to another version, without
    loss. A path that ends in .pbin is a .pbin file.

    Documents and tokens stay the same, empty documents included. A .pbin has no sequences within a document: --flatten
    joins them. A .pbin stores the size of a token but not its type: 1, 2 and 4 bytes are read as uint8, uint16 and
    int32 unless --token-type names another type. The version of a .pbin is detected; `spec`, the oldest, only has
    4-byte tokens.

    Examples:
        dsindex convert out/docs_text_document out/docs.pbin
    """

    source: Dataset = option("SRC", positional=True, kw_only=False)
    """PREFIX or FILE.pbin, on a disk or in an object store."""
    destination: LocalPath = option("DST", positional=True, kw_only=False)
    """FILE.pbin or PREFIX; must not exist."""
    pbin_era: PbinEra | None = option(default=None)
    """Version of the .pbin to write (default: current), or to read if DST is a PREFIX."""
    flatten: bool = option(default=False)
    """Join the sequences of each document into one."""
    token_type: Literal["uint8", "uint16", "int32"] | None = option(default=None)
    """Token type of the .bin to write (default: from the size of the tokens)."""
    shuffle_documents: int | None = option("SEED", default=None)
    """Write the documents in a random order, for readers that keep the order; DST may be a PREFIX then."""

    def _check_agreement(self) -> None:
        if self.shuffle_documents is None and not (
            self.source.endswith(PBIN_SUFFIX) or self.destination.endswith(PBIN_SUFFIX)
        ):
            raise ValueError(f"neither SRC {self.source} nor DST {self.destination} ends in .pbin")


class VerifyConfig(ExecutorConfig, DecodingConfig):
    r"""Check that a dataset is intact.

    Checks file sizes and every entry of the .idx (or of a .pbin, of any version); with a manifest, also digests and
    record counts. PREFIX may also be a .pbin file.

    --cache also checks index caches against the data: descriptions, names and arrays agree, and every sample has the
    right tokens. --against-source tokenizes the inputs again and reports the first document that differs, with file and
    line. --same-as compares with a dataset of any tool and reports the first document that differs.

    Exit code 0: intact. 1: damaged; each finding is one line.

    Examples:
        dsindex verify out/docs_text_document
        dsindex verify out/docs_text_document --against-source --sample 1% \
          --tokenizer-model FOLDER
    """

    prefix: Datasets = option("PREFIX", positional=True, kw_only=False)
    """Datasets: paths without .bin and .idx, or FILE.pbin, on a disk or in an object store."""
    cache: OptionalLocalFolder = option("FOLDER", default=None)
    """Also check the index caches in this folder against the data."""
    against_source: bool = option(default=False)
    """Tokenize the inputs again and compare the tokens."""
    sample: Share = option("SHARE", default=1.0, needs=("against_source",))
    """Compare only this share of the documents, in shards of 32 MiB of input, such as 1% or 0.01."""
    engine: EngineName = option(default="auto")
    """Library that encodes for --against-source (default: auto)."""
    same_as: OptionalDataset = option("B", default=None)
    """Compare the documents with dataset B."""

    def _check_agreement(self) -> None:
        if self.same_as is not None and len(self.prefix) > 1:
            raise ValueError(f"--same-as compares B with one dataset, not with {len(self.prefix)}")
        pbin_path = next((prefix for prefix in self.prefix if prefix.endswith(PBIN_SUFFIX)), None)
        if pbin_path is not None and self.cache is not None:
            raise ValueError(f"--cache: {pbin_path} is a .pbin, which has no index caches")


class ReportConfig(ProgressConfig, DecodingConfig):
    r"""Write an HTML report about datasets.

    One page about one or more datasets, from their manifests and one pass over their tokens: sources, lengths, frequent
    tokens, repeated documents and examples; with --cache, also what a mixture draws. The page works offline.

    Takes datasets of any tool: .bin and .idx, .pbin, and instruction data. The page says what is not recorded. An
    existing file is only overwritten if it is such a report.

    Exit code 1: something is damaged; the page is written anyway.

    Examples:
        dsindex report out/docs_text_document -o report.html
        dsindex report out/web_text_document out/books_text_document \
          --cache out/cache -o report.html
    """

    prefix: Datasets = option("PREFIX", positional=True, kw_only=False)
    """Datasets: prefixes, one of their files, or .pbin files, on a disk or in an object store."""
    output: LocalPath = option("FILE", short="-o")
    """HTML file to write, such as report.html."""
    cache: Annotated[Parsed[AnyPath | Sequence[AnyPath] | Caches, tuple[str, ...]], _folders] = option("D", default=())
    """Folders of index caches: also show splits, epochs and blends."""


class InspectConfig(DecodingConfig):
    """Show what a dataset contains, down to its tokens.

    PATH may be a .bin/.idx dataset, a .pbin of any version, a raw index, an index cache, instruction data, the work
    folder of a running or stopped command, or a manifest. Without further options: type, sizes, origin, quantiles of
    document lengths, and the text of a few documents drawn from all of it.

    Tokens are separated by │, and control characters are escaped. The tokenizer is the one in the manifest, if it is
    unchanged; without a tokenizer, token ids are shown. Tokens of instruction data that are trained on are in brackets.

    Exit code 0: readable. 1: damaged; each finding is one line.

    Examples:
        dsindex inspect out/docs_text_document
        dsindex inspect out/docs_text_document --document 7
        dsindex inspect out/cache --sample 3
    """

    path: Folder = option("PATH", positional=True, kw_only=False)
    """A prefix, a file of a dataset or a folder, on a disk or in an object store."""
    document: int | None = option("I", default=None, group="what to show")
    """Show this document, counted from 0."""
    sample: int | None = option("K", default=None, group="what to show")
    """Show this training sample of an index cache, counted from 0."""
    tokens: int | None = option("N", default=None)
    """Show at most this many tokens of each document."""
    split: Literal["train", "valid", "test"] | None = option(default=None)
    """Split of the index cache."""
    data_path: OptionalDatasets = option("PREFIX", default=None)
    """Datasets of the index cache, if they have moved."""


Samples: TypeAlias = Parsed[int | Sequence[int] | None, tuple[int, ...] | None]
Steps: TypeAlias = Annotated[Parsed[int | str | None, tuple[int, int] | None], parse_steps]


class TraceConfig(DecodingConfig):
    """Show which documents a training sample or step consists of.

    Prints the documents and the input lines of a sample or step; with --consumed, how often the tokens of each dataset
    were read. Works on index caches of dsindex and Megatron, and on packs of `dsindex instruct` (P_packing_L).

    Samples and documents count from 0; steps, epochs and lines from 1. Token ranges such as 12:140 count from the
    document's first token and exclude the second number. A step is one iteration of Megatron with --dataloader-type
    single and a fixed --global-batch-size.

    Examples:
        dsindex trace out/cache --sample 3
        dsindex trace out/cache --step 1200 --global-batch-size 1024
        dsindex trace out/cache --consumed 400000
        dsindex trace out/chat_packing_4096 --sample 7
    """

    group: ClassVar = "steps"
    cache: Annotated[Folder, refuse_url] = option("CACHE", positional=True, kw_only=False, group="")
    """Folder of index caches, the description file of one, or packs."""
    split: str | None = option("NAME", default=None, group="")
    """train, valid or test (default: train)."""
    prefix: OptionalDatasets = option("P", default=None, group="")
    """Datasets in the order of the blend, if they have moved; on a disk or in an object store."""
    sample: Samples = option("K", default=None, group="what to trace, one of", excludes=("step", "consumed"))
    """Show these samples, counted from 0."""
    step: Steps = option(
        "S", default=None, group="what to trace, one of", needs=("global_batch_size",), excludes=("consumed",)
    )
    """Show all samples of a step, or of steps such as 10-19; needs --global-batch-size."""
    consumed: int | None = option("N", default=None, group="what to trace, one of")
    """Show how often the first N samples read the tokens of each dataset."""
    global_batch_size: int | None = option("N", default=None, ge=1)
    """Samples in a step."""
    text_tokens: int = option("N", default=32, group="output")
    """Show the text of the first N tokens of each document (default: 32)."""

    def _check_agreement(self) -> None:
        if self.sample is None and self.step is None and self.consumed is None:
            raise ValueError("give --sample, --step or --consumed")


class RawIndexConfig(Options):
    """Write the line index of a JSONL file for Modalities.

    Writes the offset and length of each line, byte for byte as Modalities' `create_raw_index` does.

    Every line must be JSON that Python's json.loads accepts; blank lines are faulty. The first faulty line is an error,
    unless --drop-faulty-entries leaves such lines out of the index.

    An existing file is never overwritten; if it already is the same index, the command succeeds.

    Examples:
        dsindex raw-index docs.jsonl --output docs.idx
    """

    file: Path = option("FILE.jsonl", positional=True, kw_only=False)
    """File to index."""
    output: OptionalPath = option("FILE.idx", default=None)
    """Index to write (default: FILE.idx)."""
    drop_faulty_entries: bool = option(default=False)
    """Leave out lines that are not JSON, and count them."""
