"""`dsindex.build` and `dsindex.estimate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from workflows.api.boundary import api_function, given_options, join_connected_cluster, list_paths
from workflows.api.progress import open_reporter
from workflows.api.results import BuildResult, EstimateResult, IndexResult, fields_of
from workflows.api.tokenizers import tokenizer_in_place
from workflows.commands.build import split_options
from workflows.jobs.build import run_build
from workflows.jobs.estimate import run_plan

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence
    from fractions import Fraction

    from workflows.api.progress import Progress
    from workflows.api.tokenizers import TokenizerLike


@api_function
def build(
    input: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    tokenizer: TokenizerLike,
    output_prefix: str | os.PathLike[str],
    json_keys: Sequence[str] = ("text",),
    append_eod: bool = False,
    eod_token: str | None = None,
    tokenizer_hf_no_include_special_tokens: bool = False,
    engine: Literal["auto", "gigatoken", "tokenizers"] = "auto",
    on_bad_record: Literal["fail", "quarantine"] = "fail",
    max_bad_records: int | str | None = None,
    max_record_size: int | str | None = None,
    shard_size: int | str = "64MiB",
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
    split: str | None = None,
    seed: int | None = None,
    data_cache_path: str | os.PathLike[str] | None = None,
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
    """Tokenize JSONL and merge it into one dataset per key, as `dsindex build` does.

    The same call again continues where an interrupted one stopped, and returns at once when all is there. With one of
    the options from `seq_length` on, the index caches of every dataset are built as well.

    Args:
        input: JSONL files or patterns, in the order of the output.
        tokenizer: The folder of a tokenizer, its tokenizer.json, or a `tokenizers.Tokenizer`.
        output_prefix: Outputs are named `PREFIX_KEY_document.*`.
        json_keys: Keys whose texts are tokenized.
        append_eod: End every document with the EOD token.
        eod_token: The EOD token; the folder's `eos_token` if None. An object names none.
        tokenizer_hf_no_include_special_tokens: Leave the tokenizer's post-processor out.
        engine: What encodes; `auto` takes gigatoken where it gives the same tokens.
        on_bad_record: Stop at the first bad record, or set bad records aside.
        max_bad_records: Give up when more were set aside: a number, or a share such as "0.1%".
        max_record_size: A longer line is a bad record; a number of bytes, or a text such as "64MiB".
        shard_size: Bytes of input per shard.
        no_provenance: Leave out where documents came from.
        work_dir: Shards and ledger; `PREFIX.build` if None.
        keep_shards: Keep the work folder after success.
        fresh: Start over; what is there is replaced when the new output is whole.
        executor: `auto` is Ray if this process is connected to a cluster or one is named, else threads.
        address: The Ray cluster to join.
        installed: The cluster's nodes have dsindex: do not send them this one's code.
        workers: Tasks that run at once; all CPUs if None.
        shard_deadline: Seconds after which a slower task is dispatched a second time.
        seq_length: As for `build_index`, like all that follow.
        epochs: Epochs that the job trains on.
        num_samples: Samples of train, valid and test.
        train_iters: Iterations that the job trains for.
        train_samples: Samples that the job trains on.
        global_batch_size: Samples of an iteration.
        eval_interval: Iterations between validations.
        eval_iters: Iterations of a validation.
        full_validation: Each validation is one epoch of valid.
        split: Shares of train, valid and test.
        seed: The job's seed.
        data_cache_path: The job's cache folder.
        tokenizer_identifiers: A file with the tokenizer's identifiers in the job's Megatron.
        like: A description whose settings are taken.
        dataset_path_as: What the job types for the prefixes.
        no_extra_token: Samples of `seq_length` tokens.
        keep_partial_validation: Keep valid's last, partial sample.
        mid_level_dataset_surplus: The job's, for weighted blends.
        layout: Whose index files to write.
        final_epoch_threshold: When the final epoch is shuffled by itself.
        progress: True for what the command line shows; or a function that is given each Snapshot.

    Raises:
        OptionsError: If the options make no sense.
        DsindexError: For everything else that a user can mend; nothing is then under a final name.
    """
    options = join_connected_cluster(given_options(build, locals()))
    options["input"] = list_paths("input", input)
    with tokenizer_in_place(options) as placed:
        config, index = split_options(placed)
        with open_reporter(progress) as reporter:
            report = run_build(config, reporter=reporter, index=index)
    indices = tuple(IndexResult(**fields_of(of_dataset)) for of_dataset in report.indices)
    return BuildResult(**fields_of(report) | {"indices": indices})


@api_function
def estimate(
    input: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    tokenizer: TokenizerLike,
    output_prefix: str | os.PathLike[str],
    json_keys: Sequence[str] = ("text",),
    append_eod: bool = False,
    eod_token: str | None = None,
    tokenizer_hf_no_include_special_tokens: bool = False,
    engine: Literal["auto", "gigatoken", "tokenizers"] = "auto",
    on_bad_record: Literal["fail", "quarantine"] = "fail",
    max_bad_records: int | str | None = None,
    max_record_size: int | str | None = None,
    shard_size: int | str = "64MiB",
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
    """Say what `build` with the same options would make, take and cost, as `dsindex plan` does.

    Up to 64 MiB of the input are encoded and timed. Nothing is written, and no cluster is joined: for one, say its CPUs
    with `workers`. Options that do not change the estimate are checked and otherwise ignored.

    Args:
        input: As for `build`, like all others.
        tokenizer: The folder of a tokenizer, its tokenizer.json, or a `tokenizers.Tokenizer`.
        output_prefix: Where the build would write.
        json_keys: Keys whose texts are tokenized.
        append_eod: End every document with the EOD token.
        eod_token: The EOD token.
        tokenizer_hf_no_include_special_tokens: Leave the tokenizer's post-processor out.
        engine: What encodes.
        on_bad_record: What becomes of bad records.
        max_bad_records: How many may be set aside.
        max_record_size: A longer line is a bad record.
        shard_size: Bytes of input per shard.
        no_provenance: Leave out where documents came from.
        work_dir: Shards and ledger.
        keep_shards: Keep the work folder after success.
        fresh: Start over.
        executor: Where the build would run.
        address: The Ray cluster to join.
        installed: The cluster's nodes have dsindex.
        workers: Tasks that run at once.
        shard_deadline: When a slower task is dispatched a second time.
        index_options: Those options of `build` that say which index caches to build.

    Raises:
        OptionsError: If the options make no sense.
        DsindexError: If inputs or tokenizer cannot be used.
    """
    options = given_options(build, {name: value for name, value in locals().items() if name != "index_options"})
    options |= given_options(build, index_options)
    options["input"] = list_paths("input", input)
    with tokenizer_in_place(options) as placed:
        config, _ = split_options(placed)
        return EstimateResult(**fields_of(run_plan(config)))
