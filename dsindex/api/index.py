"""`dsindex.build_index`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from dsindex.api.boundary import OptionsError, api_function, given_options, join_connected_cluster
from dsindex.api.progress import open_reporter
from dsindex.api.results import IndexResult, Result, fields_of
from dsindex.api.subjects import list_text_prefixes
from dsindex.engine.start import start_with_nodes
from dsindex.jobs.index import run_index
from dsindex.options.config import validated
from dsindex.options.index import IndexConfig

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from dsindex.api.progress import Progress
    from dsindex.api.subjects import Subject

    Blend = Subject | Iterable[Subject | float]
    """A dataset, or datasets with weights before each or none."""

PATHS = ("data_path", "train_data_path", "valid_data_path", "test_data_path")


@api_function
def build_index(
    data_path: Blend | None = None,
    *,
    train_data_path: Blend | None = None,
    valid_data_path: Blend | None = None,
    test_data_path: Blend | None = None,
    data_args_path: str | os.PathLike[str] | None = None,
    per_split_data_args_path: str | os.PathLike[str] | None = None,
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
    multiple_validation_sets: bool = False,
    dataset_class: Literal["GPTDataset", "GPTFIMDataset"] = "GPTDataset",
    split: str | None = None,
    seed: int | None = None,
    data_cache_path: str | os.PathLike[str] | None = None,
    megatron_release: Literal["0.16", "0.17", "0.18", "0.19", "main", "nemo-automodel"] | None = None,
    job_tokenizer: Mapping[str, Any] | None = None,
    tokenizer_identifiers: str | os.PathLike[str] | None = None,
    like: str | os.PathLike[str] | None = None,
    dataset_path_as: Sequence[str] | None = None,
    per_dataset_sequences_path: str | os.PathLike[str] | None = None,
    no_extra_token: bool = False,
    keep_partial_validation: bool = False,
    mid_level_dataset_surplus: float = 0.005,
    layout: Literal["megatron", "bigscience"] = "megatron",
    final_epoch_threshold: float = 0.80,
    explain: bool = False,
    check: bool = False,
    executor: Literal["auto", "local", "processes", "ray"] = "auto",
    address: str | None = None,
    installed: bool = False,
    workers: int | None = None,
    shard_deadline: float | None = None,
    progress: Progress = False,
) -> IndexResult:
    """Build the index caches that a Megatron training job looks for, as `dsindex index` does.

    Args:
        data_path: A dataset, or a blend: `[0.3, "a", 0.7, "b"]` with weights, `["a", "b"]` in proportion to their
            lengths. Datasets are prefixes or results; a result with several datasets means all of them.
        train_data_path: The same for train only.
        valid_data_path: The same for valid only.
        test_data_path: The same for test only.
        data_args_path: A file with the words of `data_path`, as Megatron reads it.
        per_split_data_args_path: A JSON file with the words for each split, as Megatron reads it.
        seq_length: Tokens per sample, as in the job.
        epochs: Epochs to train for, fractions allowed; valid and test get one.
        num_samples: Samples of train, valid and test; None for one of them means one epoch.
        train_iters: Iterations that the job trains for; with `global_batch_size`, they determine the samples.
        train_samples: Samples that the job trains on, instead of `train_iters`.
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
        multiple_validation_sets: The datasets of `valid_data_path` are no blend.
        dataset_class: The job's class of datasets.
        split: Shares of train, valid and test, spelled as in the job, since the hash includes the text; "969, 30, 1" if
            None.
        seed: The job's seed; 1234 if None.
        data_cache_path: The job's cache folder; Megatron's default, beside the dataset, if None.
        megatron_release: The job's release of megatron-core, for `job_tokenizer`.
        job_tokenizer: The job's flags about its tokenizer, such as `{"tokenizer_type": "HuggingFaceTokenizer",
            "tokenizer_model": "gpt2"}`; nothing is loaded.
        tokenizer_identifiers: A JSON file with the tokenizer's `unique_identifiers` in the job's Megatron.
        like: A description from such a job, to take tokenizer, seed, sequence length and split from.
        dataset_path_as: Path of each dataset as the job types it, in order, or `HERE=THERE`.
        per_dataset_sequences_path: Where to write the file that the job reads with its flag of this name.
        no_extra_token: Samples of `seq_length` tokens, not one more.
        keep_partial_validation: Keep valid's last, partial sample.
        mid_level_dataset_surplus: The job's setting, for weighted blends.
        layout: Megatron-core's caches, or the files of BigScience's Megatron-DeepSpeed.
        final_epoch_threshold: Shuffle the final epoch separately if it has less than this share of an epoch's samples.
        explain: Build nothing; return in `findings` why the job would not find a cache.
        check: Build nothing; return what would be built, and its size.
        executor: As for `build`.
        address: The Ray cluster to join.
        installed: Do not send this process's code to the cluster's nodes; they have dsindex installed.
        workers: Number of concurrent tasks; all CPUs if None.
        shard_deadline: Seconds after which a task that is still running gets a second attempt.
        progress: As for `build`.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the job cannot be done as asked.
    """
    options = join_connected_cluster(given_options(build_index, locals()))
    options |= {name: blend_words(name, options[name]) for name in PATHS if name in options}
    config = validated(options, IndexConfig)
    with open_reporter(progress) as reporter:
        reporter.stage("index", total=1, unit="jobs")
        with contextlib.closing(start_with_nodes(config, reporter)) as tasks:
            report = run_index(config, executor=tasks)
        reporter.advance(1)
    return IndexResult(**fields_of(report))


def blend_words(option: str, blend: Any) -> tuple[str, ...]:  # noqa: ANN401 - anything the caller passed
    """Return prefixes and weights as on the command line.

    Raises:
        OptionsError: If something is neither, or a result with several datasets has one weight.
    """
    if isinstance(blend, str | os.PathLike | Result) or not isinstance(blend, Iterable):
        return tuple(list_text_prefixes(option, blend))
    words: list[str] = []
    after_weight = False
    for part in blend:
        if isinstance(part, int | float):
            words.append(repr(part))
            after_weight = True
            continue
        prefixes = list_text_prefixes(option, [part]) if not _is_number(part) else [str(part)]
        if after_weight and len(prefixes) > 1:
            msg = f"{option}: expected a weight for each dataset, got one for {len(prefixes)} ({', '.join(prefixes)})"
            raise OptionsError(msg)
        words += prefixes
        after_weight = False
    return tuple(words)


def _is_number(part: object) -> bool:
    """Tell whether a part is a weight written as a string, as on the command line."""
    try:
        float(part) if isinstance(part, str) else None
    except ValueError:
        return False
    return isinstance(part, str)
