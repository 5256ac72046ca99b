"""The options of `dsindex merge`."""

from __future__ import annotations

from typing import ClassVar

from dsindex.options.common import Output, TextDatasets, WorkConfig
from dsindex.options.model import option


class MergeConfig(WorkConfig):
    r"""Merge datasets into one.

    Datasets of any program are merged in the order given: the .bin in parallel by ranges of the output, the .idx as a
    stream. Modes and all documents are kept, empty ones included. Datasets of different token types, or with and
    without modes, are refused by name.

    Inputs are prefixes: paths without .bin and .idx. They are merged in the order given, whereas Megatron's
    merge_datasets.py takes a folder's names in lexicographic order (_10 before _2).

    Examples:
        dsindex merge --input out/a_text_document out/b_text_document \
          --output-prefix out/all_text_document
    """

    group: ClassVar = ""
    input: TextDatasets = option("PREFIX", kw_only=False)
    """The datasets, in the order of the output; here or in object stores."""
    output_prefix: Output = option("P")
    """Writes P.bin and P.idx, here or in a bucket (s3://, gs://)."""
