"""The options of `dsindex mix`, under Megatron's names where Megatron has them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from dsindex.datasets.subjects import AnyDataset, list_text_prefixes, one_prefix
from dsindex.errors import UsageError
from dsindex.options.config import TrainingLength
from dsindex.options.index import Words, parse_blend
from dsindex.options.mix_amounts import REST, Amount, is_number, parse_amount, parse_tokens
from dsindex.options.model import Parsed, option
from dsindex.options.numbers import MEGATRON_COUNT
from dsindex.store.urls import ONLY_INPUTS, as_prefix, refuse_address

DEFAULT_SEQ_LENGTH = 4096


def _sources(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - anything the caller passed
    """Read datasets with amounts: words PREFIX=AMOUNT, a mapping of datasets to amounts, or datasets alone."""
    if isinstance(value, Mapping):
        return tuple(f"{one_prefix(each)}={'rest' if amount is None else amount}" for each, amount in value.items())
    parts = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    return tuple(word for each in parts for word in ([each] if isinstance(each, str) else list_text_prefixes(each)))


class MixConfig(TrainingLength):
    """`dsindex mix`: a blend from the datasets' real token counts."""

    group: ClassVar = "length of the run"
    source: Parsed[AnyDataset | Iterable[AnyDataset] | Mapping[Any, str | None], tuple[str, ...]] = option(
        "PREFIX[=AMOUNT]", default=(), positional=True, kw_only=False, group="", parse=_sources
    )
    """A dataset and how much of it: 40% of the tokens or 0.4, 2.5epochs, 10B tokens, or rest, which is divided in
    proportion to the datasets' tokens; without an amount also the rest; max2epochs is the rest up to a limit."""
    data_path: Words = option("W P", default=None, group="", parse=parse_blend)
    """Show what these weights of a job mean: W1 P1 W2 P2 …."""
    tokens: Parsed[int | str | None, int | None] = option(
        "N", default=None, ge=1, parse=lambda value: parse_tokens(value) if isinstance(value, str) else value
    )
    """Tokens to draw, such as 300B."""
    seq_length: int = option("L", default=DEFAULT_SEQ_LENGTH, ge=2, lt=MEGATRON_COUNT, group="the job")
    """Tokens per sample (default: 4096)."""
    split: str | None = option("S", default=None, group="the job")
    """Shares of train, valid and test in every dataset (default: '969, 30, 1')."""
    valid_data_path: Words = option("P", default=None, group="the job", parse=parse_blend)
    """Datasets of valid, such as what was held out; train then has the whole of its own."""
    test_data_path: Words = option("P", default=None, group="the job", parse=parse_blend)
    """The same, for test."""

    @classmethod
    def prepare(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Take `0.5 A 0.5 B` for a blend."""
        taken = dict(values)
        words = taken.get("source")
        words = words if isinstance(words, list | tuple) else ()
        numbers = [word for word in words if isinstance(word, str) and is_number(word)]
        if numbers:
            if not all(map(is_number, words[::2])) or len(numbers) * 2 != len(words):
                raise UsageError(
                    f"expected datasets as PREFIX=AMOUNT, got the number {numbers[0]}; write the words of a job as "
                    "--data-path W1 P1 W2 P2 …"
                )
            taken["data_path"] = [*(taken.get("data_path") or ()), *taken.pop("source")]
        return taken

    @property
    def has_splits_of_their_own(self) -> bool:
        """Whether train draws from the whole of its datasets, since valid and test have others."""
        return bool(self.valid_data_path or self.test_data_path)

    def _agree(self) -> None:
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
