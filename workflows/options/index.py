"""The options and flags of `dsindex index`, under Megatron's names where Megatron has them."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from dsindex.indices.blend import MID_LEVEL_SURPLUS
from dsindex.indices.epochs import FINAL_EPOCH_THRESHOLD
from dsindex.indices.job_tokenizer import JobTokenizer
from workflows.options.config import ExecutorConfig
from workflows.options.index_tokenizer import NAMES as TOKENIZER_NAMES
from workflows.options.index_tokenizer import add_job_tokenizer_arguments, add_release_argument

if TYPE_CHECKING:
    import argparse

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


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Counts = Annotated[tuple[int | None, int | None, int | None], BeforeValidator(_counts)]
Epochs = Annotated[Fraction, BeforeValidator(_fraction)]
TokenizerFlags = Annotated[JobTokenizer, BeforeValidator(_known_flags)]


class IndexConfig(ExecutorConfig):
    """`dsindex index`: the index caches that a training job looks for."""

    data_path: Words | None = None
    train_data_path: Words | None = None
    valid_data_path: Words | None = None
    test_data_path: Words | None = None
    data_cache_path: str | None = None
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
    split: str | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**32)
    megatron_release: Literal["0.16", "0.17", "0.18", "0.19", "main"] | None = None
    job_tokenizer: TokenizerFlags | None = None
    """The job's flags about its tokenizer, for `megatron_release`."""
    tokenizer_identifiers: str | None = None
    like: str | None = None
    dataset_path_as: Words | None = None
    no_extra_token: bool = False
    keep_partial_validation: bool = False
    mid_level_dataset_surplus: float = Field(default=MID_LEVEL_SURPLUS, ge=0)
    layout: Literal["megatron", "bigscience"] = "megatron"
    final_epoch_threshold: float = Field(default=FINAL_EPOCH_THRESHOLD, gt=0, le=1)
    explain: bool = False
    check: bool = False

    @property
    def paths_per_split(self) -> tuple[Words | None, Words | None, Words | None]:
        """The paths of train, valid and test, if given for each split."""
        return self.train_data_path, self.valid_data_path, self.test_data_path

    @model_validator(mode="after")
    def _options_agree(self) -> IndexConfig:
        per_split = any(self.paths_per_split)
        lengths = [self.epochs, self.num_samples, self.train_iters or self.train_samples]
        said = sum(length is not None for length in lengths)
        only_description = self.explain and self.like is not None and self.data_path is None and not per_split
        problems = {
            "give --data-path, or a path for each split, not both": bool(self.data_path) and per_split,
            "give --data-path (or --train-data-path and the like)": not (
                self.data_path or per_split or only_description
            ),
            "--split does not go with a path for each split": per_split and self.split is not None,
            "give one of --epochs, --num-samples, --train-iters and --train-samples": said > 1
            or (said == 0 and not only_description),
            "--train-iters and --train-samples need --global-batch-size": lengths[2] is not None
            and self.global_batch_size is None,
            "give either --train-iters or --train-samples": self.train_iters is not None
            and self.train_samples is not None,
            "--train-iters and --train-samples need --eval-interval, or --full-validation": lengths[2] is not None
            and self.eval_interval is None
            and not self.full_validation,
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
            "--layout bigscience has one --data-path for all splits": self.layout == "bigscience" and per_split,
            "--layout bigscience always has the extra token and drops partial samples": self.layout == "bigscience"
            and (self.no_extra_token or self.keep_partial_validation),
            "--explain needs Megatron's caches; in --layout bigscience the file names hold all settings": self.layout
            == "bigscience"
            and self.explain,
        }
        for problem, there in problems.items():
            if there:
                raise ValueError(problem)
        return self


def add_index_arguments(parser: argparse.ArgumentParser, *, paths: bool = True) -> None:
    """Add the flags that say which indices to build.

    Args:
        parser: The parser of `dsindex index`, or of a job that indexes its own output.
        paths: Whether to add the flags that name datasets.
    """
    if paths:
        _add_path_arguments(parser)
        add_job_tokenizer_arguments(parser)
    length = parser.add_argument_group("samples", "how long the job trains, in one of four ways")
    length.add_argument("--seq-length", type=int, metavar="L", help="the job's --seq-length: tokens per sample")
    length.add_argument(
        "--epochs",
        metavar="E",
        help="train on E epochs, fractions allowed, and valid and test on one; the number of samples is in the "
        "description",
    )
    length.add_argument(
        "--num-samples",
        metavar="N[,N,N]",
        help="samples of train, valid and test, as the job requests them; `none` or a missing number means one epoch",
    )
    length.add_argument("--train-iters", type=int, metavar="N", help="the job's training iterations")
    length.add_argument("--train-samples", type=int, metavar="N", help="the job's training samples")
    length.add_argument("--global-batch-size", type=int, metavar="N", help="samples per iteration")
    length.add_argument("--eval-interval", type=int, metavar="N", help="iterations between validations")
    length.add_argument("--eval-iters", type=int, metavar="N", help="iterations per validation (default: 100)")
    length.add_argument(
        "--full-validation", action="store_true", default=None, help="each validation is one epoch of valid"
    )
    order = parser.add_argument_group("order")
    order.add_argument(
        "--split",
        metavar="S",
        help=f"shares of train, valid and test, spelled as in the job (default: '{DEFAULT_SPLIT}')",
    )
    order.add_argument("--seed", type=int, metavar="N", help="the job's --seed (default: 1234)")
    order.add_argument(
        "--no-extra-token", action="store_true", default=None, help="samples of L tokens, not L + 1 (rare in Megatron)"
    )
    order.add_argument(
        "--keep-partial-validation", action="store_true", default=None, help="keep valid's last, partial sample"
    )
    order.add_argument(
        "--mid-level-dataset-surplus",
        type=float,
        metavar="X",
        help="the job's value, for weighted blends (default: 0.005)",
    )
    _add_name_arguments(parser)


def _add_path_arguments(parser: argparse.ArgumentParser) -> None:
    data = parser.add_argument_group("data", "prefixes are paths without .bin and .idx")
    data.add_argument(
        "--data-path",
        nargs="+",
        metavar="P",
        help="a prefix, or a blend: W1 P1 W2 P2 … with weights, P1 P2 … in proportion to the datasets' lengths",
    )
    for split in ("train", "valid", "test"):
        data.add_argument(f"--{split}-data-path", nargs="+", metavar="P", help=f"the same, for {split} alone")
    parser.add_argument(
        "--explain",
        action="store_true",
        default=None,
        help="build nothing: show for each cache whether the job would find it, and if not, which settings differ",
    )
    parser.add_argument(
        "--check", action="store_true", default=None, help="build nothing: show what would be built, and its size"
    )


def _add_name_arguments(parser: argparse.ArgumentParser) -> None:
    names = parser.add_argument_group(
        "names", "Megatron finds a cache by a hash of its settings, so they must be spelled as in the job"
    )
    names.add_argument(
        "--data-cache-path", metavar="D", help="the job's cache folder (default: P/cache/GPTDataset_indices)"
    )
    add_release_argument(names)
    names.add_argument(
        "--tokenizer-identifiers",
        metavar="FILE.json",
        help="the tokenizer's `unique_identifiers` in the job's Megatron, a JSON object",
    )
    names.add_argument(
        "--like",
        metavar="DESCRIPTION.txt",
        help="take tokenizer, seed, sequence length and split from a description that the job wrote; flags override it",
    )
    names.add_argument(
        "--dataset-path-as",
        nargs="+",
        metavar="P",
        help="each prefix as the job types it, in the same order, or HERE=THERE to replace the beginning of all",
    )
    names.add_argument(
        "--layout",
        choices=["megatron", "bigscience"],
        help="Megatron-core's caches, or the files that BigScience's and OpenGPT-X's Megatron-DeepSpeed look for "
        "beside the data (default: megatron)",
    )
    names.add_argument(
        "--final-epoch-threshold",
        type=float,
        metavar="X",
        help="shuffle the final epoch separately if less than this share of it is used: 0.80 in Megatron and "
        "BigScience, 0.95 in OpenGPT-X (default: 0.80)",
    )
