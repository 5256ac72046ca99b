"""`dsindex.pack`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dsindex.api.boundary import api_function, given_options, join_connected_cluster, list_given_paths
from dsindex.api.progress import open_reporter
from dsindex.api.results import PackResult, fields_of
from dsindex.api.tokenizers import tokenizer_in_place
from dsindex.jobs.pack import run_pack
from dsindex.options.config import validated
from dsindex.options.pack import PackConfig

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from dsindex.api.progress import Progress
    from dsindex.api.tokenizers import TokenizerLike


@api_function
def pack(
    input: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    *,
    input_list: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    input_split: str | None = None,
    input_format: Literal["auto", "jsonl", "lines", "document", "csv", "tsv"] = "auto",
    endpoint_url: str | None = None,
    region: str | None = None,
    tokenizer: TokenizerLike,
    output: str | os.PathLike[str],
    eod_token: str | None = None,
    jq_pattern: str = ".text",
    pbin_era: Literal["spec", "2024-01-30", "2024-04", "current"] = "current",
    tokenizer_hf_no_include_special_tokens: bool = False,
    engine: Literal["auto", "gigatoken", "reference", "tokenizers"] = "auto",
    on_bad_record: Literal["fail", "quarantine"] = "fail",
    on_bad_input: Literal["fail", "skip-file"] = "fail",
    max_bad_records: int | str | None = None,
    max_record_size: int | str | None = None,
    shard_size: int | str | None = None,
    no_provenance: bool = False,
    work_dir: str | os.PathLike[str] | None = None,
    keep_shards: bool = False,
    fresh: bool = False,
    executor: Literal["auto", "local", "processes", "ray"] = "auto",
    address: str | None = None,
    installed: bool = False,
    workers: int | None = None,
    shard_deadline: float | None = None,
    progress: Progress = False,
) -> PackResult:
    """Tokenize text into packed data for Modalities, as `dsindex pack` does.

    Args:
        input: Files (JSONL, compressed or not, tables), patterns or folders, in the order of the output, also
            addresses in object stores; `-` is standard input.
        input_list: Files that list inputs, one path per line, which come after `input`.
        input_split: The split to take from a folder that has several; `all` for every split.
        input_format: What the inputs hold that are not Parquet or Arrow: JSON lines, plain text with a document per
            line or per file, or CSV; `auto` goes by their names.
        endpoint_url: Server of `s3://` inputs; `AWS_ENDPOINT_URL` or Amazon's own if None.
        region: Region of `s3://` inputs; `AWS_REGION` or us-east-1 if None.
        tokenizer: The folder of a tokenizer, its tokenizer.json, or a `tokenizers.Tokenizer`.
        output: Path of the `.pbin`.
        eod_token: Ends every document; the folder's `eos_token` if None. Tokenizer objects name none.
        jq_pattern: Selects the text of a record; anything but a single key runs per record, which is slower.
        pbin_era: Version of the `.pbin`, by when Modalities wrote it.
        tokenizer_hf_no_include_special_tokens: Do not run the tokenizer's post-processor.
        engine: Tokenizer engine; `auto` uses gigatoken if it returns the same tokens.
        on_bad_record: Stop at the first bad record, or quarantine bad records.
        on_bad_input: Whether a damaged input ends the job or is left out as a whole.
        max_bad_records: Stop if more are quarantined: a number, or a share such as "0.1%".
        max_record_size: A longer line is a bad record.
        shard_size: Bytes of input per shard; by the size of the inputs if None.
        no_provenance: Do not record provenance.
        work_dir: Work folder; beside the output, as `.build`, if None.
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
    options = join_connected_cluster(given_options(pack, locals()))
    list_given_paths(options, "input", "input_list")
    with tokenizer_in_place(options) as placed:
        config = validated(placed, PackConfig)
        with open_reporter(progress) as reporter:
            return PackResult(**fields_of(run_pack(config, reporter=reporter)))
