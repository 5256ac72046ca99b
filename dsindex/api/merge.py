"""`dsindex.merge`, `dsindex.convert` and `dsindex.export`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsindex.api.boundary import api_function, join_connected_cluster, plain_value, seen_from_anywhere
from dsindex.api.progress import open_reporter
from dsindex.api.subjects import find_prefix, list_text_prefixes
from dsindex.jobs.conversion import ConvertResult, convert_dataset
from dsindex.jobs.merge import MergeResult, run_merge
from dsindex.options.config import validated
from dsindex.options.datasets import ConvertCommand, ConvertConfig
from dsindex.options.merge import MergeConfig

if TYPE_CHECKING:
    import os

    from dsindex.api.progress import Progress
    from dsindex.api.subjects import Subject, Subjects


@api_function(MergeConfig)
def merge(
    input: Subjects,
    *,
    progress: Progress = False,
    **options: Any,  # noqa: ANN401 - those of MergeConfig
) -> MergeResult:
    """Merge MMIDIDX datasets into one, as `dsindex merge` does.

    Args:
        input: The datasets in the order of the output: prefixes, or results. A result means all its datasets.
        progress: As for `build`.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the job cannot be done as asked; final names then never refer to incomplete files.
    """
    config = validated(join_connected_cluster(options) | {"input": list_text_prefixes("input", input)}, MergeConfig)
    with open_reporter(progress) as reporter:
        return run_merge(config, reporter=reporter)


@api_function(ConvertConfig)
def convert(
    source: Subject,
    destination: str | os.PathLike[str],
    *,
    progress: Progress = False,
    **options: Any,  # noqa: ANN401 - those of ConvertConfig
) -> ConvertResult:
    """Convert a dataset without loss, as `dsindex convert` does: MMIDIDX to `.pbin` or back, or between `.pbin`s.

    Args:
        source: A prefix, a `.pbin`, or a result with one dataset.
        destination: A `.pbin`, or a prefix; it must not exist.
        progress: As for `build`.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the job cannot be done as asked; final names then never refer to incomplete files.
    """
    names = {"source": find_prefix("source", source), "destination": plain_value(destination)}
    config = validated(join_connected_cluster(options) | names, ConvertCommand)
    placed = {name: seen_from_anywhere(config, getattr(config, name)) for name in names}
    with open_reporter(progress) as reporter:
        reporter.stage("convert", total=1, unit="datasets")
        conversion = convert_dataset(config.model_copy(update=placed))
        reporter.advance(1)
    return conversion
