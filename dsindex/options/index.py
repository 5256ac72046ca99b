"""The options of `dsindex index`, under Megatron's names where Megatron has them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from dsindex.datasets.arguments import AnyDataset, Result, list_text_prefixes
from dsindex.errors import UsageError
from dsindex.megatron.flags import MID_LEVEL_SURPLUS, JobTokenizer, Release
from dsindex.megatron.pretrain_command import TOKENIZER_NAMES, JobCommand, merge_command, read_command
from dsindex.messages import show_value, split_unit
from dsindex.options.common import ExecutorConfig, OptionalLocalPath, OptionalPath, Path, TrainingLength
from dsindex.options.model import Options, Parsed, option
from dsindex.options.numbers import MEGATRON_COUNT
from dsindex.store.urls import refuse_url

DOCUMENT_ORDERS: dict[str, Literal["together", "never"]]
DOCUMENT_ORDERS = {"shuffled": "together", "packed": "together", "length": "never"}
"""Order of documents → how samples are shuffled by default."""
DEFAULT_SPLIT = "969, 30, 1"
"""Megatron's default. Its spaces matter: they are part of the hash."""

BATCH_SIZES = "global_batch_size or rampup_batch_size or step_batch_size_schedule"
SPLIT_PATHS = ("train_data_path", "valid_data_path", "test_data_path", "per_split_data_args_path")
"""Options with the paths of a split."""

MEGATRONS = (
    *("megatron_release", "tokenizer_identifiers", "job_tokenizer", "like", "plain_names", "fim_data", "command"),
    *("continue_from", "blend_schedule", "multiple_validation_sets", "no_extra_token", "keep_partial_validation"),
    *("mid_level_dataset_surplus", "train_samples", "test_data_path", "rampup_batch_size", "step_batch_size_schedule"),
    *("phase_transition_iterations", "full_validation"),
)
"""Options that mean nothing to MaxText."""

Blend: TypeAlias = AnyDataset | Iterable[AnyDataset | float]
"""A dataset, or several: either each has its weight before it, or none has a weight."""
Counts: TypeAlias = tuple[int | None, int | None, int | None]


class TokenizerFlags(Options):
    """The flags of a job's tokenizer, which the names of Megatron's caches depend on; its other flags follow --."""

    group: ClassVar = "the job's tokenizer"
    tokenizer_type: str | None = option("TYPE", default=None)
    """The job's kind, such as HuggingFaceTokenizer."""
    tokenizer_model: str | None = option("X", default=None)
    """Its path or name, spelled as in the job."""
    vocab_file: str | None = option("PATH", default=None)
    """The vocabulary of a GPT2BPETokenizer or a Bert tokenizer."""
    merge_file: str | None = option("PATH", default=None)
    """The merges of a GPT2BPETokenizer."""
    vocab_size: int | None = option("N", default=None)
    """The size of a NullTokenizer or TikTokenizer."""


def _place_tokenizer(values: dict[str, Any]) -> None:
    """Collect the tokenizer's flags into one option, or drop them if the names of caches do not depend on them."""
    flags = {name: values.pop(name) for name in TOKENIZER_NAMES if name in values}
    is_named_otherwise = any(values.get(name) for name in ("like", "tokenizer_identifiers", "plain_names"))
    if flags and (values.get("megatron_release") is not None or not is_named_otherwise):
        values["job_tokenizer"] = flags


def parse_blend(value: Blend) -> tuple[str, ...]:
    """Return prefixes and weights as on the command line: `W1 P1 W2 P2`, or prefixes alone."""
    if isinstance(value, str):
        value = value.split()
    words: list[str] = []
    for part in [value] if isinstance(value, os.PathLike | Result) else value:
        words += [str(part)] if isinstance(part, int | float) else list_text_prefixes(part)
    return tuple(words)


Words: TypeAlias = Annotated[Parsed[Blend | None, tuple[str, ...] | None], parse_blend]


def _parse_samples(value: int | Sequence[int | str | None]) -> Counts:
    """Read three numbers; `none` or a missing one means one epoch."""
    words = [value] if isinstance(value, int) else list(value)
    counts = [None if str(text).lower() in {"none", "null"} else text for text in words]
    if not 1 <= len(counts) <= 3 or not all(word is None or re.fullmatch(r"[0-9]{1,18}", str(word)) for word in counts):
        list_text = show_value(",".join(map(str, words)))
        raise ValueError(f"{list_text} is not one to three numbers of samples, or none, as in 1000,none,0")
    first, second, third = ([None if word is None else int(word) for word in counts] + [None, None])[:3]
    return first, second, third


NumSamples: TypeAlias = Annotated[Parsed[int | str | Sequence[int | None] | None, Counts | None], _parse_samples]


def _parse_epochs(value: object) -> Fraction:
    number, unit = (value, "") if isinstance(value, Fraction) else split_unit(str(value))
    if number is None or unit or not 0 < number <= MEGATRON_COUNT:
        raise ValueError(f"{show_value(value)} is not a number of epochs such as 2 or 2.5")
    return number


Epochs: TypeAlias = Annotated[Parsed[Fraction | float | str | None, Fraction | None], _parse_epochs]


def _parse_order(value: object) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if text not in DOCUMENT_ORDERS and not text.endswith((".npy", ".parquet")):
        raise ValueError(f"{show_value(value)} is not {', '.join(DOCUMENT_ORDERS)}, or a .npy or .parquet file")
    return text if text in DOCUMENT_ORDERS else refuse_url(text)


DocumentOrder: TypeAlias = Annotated[Path, _parse_order]


def _check_tokenizer_flags(value: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse unknown flags; their types are checked together with the options."""
    return asdict(JobTokenizer(**value))


TokenizerOfJob: TypeAlias = Annotated[Parsed[Mapping[str, Any] | None, JobTokenizer | None], _check_tokenizer_flags]


class IndexBasics(TrainingLength):
    """What the index caches of nearly every job depend on; a build has these options, too."""

    group: ClassVar = "samples"
    seq_length: int | None = option("L", default=None, ge=2, le=MEGATRON_COUNT - 1)
    """The job's --seq-length: tokens per sample."""
    epochs: Epochs = option("E", default=None)
    """Train on E epochs, fractions allowed, and valid and test on one; the number of samples is in the description."""
    num_samples: NumSamples = option("N[,N,N]", default=None, separator=",")
    """Samples of train, valid and test, as the job requests them; `none` or a missing number means one epoch."""
    eval_interval: int | None = option("N", default=None, ge=1)
    """Iterations between validations."""
    eval_iters: int = option("N", default=100)
    """Iterations per validation (default: 100)."""
    split: str | None = option("S", default=None, group="order", excludes=SPLIT_PATHS)
    """Shares of train, valid and test, spelled as in the job (default: '969, 30, 1')."""
    seed: int | None = option("N", default=None, le=2**32 - 1, group="order")
    """The job's --seed (default: 1234)."""
    document_order: DocumentOrder = option("ORDER", default="shuffled", group="order")
    """`shuffled`, Megatron's order; `packed`, in which samples end where documents end and almost no document is
    split; `length`, the shortest first; or a .npy or .parquet with the numbers of the documents (default:
    shuffled)."""
    data_cache_path: OptionalLocalPath = option("D", default=None, group="names")
    """The job's cache folder (default: P/cache/GPTDataset_indices)."""
    megatron_release: Release | None = option(default=None, group="names", needs=("job_tokenizer or like",))
    """The job's release of megatron-core, by which the flags of its tokenizer become part of the names."""
    like: OptionalPath = option("DESCRIPTION.txt", default=None, group="names")
    """Take tokenizer, seed, sequence length and split from a description that the job wrote; flags override it."""
    plain_names: bool = option(default=False, group="names", excludes=("megatron_release", "like"))
    """Name caches after their datasets, for a reader of your own: no Megatron job finds them."""


class SampleOrder(Options):
    """Options for the order of samples."""

    group: ClassVar = "order"
    document_order_splits: tuple[Literal["train", "valid", "test"], ...] = option("SPLIT", default=("train",))
    """Splits that --document-order arranges (default: train)."""
    shuffle_epochs: Literal["together", "separately", "never"] | None = option(default=None)
    """together: shuffle the samples of all epochs, as Megatron does. separately: shuffle within each epoch. never: keep
    the order of the documents (default: together; never for the orders `length` and FILE)."""
    no_extra_token: bool = option(default=False)
    """Samples of L tokens, not L + 1 (rare in Megatron)."""
    keep_partial_validation: bool = option(default=False)
    """Keep valid's last, partial sample."""
    mid_level_dataset_surplus: float = option("X", default=MID_LEVEL_SURPLUS, le=2**31)
    """The job's value, for weighted blends (default: 0.005)."""


class ScheduleConfig(Options):
    """Flags of validation and batch schedules that few jobs have."""

    group: ClassVar = "samples"
    full_validation: bool = option(default=False)
    """Each validation is one epoch of valid."""
    skip_train: bool = option(default=False)
    """The job only validates, once, as with its --skip-train."""
    start_eval_at_iter: int | None = option("N", default=None)
    """The job validates from this iteration on."""
    eval_global_batch_size: int | None = option("N", default=None, ge=1)
    """Samples per iteration of a validation, from 0.18 on."""
    phase_transition_iterations: Parsed[int | str | Sequence[int], tuple[int, ...]] = option(
        "N,N", default=(), separator=","
    )
    """Iterations at which the job begins a new phase. Each phase has its own caches, and all are built."""
    rampup_batch_size: Parsed[str | Sequence[int] | None, tuple[int, int, int] | None] = option(
        "N", default=None, separator=" "
    )
    """FIRST STEP SAMPLES, up to 0.17; later releases ignore it."""
    step_batch_size_schedule: str | None = option("'0:N N:N'", default=None)
    """The job's schedule of batch sizes, from 0.18 on. As --global-batch-size, give the number that the job prints
    after `setting global batch size to`."""


class ContinuationConfig(Options):
    """Options of caches that continue another job, or whose blend weights change during the run."""

    group: ClassVar = "over time"
    continue_from: OptionalLocalPath = option("CACHE", default=None, needs=("consumed_samples", "data_cache_path"))
    """Cache folder of the first job, or its description. The new caches begin with the samples that the first job has
    read; then come its unread samples, by this job's weights, datasets and number of samples."""
    consumed_samples: int | None = option("N", default=None, needs=("continue_from", BATCH_SIZES))
    """How many samples the first job has read: `consumed samples` in its log, a multiple of --global-batch-size."""
    blend_schedule: str | None = option("'P:W,W P:W,W'", default=None, needs=("data_cache_path",))
    """Weights that change during the run, at positions in samples, tokens or shares of the run, as in '0:90,10
    50%:50,50' or 'linear 0:90,10 200Btokens:50,50'. The weights of --data-path then only become part of the names."""
    max_epochs: Epochs = option("E", default=None, needs=("blend_schedule or continue_from",))
    """Refuse a run that reads a dataset more often than this (default: 1 with --blend-schedule, otherwise no limit)."""


class CacheNames(Options):
    """Options that the names of caches depend on."""

    group: ClassVar = "names"
    fim_data: bool = option(
        default=False, excludes=("document_order", "shuffle_epochs", "continue_from", "blend_schedule")
    )
    """The job has --fim-data, so its datasets are of the class GPTFIMDataset."""
    job_tokenizer: TokenizerOfJob = option(
        default=None, flag="the job's tokenizer (--tokenizer-model and the like)", needs=("megatron_release",)
    )
    tokenizer_identifiers: OptionalPath = option(
        "FILE.json", default=None, excludes=("plain_names", "megatron_release", "like")
    )
    """The tokenizer's `unique_identifiers` in the job's Megatron, a JSON object."""
    reader: Literal["megatron", "maxtext"] = option(default="megatron", needs=("data_cache_path",), excludes=MEGATRONS)
    """The trainer: Megatron, or MaxText with grain_file_type=mmap_npy (default: megatron)."""
    dataset_path_as: Parsed[str | Sequence[str] | None, tuple[str, ...] | None] = option(
        "HERE=THERE", default=None, separator=" "
    )
    """Replace the beginning HERE of each prefix by THERE, as the job spells it."""


class IndexConfig(ExecutorConfig, ContinuationConfig, CacheNames, SampleOrder, ScheduleConfig, IndexBasics):
    """The options of `dsindex.build_index`."""

    group: ClassVar = "data"
    data_path: Words = option("P", default=None, kw_only=False, excludes=("data_args_path", *SPLIT_PATHS))
    """A prefix, or a blend: W1 P1 W2 P2 … with weights, P1 P2 … in proportion to the datasets' lengths."""
    train_data_path: Words = option("P", default=None)
    """A prefix or a blend for train alone."""
    valid_data_path: Words = option("P", default=None)
    """A prefix or a blend for valid alone."""
    test_data_path: Words = option("P", default=None)
    """A prefix or a blend for test alone."""
    data_args_path: OptionalPath = option("FILE", default=None, needs=("split or like",), excludes=SPLIT_PATHS)
    """A file with the words of --data-path, as in the job."""
    per_split_data_args_path: OptionalPath = option("FILE", default=None, excludes=SPLIT_PATHS[:-1])
    """A JSON file with the words for each split, as in the job."""
    per_dataset_sequences_path: OptionalLocalPath = option("FILE.json", default=None)
    """Write the file that the job reads with this flag instead of each .idx, for a faster start with many datasets."""
    multiple_validation_sets: bool = option(default=False, needs=(" or ".join(SPLIT_PATHS),))
    """Validate on each dataset of --valid-data-path by itself, instead of on a blend of them."""
    command: Parsed[Sequence[str] | None, JobCommand | None] = option(default=None)
    explain: bool = option(default=False)
    """Build nothing: show for each cache whether the job would find it, and if not, which settings differ."""
    dry_run: bool = option(default=False)
    """Build nothing: show what would be built, and its size."""

    @classmethod
    def prepare(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Take the command of a job, and the flags of its tokenizer."""
        values = dict(values)
        if (words := values.get("command")) is not None:
            release, path_as = values.get("megatron_release"), values.get("dataset_path_as") or ()
            command = read_command(words, release=release, dataset_path_as=path_as)
            values = merge_command({name: value for name, value in values.items() if name != "command"}, command)
            values["command"] = command
        _place_tokenizer(values)
        return values

    @property
    def is_over_time(self) -> bool:
        """Whether the samples of train are planned over time."""
        return self.continue_from is not None or self.blend_schedule is not None

    @property
    def paths_per_split(self) -> tuple[tuple[str, ...] | None, ...]:
        """The paths of train, valid and test, if given for each split."""
        return self.train_data_path, self.valid_data_path, self.test_data_path

    def _check_agreement(self) -> None:
        path_options = ("data_path", "data_args_path", *SPLIT_PATHS)
        if not any(getattr(self, name) for name in path_options) and not (self.explain and self.like is not None):
            raise ValueError("give --data-path (or --train-data-path and the like)")
        is_job = self.reader == "megatron" and (self.train_iters or self.train_samples) is not None
        name_options = ("plain_names", "tokenizer_identifiers", "megatron_release", "like", "dry_run", "explain")
        if is_job and not any(getattr(self, name) for name in name_options):
            raise UsageError(
                "--train-iters and --train-samples describe a job, which finds its caches by its tokenizer",
                hint="add --megatron-release, --tokenizer-type and the other flags of the job's tokenizer, or --like; "
                "without a job, give --num-samples",
            )
        if self.seq_length is None and self.like is None:
            raise ValueError("give --seq-length, or --like with a description that has it")
        if self.document_order not in DOCUMENT_ORDERS:
            if self.is_over_time:
                raise ValueError("--document-order: a file does not work with --continue-from and --blend-schedule")
            if len(self.document_order_splits) != 1:
                raise UsageError("--document-order-splits: a file orders the documents of one split", hint="name one")
        batch, varies = self.global_batch_size, (self.rampup_batch_size or self.step_batch_size_schedule) is not None
        if self.consumed_samples is not None and not varies and batch is not None and self.consumed_samples % batch:
            problem = f"{self.consumed_samples} is not a multiple of --global-batch-size {batch}, as a job counts them"
            raise ValueError(f"--consumed-samples: {problem}")


class IndexFlags(TokenizerFlags, IndexConfig):
    r"""Build the document, sample and shuffle indices of a training job.

    Writes the cache files of a Megatron job, for each split of a dataset or blend, under the names that the job looks
    for, so that it builds nothing.

    The hash in a cache's name covers the job's settings character by character: use the same --seq-length, --split,
    --seed and paths as the job, and the tokenizer's identifiers (--tokenizer-identifiers or --like). --explain says why
    a job would not find a cache. Or give the job's command after --; options before -- override it.

    Examples:
        dsindex index --data-path out/docs_text_document --seq-length 4096 \
          --train-iters 5000 --global-batch-size 256 --eval-interval 1000 \
          --data-cache-path out/cache --like description.txt
        dsindex index --megatron-release 0.19 --data-cache-path out/cache \
          -- torchrun pretrain_gpt.py --seq-length 4096 --train-iters 500 --bf16
        dsindex index --data-path 0.9 web_text_document 0.1 code_text_document \
          --seq-length 4096 --num-samples 90000,1000,1000 --data-cache-path out/cache
    """
