"""The options and flags of `dsindex mix`, under Megatron's names where Megatron has them."""

from __future__ import annotations

import os
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, model_validator

from dsindex.options.config import JsonOutput, SequenceLength, TrainingLength
from dsindex.options.declare import option
from dsindex.options.index import DEFAULT_SPLIT, Words
from dsindex.options.mix_amounts import REST, Amount, is_number, parse_amount, parse_tokens
from dsindex.store.urls import ONLY_INPUTS, as_prefix, refuse_address

DEFAULT_SEQ_LENGTH = 4096


def _tokens(value: object) -> object:
    return parse_tokens(value) if isinstance(value, str) else value


Tokens = Annotated[int, BeforeValidator(_tokens)]


class MixConfig(TrainingLength):
    """`dsindex mix`: a blend from the datasets' real token counts."""

    group: ClassVar = "length of the run"
    source: Words = option(
        (),
        "a dataset and how much of it: 40% of the tokens or 0.4, 2.5epochs, 10B tokens, or rest, which is divided in "
        "proportion to the datasets' tokens; without an amount also the rest; max2epochs is the rest up to a limit",
        "PREFIX[=AMOUNT]",
        positional=True,
        group="",
    )
    data_path: Words | None = option(None, "show what these weights of a job mean: W1 P1 W2 P2 …", "W P", group="")
    tokens: Tokens | None = option(None, "tokens to draw, such as 300B", "N", as_text=True, ge=1)
    seq_length: SequenceLength = option(
        DEFAULT_SEQ_LENGTH, f"tokens per sample (default: {DEFAULT_SEQ_LENGTH})", "L", group="the job"
    )
    split: str | None = option(
        None, f"shares of train, valid and test in every dataset (default: '{DEFAULT_SPLIT}')", "S", group="the job"
    )
    valid_data_path: Words | None = option(
        None, "datasets of valid, such as what was held out; train then has the whole of its own", "P", group="the job"
    )
    test_data_path: Words | None = option(None, "the same, for test", "P", group="the job")

    @model_validator(mode="before")
    @classmethod
    def _understand(cls, values: object) -> object:
        """Take `0.5 A 0.5 B` for a blend."""
        if not isinstance(values, dict):
            return values
        taken = dict(values)
        words = taken.get("source")
        words = words if isinstance(words, list | tuple) else ()
        numbers = [word for word in words if isinstance(word, str) and is_number(word)]
        if numbers:
            if not all(map(is_number, words[::2])) or len(numbers) * 2 != len(words):
                raise ValueError(
                    f"expected datasets as PREFIX=AMOUNT, got the number {numbers[0]}; write the words of a job as "
                    "--data-path W1 P1 W2 P2 …"
                )
            taken["data_path"] = [*(taken.get("data_path") or ()), *taken.pop("source")]
        return taken

    @property
    def has_splits_of_their_own(self) -> bool:
        """Whether train draws from the whole of its datasets, since valid and test have others."""
        return bool(self.valid_data_path or self.test_data_path)

    @model_validator(mode="after")
    def _options_agree(self) -> MixConfig:
        lengths = [self.tokens, self.train_samples, self.train_iters]
        problems = {
            "give datasets as PREFIX=AMOUNT, or --data-path with weights, not both": bool(self.source)
            and bool(self.data_path),
            "give at least one dataset, as PREFIX=40%, PREFIX=2epochs or PREFIX": not (self.source or self.data_path),
            "give one of --tokens, --train-samples and --train-iters": sum(n is not None for n in lengths) > 1,
            "--train-iters needs --global-batch-size": self.train_iters is not None and self.global_batch_size is None,
            "--split does not go with --valid-data-path and --test-data-path, by which "
            "train has all of its datasets": self.split is not None and self.has_splits_of_their_own,
        }
        for problem, there in problems.items():
            if there:
                raise ValueError(problem)
        for word in self.source:
            read_source(word)
        return self


class MixCommand(MixConfig, JsonOutput):
    """`dsindex mix`, which prints its plan."""


def read_source(word: str) -> tuple[str, Amount]:
    """Return the dataset and the amount of `PREFIX=AMOUNT`; a path itself may have an equals sign.

    Raises:
        ValueError: If there is no dataset, or what follows the equals sign is no amount.
    """
    refuse_address(word, ONLY_INPUTS, ValueError)
    prefix, equals, text = word.rpartition("=")
    if not (prefix if equals else word):
        raise ValueError(f"expected a dataset as PREFIX or PREFIX=AMOUNT, got {word!r}")
    if not equals or os.path.isfile(f"{as_prefix(word)}.idx"):
        return as_prefix(word), REST
    try:
        return as_prefix(prefix), parse_amount(text)
    except ValueError as error:
        raise ValueError(f"{prefix}: {error}") from error
