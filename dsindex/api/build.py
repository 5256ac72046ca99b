"""`dsindex.build` and `dsindex.estimate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from dsindex.api.boundary import api_function, given_options, join_connected_cluster, list_given_paths
from dsindex.api.progress import open_reporter
from dsindex.api.results import BuildResult, EstimateResult, IndexResult, fields_of
from dsindex.api.tokenizers import tokenizer_in_place
from dsindex.jobs.build import run_build
from dsindex.options.index import split_options
from dsindex.text.conversion.tiktoken import MEGATRON_SPECIAL_TOKENS
from dsindex.tools.estimate import run_plan

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence
    from fractions import Fraction

    from dsindex.api.progress import Progress
    from dsindex.api.tokenizers import TokenizerLike
    from dsindex.text.tokenizer_file import TokenizerType


@api_function
def build(
    input: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    *,
    input_list: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    input_split: str | None = None,
    input_format: Literal["auto", "jsonl", "lines", "document", "csv", "tsv"] = "auto",
    endpoint_url: str | None = None,
    region: str | None = None,
    tokenizer: TokenizerLike,
    output_prefix: str | os.PathLike[str],
    json_keys: Sequence[str] = ("text",),
    join: str | None = None,
    where: str | None = None,
    token_ids: str | None = None,
    append_eod: bool = False,
    empty_documents: Literal["keep", "eod"] = "keep",
    shuffle_documents: int | None = None,
    sample: float | str | None = None,
    repeat: Sequence[str] | Mapping[str, float] = (),
    eod_token: str | None = None,
    tokenizer_hf_no_include_special_tokens: bool = False,
    tokenizer_type: TokenizerType | None = None,
    vocab_file: str | os.PathLike[str] | None = None,
    merge_file: str | os.PathLike[str] | None = None,
    tiktoken_encoding: str | None = None,
    tiktoken_pattern: Literal["v1", "v2"] = "v2",
    tiktoken_num_special_tokens: int = 1000,
    vocab_size: int | None = None,
    tokenizer_special_tokens: Sequence[str] = MEGATRON_SPECIAL_TOKENS,
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
    seq_length: int | None = None,
    epochs: float | str | Fraction | None = None,
    num_samples: int | str | Sequence[int | None] | None = None,
    train_iters: int | None = None,
    train_samples: int | None = None,
    global_batch_size: int | None = None,
    eval_interval: int | None = None,
    eval_iters: int = 100,
    full_validation: bool = False,
    skip_train: bool = False,
    start_eval_at_iter: int | None = None,
    eval_global_batch_size: int | None = None,
    phase_transition_iterations: Sequence[int] = (),
    rampup_batch_size: Sequence[int] | None = None,
    step_batch_size_schedule: str | None = None,
    dataset_class: Literal["GPTDataset", "GPTFIMDataset"] = "GPTDataset",
    split: str | None = None,
    seed: int | None = None,
    data_cache_path: str | os.PathLike[str] | None = None,
    megatron_release: Literal["0.16", "0.17", "0.18", "0.19", "main", "nemo-automodel"] | None = None,
    job_tokenizer: Mapping[str, Any] | None = None,
    tokenizer_identifiers: str | os.PathLike[str] | None = None,
    like: str | os.PathLike[str] | None = None,
    dataset_path_as: Sequence[str] | None = None,
    no_extra_token: bool = False,
    keep_partial_validation: bool = False,
    mid_level_dataset_surplus: float = 0.005,
    layout: Literal["megatron", "bigscience"] = "megatron",
    final_epoch_threshold: float = 0.80,
    progress: Progress = False,
) -> BuildResult:
    """Tokenize text and merge it into one dataset per key, as `dsindex build` does.

    Repeating an interrupted call continues it; repeating a finished one returns at once. With any of the options from
    `seq_length` on, the index caches of every dataset are built as well.

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
        output_prefix: Outputs are named `PREFIX_KEY_document.*`.
        json_keys: Keys whose texts are tokenized: names, paths such as `.meta.text`, or jq patterns such as
            `body=.title + .text`.
        join: Separator with which the texts of all keys become one. Its escapes are decoded, so that a backslash is
            written twice.
        where: A jq condition; records for which it is not true are left out.
        token_ids: The name or path of lists of token ids, instead of `json_keys`.
        append_eod: End every document with EOD.
        empty_documents: What a document without tokens becomes: an empty document, or, with `append_eod`, EOD alone.
        shuffle_documents: Put the documents of all inputs into a random order; the seed.
        sample: Keep this share of the records, chosen by a hash of their texts: 0.1 or "10%".
        repeat: Read inputs several times or in part: {"a.jsonl": 2.5}, or entries "a.jsonl=2.5".
        eod_token: The EOD token; the folder's `eos_token` if None. Tokenizer objects name none.
        tokenizer_hf_no_include_special_tokens: Do not run the tokenizer's post-processor.
        tokenizer_type: Megatron's name of the kind of tokenizer, checked against the file.
        vocab_file: GPT-2's vocab.json; it and `merge_file` take the place of the tokenizer.
        merge_file: GPT-2's merges.txt.
        tiktoken_encoding: Pattern and special tokens of a tiktoken file whose name does not say them.
        tiktoken_pattern: Pattern of Megatron's TikTokenizer.
        tiktoken_num_special_tokens: Special tokens of Megatron's TikTokenizer.
        vocab_size: Vocabulary of Megatron's TikTokenizer with its special tokens; 131,072 if None.
        tokenizer_special_tokens: The first special tokens of Megatron's TikTokenizer.
        engine: Tokenizer engine; `auto` uses gigatoken if it returns the same tokens.
        on_bad_record: Stop at the first bad record, or quarantine bad records.
        on_bad_input: Whether a damaged input ends the job or is left out as a whole.
        max_bad_records: Stop if more are quarantined: a number, or a share such as "0.1%".
        max_record_size: A longer line is a bad record; bytes, or a text such as "64MiB".
        shard_size: Bytes of input per shard; by the size of the inputs if None.
        no_provenance: Do not record provenance.
        work_dir: Work folder; `PREFIX.build` if None.
        keep_shards: Keep the work folder after success.
        fresh: Start over; the old output is replaced when the new one is complete.
        executor: `auto` is Ray if this process is connected to a cluster or `address` is set, else threads.
        address: The Ray cluster to join.
        installed: Do not send this process's code to the cluster's nodes; they have dsindex installed.
        workers: Number of concurrent tasks; all CPUs if None.
        shard_deadline: Seconds after which a task that is still running gets a second attempt.
        seq_length: As for `build_index`, as are all that follow.
        epochs: Epochs that the job trains for.
        num_samples: Samples of train, valid and test.
        train_iters: Iterations that the job trains for.
        train_samples: Samples that the job trains on.
        global_batch_size: Samples per iteration.
        eval_interval: Iterations between validations.
        eval_iters: Iterations per validation.
        full_validation: Each validation is one epoch of valid.
        skip_train: The job only validates, once.
        start_eval_at_iter: The iteration from which on the job validates.
        eval_global_batch_size: Samples per iteration of a validation.
        phase_transition_iterations: Iterations at which the job's phases end; each phase has caches of its own.
        rampup_batch_size: First batch size, increment and samples, as in the job; ignored by Megatron from 0.18 on.
        step_batch_size_schedule: The job's schedule, such as `"0:768 250B:1536"`.
        dataset_class: The job's class of datasets.
        split: Shares of train, valid and test.
        seed: The job's seed.
        data_cache_path: The job's cache folder.
        megatron_release: The job's release of megatron-core, for `job_tokenizer`.
        job_tokenizer: The job's flags about its tokenizer, as for `build_index`.
        tokenizer_identifiers: A file with the tokenizer's identifiers in the job's Megatron.
        like: A description to take settings from.
        dataset_path_as: Paths of the datasets as the job types them.
        no_extra_token: Samples of `seq_length` tokens.
        keep_partial_validation: Keep valid's last, partial sample.
        mid_level_dataset_surplus: The job's setting, for weighted blends.
        layout: Format of the index files.
        final_epoch_threshold: Share of an epoch below which the final one is shuffled separately.
        progress: True to show progress as the command line does, or a function to call with each Snapshot.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the job cannot be done as asked; final names then never refer to incomplete files.
    """
    options = join_connected_cluster(given_options(build, locals()))
    list_given_paths(options, "input", "input_list")
    with tokenizer_in_place(options) as placed:
        config, index = split_options(placed)
        with open_reporter(progress) as reporter:
            report = run_build(config, reporter=reporter, index=index)
    indices = tuple(IndexResult(**fields_of(of_dataset)) for of_dataset in report.indices)
    return BuildResult(**fields_of(report) | {"indices": indices})


@api_function
def estimate(
    input: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    *,
    input_list: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    input_split: str | None = None,
    input_format: Literal["auto", "jsonl", "lines", "document", "csv", "tsv"] = "auto",
    endpoint_url: str | None = None,
    region: str | None = None,
    tokenizer: TokenizerLike,
    output_prefix: str | os.PathLike[str],
    json_keys: Sequence[str] = ("text",),
    join: str | None = None,
    where: str | None = None,
    token_ids: str | None = None,
    append_eod: bool = False,
    empty_documents: Literal["keep", "eod"] = "keep",
    shuffle_documents: int | None = None,
    sample: float | str | None = None,
    repeat: Sequence[str] | Mapping[str, float] = (),
    eod_token: str | None = None,
    tokenizer_hf_no_include_special_tokens: bool = False,
    tokenizer_type: TokenizerType | None = None,
    vocab_file: str | os.PathLike[str] | None = None,
    merge_file: str | os.PathLike[str] | None = None,
    tiktoken_encoding: str | None = None,
    tiktoken_pattern: Literal["v1", "v2"] = "v2",
    tiktoken_num_special_tokens: int = 1000,
    vocab_size: int | None = None,
    tokenizer_special_tokens: Sequence[str] = MEGATRON_SPECIAL_TOKENS,
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
    **index_options: Any,  # noqa: ANN401 - those of `build`, by name
) -> EstimateResult:
    """Estimate the output, time, memory and disk space of `build` with the same options, as `dsindex plan` does.

    Up to 64 MiB of the input are tokenized and timed. Nothing is written and no cluster is joined; for a cluster, set
    `workers` to its CPUs. Options that do not affect the estimate are validated and otherwise ignored.

    Args:
        input: As for `build`, as are all others.
        input_list: Files that list inputs.
        input_split: The split to take from a folder.
        input_format: What the inputs hold.
        endpoint_url: Server of `s3://` inputs.
        region: Region of `s3://` inputs.
        tokenizer: The folder of a tokenizer, its tokenizer.json, or a `tokenizers.Tokenizer`.
        output_prefix: Where the build would write.
        json_keys: Keys whose texts are tokenized.
        join: Separator with which the texts of all keys become one.
        where: A jq condition on records.
        token_ids: The name or path of lists of token ids, instead of `json_keys`.
        append_eod: End every document with EOD.
        empty_documents: What a document without tokens becomes.
        shuffle_documents: The seed of the documents' order.
        sample: Share of the records to keep.
        repeat: How often inputs are read.
        eod_token: The EOD token.
        tokenizer_hf_no_include_special_tokens: Do not run the tokenizer's post-processor.
        tokenizer_type: Megatron's name of the kind of tokenizer, checked against the file.
        vocab_file: GPT-2's vocab.json; it and `merge_file` take the place of the tokenizer.
        merge_file: GPT-2's merges.txt.
        tiktoken_encoding: Pattern and special tokens of a tiktoken file whose name does not say them.
        tiktoken_pattern: Pattern of Megatron's TikTokenizer.
        tiktoken_num_special_tokens: Special tokens of Megatron's TikTokenizer.
        vocab_size: Vocabulary of Megatron's TikTokenizer with its special tokens; 131,072 if None.
        tokenizer_special_tokens: The first special tokens of Megatron's TikTokenizer.
        engine: Tokenizer engine.
        on_bad_record: Stop at bad records, or quarantine them.
        on_bad_input: Whether a damaged input ends the job or is left out as a whole.
        max_bad_records: How many may be quarantined.
        max_record_size: A longer line is a bad record.
        shard_size: Bytes of input per shard; by the size of the inputs if None.
        no_provenance: Do not record provenance.
        work_dir: Work folder.
        keep_shards: Keep the work folder after success.
        fresh: Start over.
        executor: Where the build would run.
        address: The Ray cluster to join.
        installed: The cluster's nodes have dsindex installed.
        workers: Number of concurrent tasks.
        shard_deadline: Seconds after which a task gets a second attempt.
        index_options: The options of `build` for index caches.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the inputs or the tokenizer cannot be used.
    """
    options = given_options(build, {name: value for name, value in locals().items() if name != "index_options"})
    options |= given_options(build, index_options)
    list_given_paths(options, "input", "input_list")
    with tokenizer_in_place(options) as placed:
        config, _ = split_options(placed)
        return EstimateResult(**fields_of(run_plan(config)))
