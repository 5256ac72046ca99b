"""The options and flags of `dsindex mix`, under Megatron's names where Megatron has them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field, model_validator

from dsindex.locations import Location
from dsindex.options.config import Options, SequenceLength
from dsindex.options.index import DEFAULT_SPLIT, Words
from dsindex.options.mix_amounts import REST, Amount, parse_amount, parse_tokens
from dsindex.store.urls import ONLY_INPUTS, is_url

if TYPE_CHECKING:
    import argparse

DEFAULT_SEQ_LENGTH = 4096


def _tokens(value: object) -> object:
    return parse_tokens(value) if isinstance(value, str) else value


Tokens = Annotated[int, BeforeValidator(_tokens)]


class MixConfig(Options):
    """`dsindex mix`: a blend from the datasets' real token counts."""

    source: Words = ()
    """Datasets as PREFIX or PREFIX=AMOUNT."""
    data_path: Words | None = None
    """A blend as Megatron has it, to be explained."""
    tokens: Tokens | None = Field(default=None, ge=1)
    train_samples: int | None = Field(default=None, ge=1)
    train_iters: int | None = Field(default=None, ge=1)
    global_batch_size: int | None = Field(default=None, ge=1)
    seq_length: SequenceLength = DEFAULT_SEQ_LENGTH
    split: str | None = None
    per_split_data_args_path: str | None = None
    """The JSON file to write; the splits then have datasets of their own, and train draws from the whole of its own."""
    valid_data_path: Words | None = None
    test_data_path: Words | None = None
    check: bool = False
    data_cache_path: str | None = None

    @model_validator(mode="after")
    def _options_agree(self) -> MixConfig:
        lengths = [self.tokens, self.train_samples, self.train_iters]
        others = self.valid_data_path or self.test_data_path
        problems = {
            "give datasets as PREFIX=AMOUNT, or --data-path with weights, not both": bool(self.source)
            and bool(self.data_path),
            "give at least one dataset, as PREFIX=40%, PREFIX=2epochs or PREFIX": not (self.source or self.data_path),
            "give one of --tokens, --train-samples and --train-iters": sum(n is not None for n in lengths) > 1,
            "--train-iters needs --global-batch-size": self.train_iters is not None and self.global_batch_size is None,
            "--split does not go with --per-split-data-args-path, by which train has all of its datasets": (
                self.split is not None and self.per_split_data_args_path is not None
            ),
            "--valid-data-path and --test-data-path need --per-split-data-args-path, the file that they go to": (
                bool(others) and self.per_split_data_args_path is None
            ),
            "--check needs --data-cache-path, the folder of the caches": self.check and self.data_cache_path is None,
            "--data-cache-path needs --check": self.data_cache_path is not None and not self.check,
        }
        for problem, there in problems.items():
            if there:
                raise ValueError(problem)
        for word in self.source:
            read_source(word)
        return self


def read_source(word: str) -> tuple[str, Amount]:
    """Return the dataset and the amount of `PREFIX=AMOUNT`; a path itself may have an equals sign.

    Raises:
        ValueError: If there is no dataset, or what follows the equals sign is no amount.
    """
    if is_url(word):
        msg = f"{Location(word)}: {ONLY_INPUTS}"
        raise ValueError(msg)
    prefix, equals, text = word.rpartition("=")
    if not (prefix if equals else word):
        msg = f"expected a dataset as PREFIX or PREFIX=AMOUNT, got {word!r}"
        raise ValueError(msg)
    if not equals or os.path.isfile(f"{_as_prefix(word)}.idx"):
        return _as_prefix(word), REST
    try:
        return _as_prefix(prefix), parse_amount(text)
    except ValueError as error:
        msg = f"{prefix}: {error}"
        raise ValueError(msg) from error


def _as_prefix(path: str) -> str:
    """Return the prefix `x` of `x.bin` or `x.idx`, which a shell's completion yields."""
    stem, suffix = os.path.splitext(path)
    return stem if suffix in {".bin", ".idx"} else path


def add_mix_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex mix`."""
    parser.add_argument(
        "source",
        nargs="*",
        metavar="PREFIX[=AMOUNT]",
        help="a dataset and how much of it: 40%% of the tokens, 2.5epochs, 10B tokens, or rest; without an amount also "
        "the rest, which is divided in proportion to the datasets' tokens",
    )
    parser.add_argument(
        "--data-path", nargs="+", metavar="W P", help="show what these weights of a job mean: W1 P1 W2 P2 …"
    )
    parser.add_argument("--json", action="store_true", help="write the plan as one JSON object")
    length = parser.add_argument_group(
        "length of the run",
        "default: what the amounts in tokens and epochs add up to; with shares only, until the first dataset has been "
        "read once",
    )
    length.add_argument("--tokens", metavar="N", help="tokens to draw, such as 300B")
    length.add_argument("--train-samples", type=int, metavar="N", help="the job's training samples")
    length.add_argument("--train-iters", type=int, metavar="N", help="the job's training iterations")
    length.add_argument("--global-batch-size", type=int, metavar="N", help="samples per iteration")
    job = parser.add_argument_group("the job")
    job.add_argument("--seq-length", type=int, metavar="L", help=f"tokens per sample (default: {DEFAULT_SEQ_LENGTH})")
    job.add_argument(
        "--split", metavar="S", help=f"shares of train, valid and test in every dataset (default: '{DEFAULT_SPLIT}')"
    )
    job.add_argument(
        "--per-split-data-args-path",
        metavar="FILE.json",
        help="write the mixture as this file of Megatron's, with which train draws from the whole of its datasets",
    )
    for split in ("valid", "test"):
        job.add_argument(f"--{split}-data-path", nargs="+", metavar="P", help=f"the datasets of {split} in that file")
    check = parser.add_argument_group("check")
    check.add_argument(
        "--check",
        action="store_true",
        default=None,
        help="compare with what the blends in the cache folder draw; exit code 1 if it differs by more than rounding",
    )
    check.add_argument("--data-cache-path", metavar="D", help="the job's cache folder")
