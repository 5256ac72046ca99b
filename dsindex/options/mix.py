"""The options of `dsindex mix`, under Megatron's names where Megatron has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

from dsindex.datasets.arguments import AnyDataset, list_text_prefixes, single_prefix
from dsindex.options.common import OptionalLocalPath, TrainingLength
from dsindex.options.index import Words
from dsindex.options.model import Parsed, option
from dsindex.options.numbers import MEGATRON_COUNT, parse_tokens

Sources: TypeAlias = AnyDataset | Iterable[AnyDataset] | Mapping[Any, str | None]


def _parse_sources(value: Sources) -> tuple[str, ...]:
    """Read datasets with amounts: words PREFIX=AMOUNT, a mapping of datasets to amounts, or datasets alone."""
    if isinstance(value, Mapping):
        return tuple(f"{single_prefix(key)}={'rest' if amount is None else amount}" for key, amount in value.items())
    parts = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    return tuple(word for part in parts for word in ([part] if isinstance(part, str) else list_text_prefixes(part)))


class MixConfig(TrainingLength):
    r"""Plan a blend from token counts, or see what its weights mean.

    Computes the weights of Megatron's --data-path from the tokens that the datasets really have, and shows the tokens
    and epochs that it draws of each dataset. With --data-path, shows what the weights of a job mean.

    A sample has tokens of one dataset only, so a weight is the dataset's share of the tokens that are drawn, whatever
    its size. Only .idx files are read, and no cluster is joined.

    Examples:
        dsindex mix web_text_document books_text_document=2epochs \
          code_text_document=20% --tokens 300B --global-batch-size 1024
        dsindex mix --data-path 0.3 web_text_document 0.7 books_text_document
        dsindex mix code=30% books=max2epochs web --tokens 1.2T
    """

    group: ClassVar = "length of the run"
    source: Annotated[Parsed[Sources, tuple[str, ...]], _parse_sources] = option(
        "PREFIX[=AMOUNT]", default=(), positional=True, kw_only=False, group="", excludes=("data_path",)
    )
    """A dataset and how much of it: 40% of the tokens or 0.4, 2.5epochs, 10B tokens, or rest, which is divided in
    proportion to the datasets' tokens; without an amount also the rest; max2epochs is the rest up to a limit."""
    data_path: Words = option("W P", default=None, group="")
    """Show what these weights of a job mean: W1 P1 W2 P2 …."""
    tokens: Annotated[Parsed[int | str | None, int | None], parse_tokens] = option(
        "N", default=None, ge=1, excludes=("train_samples", "train_iters")
    )
    """Tokens to draw, such as 300B."""
    seq_length: int = option("L", default=4096, ge=2, le=MEGATRON_COUNT - 1, group="the job")
    """Tokens per sample (default: 4096)."""
    split: str | None = option("S", default=None, group="the job", excludes=("valid_data_path", "test_data_path"))
    """Shares of train, valid and test in every dataset (default: '969, 30, 1')."""
    valid_data_path: Words = option("P", default=None, group="the job")
    """Datasets of valid, such as what was held out; train then has the whole of its own."""
    test_data_path: Words = option("P", default=None, group="the job")
    """The same, for test."""

    per_dataset_sequences_path: OptionalLocalPath = option("FILE.json", default=None, group="the job")
    """Write the file that the job reads with this flag instead of each .idx, for a faster start with many datasets."""

    @property
    def has_splits_of_their_own(self) -> bool:
        """Whether train draws from the whole of its datasets, since valid and test have others."""
        return bool(self.valid_data_path or self.test_data_path)

    def _check_agreement(self) -> None:
        if not (self.source or self.data_path):
            raise ValueError("give at least one dataset, as PREFIX=40%, PREFIX=2epochs or PREFIX")
        if self.train_iters is not None and (self.train_samples is not None or self.global_batch_size is None):
            raise ValueError("--train-iters needs --global-batch-size, and no --train-samples")
