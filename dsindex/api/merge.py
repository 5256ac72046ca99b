"""`dsindex.merge` and `dsindex.convert`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dsindex.api.boundary import api_function, given_options, join_connected_cluster, plain_value, seen_from_anywhere
from dsindex.api.progress import open_reporter
from dsindex.api.results import ConvertResult, MergeResult, fields_of
from dsindex.api.subjects import find_prefix, list_text_prefixes
from dsindex.jobs.conversion import ConvertConfig, convert_dataset
from dsindex.jobs.merge import run_merge
from dsindex.options.config import validated
from dsindex.options.merge import MergeConfig

if TYPE_CHECKING:
    import os

    from dsindex.api.progress import Progress
    from dsindex.api.subjects import Subject, Subjects


@api_function
def merge(
    input: Subjects,
    *,
    output_prefix: str | os.PathLike[str],
    endpoint_url: str | None = None,
    region: str | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    keep_shards: bool = False,
    fresh: bool = False,
    executor: Literal["auto", "local", "processes", "ray"] = "auto",
    address: str | None = None,
    installed: bool = False,
    workers: int | None = None,
    shard_deadline: float | None = None,
    progress: Progress = False,
) -> MergeResult:
    """Merge MMIDIDX datasets into one, as `dsindex merge` does.

    Args:
        input: The datasets in the order of the output: prefixes, or results. A result means all its datasets.
        output_prefix: Writes `PREFIX.bin` and `PREFIX.idx`, here or in a bucket (`s3://`, `gs://`).
        endpoint_url: Server of `s3://`; `AWS_ENDPOINT_URL` or Amazon's own if None.
        region: Region of the buckets; `AWS_REGION` or us-east-1 if None.
        work_dir: Work folder; `PREFIX.build` if None.
        keep_shards: Keep the work folder after success.
        fresh: Start over; the old output is replaced when the new one is complete.
        executor: As for `build`.
        address: The Ray cluster to join.
        installed: Do not send this process's code to the cluster's nodes; they have dsindex installed.
        workers: Number of concurrent tasks; all CPUs if None.
        shard_deadline: Seconds after which a task that is still running gets a second attempt.
        progress: As for `build`.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the job cannot be done as asked; final names then never refer to incomplete files.
    """
    options = join_connected_cluster(given_options(merge, locals()))
    options["input"] = tuple(list_text_prefixes("input", input))
    config = validated(options, MergeConfig)
    with open_reporter(progress) as reporter:
        return MergeResult(**fields_of(run_merge(config, reporter=reporter)))


@api_function
def convert(
    source: Subject,
    destination: str | os.PathLike[str],
    *,
    pbin_era: Literal["spec", "2024-01-30", "2024-04", "current"] | None = None,
    flatten: bool = False,
    token_type: Literal["uint8", "uint16", "int32"] | None = None,
    executor: Literal["auto", "local", "processes", "ray"] = "auto",
    address: str | None = None,
    installed: bool = False,
    workers: int | None = None,
    shard_deadline: float | None = None,
    progress: Progress = False,
) -> ConvertResult:
    """Convert a dataset without loss, as `dsindex convert` does: MMIDIDX to `.pbin` or back, or between `.pbin`s.

    Args:
        source: A prefix, a `.pbin`, or a result with one dataset.
        destination: A `.pbin`, or a prefix; it must not exist.
        pbin_era: Version of the `.pbin` to write; current if None.
        flatten: Join the sequences of each document.
        token_type: Token type of the MMIDIDX dataset to write; by the token size of the source if None.
        executor: As for `build`.
        address: The Ray cluster to join.
        installed: Do not send this process's code to the cluster's nodes; they have dsindex installed.
        workers: Number of concurrent tasks; all CPUs if None.
        shard_deadline: Seconds after which a task that is still running gets a second attempt.
        progress: As for `build`.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the job cannot be done as asked; final names then never refer to incomplete files.
    """
    options = join_connected_cluster(given_options(convert, locals()))
    target = str(plain_value(options.pop("destination")))
    options.pop("source")
    found = find_prefix("source", source)
    config = validated(options, ConvertConfig)
    with open_reporter(progress) as reporter:
        reporter.stage("convert", total=1, unit="datasets")
        conversion = convert_dataset(
            config,
            source=seen_from_anywhere(config, found),
            destination=seen_from_anywhere(config, target),
        )
        reporter.advance(1)
    return ConvertResult(**fields_of(conversion))
