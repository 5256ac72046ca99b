"""The options of `dsindex index`, under Megatron's names where Megatron has them."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import fields
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_type_hints

from pydantic import AfterValidator, BeforeValidator, create_model, model_validator

from dsindex.errors import InputError
from dsindex.index.defaults import FIM_CLASS, MID_LEVEL_SURPLUS
from dsindex.index.job_tokenizer import JobTokenizer
from dsindex.option_problems import show_value
from dsindex.options.build import BuildConfig
from dsindex.options.config import (
    ExecutorConfig,
    LocalPath,
    Options,
    SequenceLength,
    TrainingLength,
    validated,
)
from dsindex.options.declare import option
from dsindex.options.numbers import MEGATRON_COUNT
from dsindex.store.urls import refuse_cache_url, refuse_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Replacement = tuple[str, str]
"""The beginning of a path here, and in the job."""


def parse_replacements(words: Iterable[str]) -> list[Replacement]:
    """Return the pairs among the words of `--dataset-path-as`; others are whole paths.

    >>> parse_replacements(["data=/lustre/data", "/x"])
    [('data', '/lustre/data')]
    """
    return [(here, there) for here, equals, there in (word.partition("=") for word in words) if equals]


def job_path(path: str, replacements: Sequence[Replacement]) -> str:
    """Return a path of this machine as the job types it; the longest beginning counts.

    >>> job_path("data/web", [("data", "/lustre/data")])
    '/lustre/data/web'
    """
    for here, there in sorted(replacements, key=lambda pair: -len(pair[0])):
        if path.startswith(here):
            return there + path.removeprefix(here)
    return path


def local_path(path: str, replacements: Sequence[Replacement]) -> str:
    """Return a path that the job types as it is on this machine.

    >>> local_path("/lustre/data/web", [("data", "/lustre/data")])
    'data/web'
    """
    for here, there in sorted(replacements, key=lambda pair: -len(pair[1])):
        if path.startswith(there):
            return here + path.removeprefix(there)
    return path


_TOKENIZER_FLAGS = {
    "tokenizer_type": ("the job's kind of tokenizer, such as HuggingFaceTokenizer", "TYPE"),
    "tokenizer_model": ("its path or name, spelled as in the job; nothing is loaded", "X"),
    "vocab_file": ("of a GPT2BPETokenizer or a Bert tokenizer", "PATH"),
    "merge_file": ("of a GPT2BPETokenizer", "PATH"),
    "vocab_size": ("of a NullTokenizer or TikTokenizer", "N"),
    "tokenizer_special_tokens": ("as in the job", "T"),
}
"""Name of a flag of the job's tokenizer → help and placeholder. The others are not in the help."""
TOKENIZER_NAMES = tuple(field.name for field in fields(JobTokenizer))
"""The flags as names of options."""
TokenizerCommand: type[Options] = create_model(
    "TokenizerCommand",
    __base__=Options,
    **{
        name: (kind, option(None, help, metavar, "the job's tokenizer"))
        for name, kind in get_type_hints(JobTokenizer).items()
        for help, metavar in [_TOKENIZER_FLAGS.get(name, ("", None))]
    },
)  # type: ignore[call-overload]  # fields of names that mypy does not know
"""The flags of `dsindex index` from which `job_tokenizer` follows."""


class TrainingCommand(Options):
    """A job's own command, after `--`."""

    command: tuple[str, ...] = option((), "", positional=True)  # its usage is in the description


RELEASES = ("0.16", "0.17", "0.18", "0.19")
Release = Literal["0.16", "0.17", "0.18", "0.19", "main", "nemo-automodel"]


def take_job_tokenizer(merged: dict[str, Any]) -> None:
    """Collect the tokenizer's flags as one option; they are left out where names do not depend on them."""
    given = {name: merged.pop(name) for name in TOKENIZER_NAMES if name in merged}
    other = any(merged.get(name) for name in ("like", "tokenizer_identifiers", "plain_names"))
    if given and not other:
        _take_installed_release(merged)
    if given and (merged.get("megatron_release") is not None or not other):
        merged["job_tokenizer"] = given


def _take_installed_release(merged: dict[str, Any]) -> None:
    """Let the release be that of the installed megatron-core, unless it is given."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    with suppress(PackageNotFoundError):
        installed = ".".join(version("megatron-core").split(".")[:2])
        if installed in RELEASES:
            merged.setdefault("megatron_release", installed)


def copy_job_tokenizer(merged: dict[str, Any]) -> None:
    """For a known release, let a build's own tokenizer be the job's: its flags count for both."""
    if merged.get("tokenizer_type") and any(merged.get(name) for name in ("train_iters", "train_samples")):
        _take_installed_release(merged)
    if merged.get("megatron_release") is not None and "job_tokenizer" not in merged:
        given = {name: merged[name] for name in TOKENIZER_NAMES if merged.get(name) is not None}
        if given:
            merged["job_tokenizer"] = given


DOCUMENT_ORDERS = ("shuffled", "packed", "length")

DEFAULT_SPLIT = "969, 30, 1"
"""Megatron's default. Its spaces matter: they are part of the hash."""


def _words(value: object) -> object:
    """Accept weights as numbers and a single path as a string, as YAML has them."""
    if isinstance(value, list | tuple):
        return tuple(repr(word) if isinstance(word, float) else str(word) for word in value)
    return tuple(value.split()) if isinstance(value, str) else value


def _counts(value: object) -> object:
    """Read `N`, `N,N,N` or a list; `none` or a missing number means one epoch."""
    if value is None:
        return None
    words = [str(word) for word in value] if isinstance(value, list | tuple) else str(value).split(",")
    counts = [None if word.strip().lower() in {"none", "null"} else word.strip() for word in words]
    if not 1 <= len(counts) <= 3 or not all(count is None or re.fullmatch(r"[0-9]{1,18}", count) for count in counts):
        msg = f"expected one to three numbers of samples, or none, as in 1000,none,0, got {show_value(value)}"
        raise ValueError(msg)
    numbers = [None if count is None else int(count) for count in counts]
    return tuple(numbers + [None] * (3 - len(numbers)))


def _fraction(value: object) -> object:
    if value is None or isinstance(value, Fraction):
        return value
    text = str(value).strip()
    is_number = len(text) <= 100 and re.fullmatch(r"\d+(\.\d+)?|\.\d+|\d+/\d*[1-9]\d*", text)
    if not is_number or not 0 < Fraction(text) <= MEGATRON_COUNT:
        msg = f"expected a positive number of epochs such as 2 or 2.5, up to {MEGATRON_COUNT}, got {show_value(value)}"
        raise ValueError(msg)
    return Fraction(text)


def _known_flags(value: object) -> object:
    if isinstance(value, dict) and (unknown := sorted(value.keys() - set(TOKENIZER_NAMES), key=str)):
        raise ValueError(f"expected the flags of the job's tokenizer, such as tokenizer_type, got {unknown[0]!r}")
    return value


def _iterations(value: object) -> object:
    """Read `100,200` as Megatron does, a single number, or a list."""
    if isinstance(value, str):
        words = value.split(",")
        if not all(re.fullmatch(r"\s*\d{1,18}\s*", word) for word in words):
            raise ValueError(f"expected iterations such as 1000,5000, got {show_value(value)}")
        return tuple(sorted(int(word) for word in words))
    return (value,) if isinstance(value, int) else value


def _three(value: object) -> object:
    return tuple(value.split()) if isinstance(value, str) else value


def _order(value: str) -> str:
    if value not in DOCUMENT_ORDERS and not value.endswith((".npy", ".parquet")):
        raise ValueError(f"expected {', '.join(DOCUMENT_ORDERS)}, or a file .npy or .parquet, got {show_value(value)}")
    return value if value in DOCUMENT_ORDERS else refuse_url(value)


def _schedule(value: str) -> str:
    from dsindex.index.schedule import read_blend_schedule  # loads what a help text does not need

    with suppress(InputError):  # the file is read when the job runs
        read_blend_schedule(value)
    return value


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Counts = Annotated[tuple[int | None, int | None, int | None], BeforeValidator(_counts)]
Epochs = Annotated[Fraction, BeforeValidator(_fraction)]
Iterations = Annotated[tuple[int, ...], BeforeValidator(_iterations)]
TokenizerFlags = Annotated[JobTokenizer, BeforeValidator(_known_flags)]


class SampleOrder(Options):
    """The order of samples, and which there are."""

    group: ClassVar = "order"
    split: str | None = option(
        None, f"shares of train, valid and test, spelled as in the job (default: '{DEFAULT_SPLIT}')", "S"
    )
    seed: int | None = option(None, "the job's --seed (default: 1234)", "N", ge=0, lt=2**32)
    document_order: Annotated[str, AfterValidator(_order)] = option(
        "shuffled",
        "`shuffled`, Megatron's order; `packed`, in which samples end where documents end, and hardly a document "
        "that fits a sample is cut; `length`, the shortest first; or a .npy or .parquet with the numbers of the "
        "documents (default: shuffled)",
        "ORDER",
    )
    document_order_splits: tuple[Literal["train", "valid", "test"], ...] = option(
        ("train",), "the splits with this order (default: train)", "SPLIT"
    )
    shuffle_epochs: Literal["together", "separately", "never"] | None = option(
        None,
        "shuffle the samples of all epochs together, as Megatron does, those of each epoch by themselves, or none "
        "(default: together; never for the orders `length` and FILE)",
    )
    no_extra_token: bool = option(default=False, help="samples of L tokens, not L + 1 (rare in Megatron)")
    keep_partial_validation: bool = option(default=False, help="keep valid's last, partial sample")
    mid_level_dataset_surplus: float = option(
        MID_LEVEL_SURPLUS, "the job's value, for weighted blends (default: 0.005)", "X", ge=0, le=2**31
    )


class OverTime(Options):
    """Caches that continue those of another job, or whose weights change."""

    group: ClassVar = "over time"
    continue_from: LocalPath | None = option(
        None,
        "the cache folder of a first job, or its description: samples before --consumed-samples are that job's, and "
        "after them comes what is unread, by this job's weights, datasets and number of samples",
        "CACHE",
    )
    consumed_samples: int | None = option(
        None,
        "the samples that the first job has read, a multiple of --global-batch-size: `consumed samples` in its log",
        "N",
        ge=0,
    )
    blend_schedule: Annotated[str, AfterValidator(_schedule)] | None = option(
        None,
        "weights from positions of the run on, in samples, tokens or shares of it, as in '0:90,10 50%:50,50' or "
        "'linear 0:90,10 200Btokens:50,50'; or a YAML file. Those of --data-path only make the names",
        "'P:W,W P:W,W'",
    )
    max_epochs: Epochs | None = option(
        None,
        "refuse a run that reads a dataset more often (default: 1 with --blend-schedule, otherwise any)",
        "E",
        as_text=True,
    )
    dataloader_type: str | None = option(None, "the job's; refused here if it is not single", "KIND")


class CacheNames(Options):
    """Where caches are, and what their names depend on."""

    group: ClassVar = "names"
    data_cache_path: Annotated[str, AfterValidator(refuse_cache_url)] | None = option(
        None, "the job's cache folder (default: P/cache/GPTDataset_indices)", "D"
    )
    dataset_class: Literal["GPTDataset", "GPTFIMDataset"] = option(
        "GPTDataset", "the job's class of datasets: GPTFIMDataset with --fim-data (default: GPTDataset)"
    )
    fim_data: bool = option(default=False, help="the same as --dataset-class GPTFIMDataset")
    megatron_release: Release | None = option(
        None, "the job's release of megatron-core, by which the flags of its tokenizer become part of the names"
    )
    job_tokenizer: TokenizerFlags | None = option(
        None,
        'the flags of the job\'s tokenizer, such as {"tokenizer_type": "HuggingFaceTokenizer", '
        '"tokenizer_model": "gpt2"}',
        accepts="Mapping[str, Any] | None",
        flags=(),
    )
    tokenizer_identifiers: str | None = option(
        None, "the tokenizer's `unique_identifiers` in the job's Megatron, a JSON object", "FILE.json"
    )
    like: str | None = option(
        None,
        "take tokenizer, seed, sequence length and split from a description that the job wrote; flags override it",
        "DESCRIPTION.txt",
    )
    dataset_path_as: Words | None = option(
        None, "each prefix as the job types it, in the same order, or HERE=THERE to replace the beginning of all", "P"
    )
    plain_names: bool = option(
        default=False,
        help="name caches after their datasets, for a reader of your own: no Megatron job finds them",
    )

    @model_validator(mode="before")
    @classmethod
    def _class_of_data(cls, values: object) -> object:
        if isinstance(values, dict) and values.get("fim_data") is True:
            return {**values, "dataset_class": FIM_CLASS}
        return values


class IndexOptions(TrainingLength, SampleOrder, CacheNames):
    """What the index caches of a training job depend on, apart from its datasets."""

    group: ClassVar = "samples"
    seq_length: SequenceLength | None = option(None, "the job's --seq-length: tokens per sample", "L")
    epochs: Epochs | None = option(
        None,
        "train on E epochs, fractions allowed, and valid and test on one; the number of samples is in the description",
        "E",
        as_text=True,
    )
    num_samples: Counts | None = option(
        None,
        "samples of train, valid and test, as the job requests them; `none` or a missing number means one epoch",
        "N[,N,N]",
        accepts="int | str | Sequence[int | None] | None",
        as_text=True,
    )
    eval_interval: int | None = option(None, "iterations between validations", "N", ge=1)
    eval_iters: int = option(100, "iterations per validation (default: 100)", "N", ge=0)
    full_validation: bool = option(default=False, help="each validation is one epoch of valid")
    skip_train: bool = option(default=False, help="the job only validates, once, as with its --skip-train")
    start_eval_at_iter: int | None = option(None, "the job validates from this iteration on", "N", ge=0)
    eval_global_batch_size: int | None = option(None, "samples per iteration of a validation, from 0.18 on", "N", ge=1)
    phase_transition_iterations: Iterations = option(
        (), "the job's phases: each has caches of its own samples, and all are built", "N,N", as_text=True
    )
    rampup_batch_size: Annotated[tuple[int, int, int] | None, BeforeValidator(_three)] = option(
        None, "up to 0.17; later releases ignore it", ("FIRST", "STEP", "SAMPLES")
    )
    step_batch_size_schedule: str | None = option(
        None,
        "from 0.18 on; with what the job prints as `setting global batch size to` as --global-batch-size",
        "'0:N N:N'",
    )


class IndexConfig(ExecutorConfig, IndexOptions, OverTime):
    """`dsindex index`: the index caches that a training job looks for."""

    group: ClassVar = "data"
    data_path: Words | None = option(
        None, "a prefix, or a blend: W1 P1 W2 P2 … with weights, P1 P2 … in proportion to the datasets' lengths", "P"
    )
    train_data_path: Words | None = option(None, "the same, for train alone", "P")
    valid_data_path: Words | None = option(None, "the same, for valid alone", "P")
    test_data_path: Words | None = option(None, "the same, for test alone", "P")
    data_args_path: str | None = option(None, "a file with the words of --data-path, as in the job", "FILE")
    per_split_data_args_path: str | None = option(
        None, "a JSON file with the words for each split, as in the job", "FILE"
    )
    multiple_validation_sets: bool = option(
        default=False,
        help="the datasets of --valid-data-path are no blend: each has the samples of valid, or all of its own",
    )
    explain: bool = option(
        default=False,
        help="build nothing: show for each cache whether the job would find it, and if not, which settings differ",
    )
    check: bool = option(default=False, help="build nothing: show what would be built, and its size")

    @property
    def has_own_order(self) -> bool:
        """Whether documents or samples are in another order than Megatron's."""
        return self.document_order != "shuffled" or self.shuffle_epochs not in {None, "together"}

    @property
    def is_over_time(self) -> bool:
        """Whether the samples of train are planned over time."""
        return self.continue_from is not None or self.blend_schedule is not None

    @property
    def has_paths_per_split(self) -> bool:
        """Whether each split has paths of its own."""
        return any(self.paths_per_split) or self.per_split_data_args_path is not None

    @property
    def paths_per_split(self) -> tuple[Words | None, Words | None, Words | None]:
        """The paths of train, valid and test, if given for each split."""
        return self.train_data_path, self.valid_data_path, self.test_data_path

    @model_validator(mode="after")
    def _options_agree(self) -> IndexConfig:
        per_split = self.has_paths_per_split
        together = bool(self.data_path) or self.data_args_path is not None
        lengths = [self.epochs, self.num_samples, self.train_iters or self.train_samples]
        said = sum(length is not None for length in lengths)
        only_description = self.explain and self.like is not None and not together and not per_split
        problems = {
            "give --data-path, or a path for each split, not both": together and per_split,
            "give --data-path or --data-args-path, not both": bool(self.data_path) and self.data_args_path is not None,
            "give --per-split-data-args-path or --train-data-path and the like, not both": any(self.paths_per_split)
            and self.per_split_data_args_path is not None,
            "--data-args-path needs --split, here and in the job: Megatron's default is for --data-path only": (
                self.data_args_path is not None and self.split is None and self.like is None
            ),
            "give --data-path (or --train-data-path and the like)": not (together or per_split or only_description),
            "--split does not go with a path for each split": per_split and self.split is not None,
            "give one of --epochs, --num-samples, --train-iters and --train-samples": said > 1
            or (said == 0 and not only_description),
            "--train-iters and --train-samples need --global-batch-size": lengths[2] is not None
            and self.global_batch_size is None,
            "give either --train-iters or --train-samples": self.train_iters is not None
            and self.train_samples is not None
            and not self.skip_train,
            "--train-iters and --train-samples need --eval-interval, or --full-validation": lengths[2] is not None
            and self.eval_interval is None
            and not self.full_validation
            and not self.skip_train,
            "give --tokenizer-identifiers or --like, not both": self.tokenizer_identifiers is not None
            and self.like is not None,
            "give --tokenizer-identifiers or the job's --tokenizer-type, not both": self.tokenizer_identifiers
            is not None
            and self.job_tokenizer is not None,
            "the flags of the job's tokenizer need --megatron-release, on which the names of its caches depend; "
            "without a job to find them, give --plain-names": self.job_tokenizer is not None
            and self.megatron_release is None,
            "--train-iters and --train-samples are of a job, which finds its caches by --megatron-release and "
            "--tokenizer-type with its other flags, or by --like; without a job, give --plain-names": (
                lengths[2] is not None
                and not (self.plain_names or self.check or self.explain)
                and (self.job_tokenizer, self.like, self.tokenizer_identifiers) == (None, None, None)
            ),
            "--plain-names does not go with what Megatron's names are made of: leave out --megatron-release, --like "
            "and --tokenizer-identifiers": self.plain_names
            and (self.megatron_release, self.like, self.tokenizer_identifiers) != (None, None, None),
            "--megatron-release needs the job's --tokenizer-type and its other flags, or --like": self.megatron_release
            is not None
            and (self.job_tokenizer, self.like, self.tokenizer_identifiers) == (None, None, None),
            "give --seq-length, or --like with a description that has it": self.seq_length is None
            and self.like is None,
            "--multiple-validation-sets needs a path for each split": self.multiple_validation_sets and not per_split,
            "--document-order-splits: a file or a function orders the documents of one split; name one": (
                self.document_order not in DOCUMENT_ORDERS and len(self.document_order_splits) != 1
            ),
            **self._problems_over_time(),
            "--document-order and --shuffle-epochs were not tried with --fim-data; leave one of them out": (
                self.dataset_class != "GPTDataset" and self.has_own_order
            ),
        }
        for problem, there in problems.items():
            if there:
                raise ValueError(problem)
        return self

    def _problems_over_time(self) -> dict[str, bool]:
        batch, consumed = self.global_batch_size, self.consumed_samples
        varies = self.rampup_batch_size is not None or self.step_batch_size_schedule is not None
        asked = "--continue-from and --blend-schedule"
        return {
            f"{asked} need --data-cache-path, the folder of this job's caches": self.is_over_time
            and self.data_cache_path is None,
            f"{asked} were not tried with --fim-data": self.is_over_time and self.dataset_class != "GPTDataset",
            f"{asked} have no place in an order of a file; leave out --document-order": self.is_over_time
            and self.document_order not in DOCUMENT_ORDERS,
            f"{asked} do not go with --dataloader-type {self.dataloader_type}, which reads samples in an order of its "
            "own; use single, in the job": self.is_over_time and self.dataloader_type not in {None, "single"},
            "--continue-from needs --consumed-samples, the samples that the first job has read, and the reverse": (
                (self.continue_from is None) != (consumed is None)
            ),
            "--consumed-samples needs the job's --global-batch-size, of which it is a multiple": consumed is not None
            and batch is None
            and not varies,
            f"--consumed-samples: expected a multiple of --global-batch-size {batch}, as a job counts them, got "
            f"{consumed}": consumed is not None and batch is not None and not varies and consumed % batch != 0,
            "--max-epochs needs --blend-schedule or --continue-from": self.max_epochs is not None
            and not self.is_over_time,
        }


def split_options(merged: dict[str, Any]) -> tuple[BuildConfig, dict[str, Any] | None]:
    """Split options into the build's and the indices'; the latter are None if none was given.

    Raises:
        UsageError: If either are invalid.
    """
    index = {
        name: merged.pop(name)
        for name in IndexConfig.model_fields.keys() - BuildConfig.model_fields.keys() & merged.keys()
    }
    config = validated(merged, BuildConfig)
    if not index:
        return config, None
    executor = {name: getattr(config, name) for name in ExecutorConfig.model_fields}
    validated({**index, **executor, "data_path": [config.output_prefix]}, IndexConfig)
    return config, {**index, **executor}
