"""The options of `dsindex merge`."""

from __future__ import annotations

from typing import ClassVar

from dsindex.datasets.subjects import list_text_prefixes
from dsindex.options.config import Datasets, Path, WorkConfig
from dsindex.options.model import option
from dsindex.store.urls import locate_output


class MergeConfig(WorkConfig):
    """`dsindex merge`: many datasets to one."""

    group: ClassVar = ""
    input: Datasets = option("PREFIX", kw_only=False, parse=list_text_prefixes)
    """The datasets, in the order of the output; here or in object stores."""
    output_prefix: Path = option("P", parse=locate_output)
    """Writes P.bin and P.idx, here or in a bucket (s3://, gs://)."""
