"""The options of `dsindex merge`."""

from __future__ import annotations

from typing import ClassVar

from dsindex.options.common import Output, TextDatasets, WorkConfig
from dsindex.options.model import option


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
    """Writes P.bin and P.idx, on a disk or in a bucket (s3://, gs://)."""
    shuffle_documents: int | None = option("SEED", default=None, excludes=("replace", "keep_shards"))
    """Write the documents in a random order, for readers that keep the order; P is on a disk and gets no manifest."""
