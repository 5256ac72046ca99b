"""The options of `dsindex index`, under Megatron's names where Megatron has them."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dsindex.indices.blend import MID_LEVEL_SURPLUS
from dsindex.indices.epochs import FINAL_EPOCH_THRESHOLD
from dsindex.indices.job_tokenizer import JobTokenizer
from dsindex.objects.urls import refuse_cache_url
from workflows.options.config import ExecutorConfig, LocalPath
from workflows.options.index_tokenizer import NAMES as TOKENIZER_NAMES

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
    if not 1 <= len(counts) <= 3 or not all(count is None or re.fullmatch(r"\d+", count) for count in counts):
        msg = f"expected one to three numbers of samples, or none, as in 1000,none,0, got {value!r}"
        raise ValueError(msg)
    numbers = [None if count is None else int(count) for count in counts]
    return tuple(numbers + [None] * (3 - len(numbers)))


def _fraction(value: object) -> object:
    if value is None or isinstance(value, Fraction):
        return value
    if not re.fullmatch(r"\d+(\.\d+)?|\.\d+|\d+/\d*[1-9]\d*", str(value).strip()) or Fraction(str(value)) == 0:
        msg = f"expected a positive number of epochs such as 2 or 2.5, got {value!r}"
        raise ValueError(msg)
    return Fraction(str(value).strip())


def _known_flags(value: object) -> object:
    if isinstance(value, dict) and (unknown := sorted(value.keys() - set(TOKENIZER_NAMES), key=str)):
        msg = f"expected the flags of the job's tokenizer, such as tokenizer_type, got {unknown[0]!r}"
        raise ValueError(msg)
    return value


def _iterations(value: object) -> object:
    """Read `100,200` as Megatron does, a single number, or a list."""
    if isinstance(value, str):
        words = value.split(",")
        if not all(re.fullmatch(r"\s*\d{1,18}\s*", word) for word in words):
            msg = f"expected iterations such as 1000,5000, got {value!r}"
            raise ValueError(msg)
        return tuple(sorted(int(word) for word in words))
    return (value,) if isinstance(value, int) else value


def _three(value: object) -> object:
    return tuple(value.split()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Counts = Annotated[tuple[int | None, int | None, int | None], BeforeValidator(_counts)]
Epochs = Annotated[Fraction, BeforeValidator(_fraction)]
Iterations = Annotated[tuple[int, ...], BeforeValidator(_iterations)]
TokenizerFlags = Annotated[JobTokenizer, BeforeValidator(_known_flags)]


class IndexConfig(ExecutorConfig):
    """`dsindex index`: the index caches that a training job looks for."""

    data_path: Words | None = None
    train_data_path: Words | None = None
    valid_data_path: Words | None = None
    test_data_path: Words | None = None
    data_args_path: str | None = None
    per_split_data_args_path: str | None = None
    data_cache_path: Annotated[str, AfterValidator(refuse_cache_url)] | None = None
    """None: Megatron's default, beside each dataset."""
    seq_length: int | None = Field(default=None, ge=2)
    epochs: Epochs | None = None
    num_samples: Counts | None = None
    train_iters: int | None = Field(default=None, ge=1)
    train_samples: int | None = Field(default=None, ge=1)
    global_batch_size: int | None = Field(default=None, ge=1)
    eval_interval: int | None = Field(default=None, ge=1)
    eval_iters: int = Field(default=100, ge=0)
    full_validation: bool = False
    skip_train: bool = False
    start_eval_at_iter: int | None = Field(default=None, ge=0)
    eval_global_batch_size: int | None = Field(default=None, ge=1)
    phase_transition_iterations: Iterations = ()
    rampup_batch_size: Annotated[tuple[int, int, int] | None, BeforeValidator(_three)] = None
    step_batch_size_schedule: str | None = None
    multiple_validation_sets: bool = False
    dataset_class: Literal["GPTDataset", "GPTFIMDataset"] = "GPTDataset"
    split: str | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**32)
    megatron_release: Literal["0.16", "0.17", "0.18", "0.19", "main", "nemo-automodel"] | None = None
    job_tokenizer: TokenizerFlags | None = None
    """The job's flags about its tokenizer, for `megatron_release`."""
    tokenizer_identifiers: str | None = None
    like: str | None = None
    dataset_path_as: Words | None = None
    per_dataset_sequences_path: LocalPath | None = None
    no_extra_token: bool = False
    keep_partial_validation: bool = False
    mid_level_dataset_surplus: float = Field(default=MID_LEVEL_SURPLUS, ge=0)
    layout: Literal["megatron", "bigscience"] = "megatron"
    final_epoch_threshold: float = Field(default=FINAL_EPOCH_THRESHOLD, gt=0, le=1)
    explain: bool = False
    check: bool = False

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
            "the flags of the job's tokenizer need --megatron-release": self.job_tokenizer is not None
            and self.megatron_release is None,
            "--megatron-release needs the job's --tokenizer-type and its other flags, or --like": self.megatron_release
            is not None
            and (self.job_tokenizer, self.like, self.tokenizer_identifiers) == (None, None, None),
            "give --seq-length, or --like with a description that has it": self.seq_length is None
            and self.like is None,
            "--multiple-validation-sets needs a path for each split": self.multiple_validation_sets and not per_split,
            "--dataset-class needs Megatron's caches; leave out --layout bigscience": self.layout == "bigscience"
            and self.dataset_class != "GPTDataset",
            "--layout bigscience has one --data-path for all splits": self.layout == "bigscience" and per_split,
            "--layout bigscience always has the extra token and drops partial samples": self.layout == "bigscience"
            and (self.no_extra_token or self.keep_partial_validation),
            "--layout bigscience has no phases; leave out --phase-transition-iterations": self.layout == "bigscience"
            and bool(self.phase_transition_iterations),
            "--explain needs Megatron's caches; in --layout bigscience the file names hold all settings": self.layout
            == "bigscience"
            and self.explain,
        }
        for problem, there in problems.items():
            if there:
                raise ValueError(problem)
        return self
