"""`dsindex.report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsindex.api.boundary import api_function, list_paths
from dsindex.api.progress import open_reporter
from dsindex.api.subjects import list_prefixes
from dsindex.api.tokenizers import tokenizer_in_place
from dsindex.jobs.index import IndexResult
from dsindex.jobs.instruct import InstructResult
from dsindex.options.config import validated
from dsindex.options.datasets import ReportConfig
from dsindex.tools.report import ReportResult, run_report

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from dsindex.api.progress import Progress
    from dsindex.api.subjects import Subjects
    from dsindex.api.tokenizers import TokenizerLike


@api_function(ReportConfig)
def report(
    prefix: Subjects,
    *,
    tokenizer: TokenizerLike | None = None,
    cache: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | IndexResult | None = None,
    progress: Progress = False,
    **options: Any,  # noqa: ANN401 - those of ReportConfig
) -> ReportResult:
    """Write one HTML page about datasets, as `dsindex report` does.

    Damage raises no exception: it is on the page, and `ok` is false. A file is replaced only if it is a report.

    Args:
        prefix: Datasets: prefixes, `.pbin` files or results. A result means all its datasets.
        tokenizer: The tokenizer of all datasets; that in each manifest if None.
        cache: Index caches of the datasets: their folders, or the result of `build_index`.
        progress: As for `build`.

    Raises:
        OptionsError: If the options are invalid.
        InputError: If there is no such dataset, or no cache of these datasets.
        OutputError: If `output` is someone else's file, or cannot be written.
    """
    paths = [split.prefix for split in prefix.splits] if isinstance(prefix, InstructResult) else None
    prefixes = list_prefixes("prefix", prefix) if paths is None else paths
    folders = cache.folders if isinstance(cache, IndexResult) else () if cache is None else list_paths("cache", cache)
    options |= {"prefix": prefixes, "cache": folders}
    with tokenizer_in_place(options, tokenizer) as placed, open_reporter(progress) as reporter:
        return run_report(validated(placed, ReportConfig), reporter=reporter)
