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
    input: Datasets = option(
        "the datasets, in the order of the output; here or in object stores",
        "PREFIX",
        kw_only=False,
        parse=list_text_prefixes,
    )
    output_prefix: Path = option("writes P.bin and P.idx, here or in a bucket (s3://, gs://)", "P", parse=locate_output)
