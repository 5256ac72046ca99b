"""`dsindex mix`: weights of a blend from shares, epochs and token budgets, and what a job draws of each dataset.

A sample has L tokens, and one more that the next sample begins with, all from one dataset. Megatron draws samples, so
a normalised weight is a share of the samples and of the tokens, whatever the sizes of the datasets.

Source: docs/formats.md §2; megatron.core.datasets.blended_megatron_dataset_builder.
"""

from __future__ import annotations

import glob
import math
import os
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from dsindex.amounts import count, short_number, show_epochs, show_percent
from dsindex.datasets.opening import MASK_SUFFIX, TEXT_SUFFIX
from dsindex.datasets.origins import tell_tokenizers_apart
from dsindex.datasets.tails import describe_tails
from dsindex.engine.manifest import read_manifest
from dsindex.engine.report import Line, Report, Table
from dsindex.errors import InputError, LimitError, UsageError
from dsindex.formats.mmididx import read_header
from dsindex.index.building import count_parts
from dsindex.index.epochs import SPLIT_NAMES, WHOLE, parse_split, split_matrix
from dsindex.index.plan import Blend, CacheSettings, describe_sums, find_needed_caches, parse_data_path
from dsindex.machine import available_cpus
from dsindex.options.index import DEFAULT_SPLIT
from dsindex.options.numbers import TOKEN_NUMBER, TOKEN_UNITS
from dsindex.store.urls import ONLY_INPUTS, as_prefix, refuse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dsindex.index.epochs import SplitMatrix
    from dsindex.index.plan import PartCounts
    from dsindex.options.mix import MixConfig

MANY_EPOCHS = 4
"""Up to about four epochs, repeated tokens are nearly worth as much as new ones (Muennighoff et al., 2023)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedDataset:
    """What a mixture draws from one dataset."""

    prefix: str
    tokens: int
    """Tokens of one epoch: of its part in the train split."""
    valid_tokens: int
    test_tokens: int
    weight: str | None
    """As written for Megatron; None in a blend without weights."""
    share: float
    """Its share of the samples, and so of the tokens that are drawn."""
    num_samples: int
    tokens_drawn: int
    epochs: float
    epochs_shuffled_together: int
    """Epochs whose samples are permuted among each other; if there are several, tokens repeat before all are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixResult(Report):
    """A blend, what it draws, and what there is to say about it."""

    datasets: tuple[MixedDataset, ...]
    split: str | None
    """As the job has it; None if each split has datasets of its own."""
    sequence_length: int
    num_samples: int
    num_iterations: int | None
    """None if the batch size is not known."""
    warnings: tuple[str, ...]
    flags: tuple[str, ...]
    """The flags of the datasets for the training script."""

    @property
    def tokens(self) -> int:
        """Tokens of the run."""
        return self.num_samples * self.sequence_length

    @property
    def data_path(self) -> tuple[str, ...]:
        """The words of Megatron's `--data-path`; a single dataset needs no weight."""
        pairs = [(None if len(self.datasets) == 1 else each.weight, each.prefix) for each in self.datasets]
        return tuple(word for pair in pairs for word in pair if word is not None)

    @property
    def first_to_run_out(self) -> MixedDataset:
        """The dataset whose tokens last for the shortest part of the run."""
        return max(self.datasets, key=lambda each: each.epochs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({' '.join(self.data_path)}: {count(self.tokens, 'token')})"

    def lines(self) -> list[Line]:
        """Return the plan."""
        part = "all of each dataset" if self.split is None else f"the train split of {self.split!r}"
        drawn = f"{count(self.num_samples, 'sample')} of {self.sequence_length:,} tokens"
        iterations = "" if self.num_iterations is None else f", {count(self.num_iterations, 'iteration')}"
        return [
            self._table(),
            "",
            f"draws {drawn} from {part}{iterations}: --train-samples {self.num_samples}",
            *self._first(),
            *(f"warning: {warning}" for warning in self.warnings),
            "",
            *self.flags,
        ]

    def _table(self) -> Table:
        total = sum(each.tokens for each in self.datasets)
        show: Callable[[int], int | str] = short_number if max(total, self.tokens) >= 10**7 else int
        others = [name for name in SPLIT_NAMES[1:] if any(getattr(each, f"{name}_tokens") for each in self.datasets)]
        rows: list[tuple[str | int, ...]] = []
        for each in self.datasets:
            drawn = (each.weight or "-", show(each.tokens_drawn), show_percent(each.share), show_epochs(each.epochs))
            held = (show(getattr(each, f"{other}_tokens")) for other in others)
            rows.append((each.prefix, show(each.tokens), *drawn, *held))
        sums = (show(sum(getattr(each, f"{other}_tokens") for each in self.datasets)) for other in others)
        rows.append(("total", show(total), "", show(self.tokens), "100%", show_epochs(self.tokens / total), *sums))
        return Table(head=("dataset", "tokens", "weight", "drawn", "of drawn", "epochs", *others), rows=tuple(rows))

    def _first(self) -> Iterator[str]:
        each = self.first_to_run_out
        after = int(self.tokens / each.epochs) if each.epochs else self.tokens
        if each.tokens_drawn <= each.tokens + self.sequence_length:
            yield f"nothing runs out before the end; {each.prefix} would be the first, after {after:,} tokens"
            return
        at = ""
        if self.num_iterations:
            at = f", at iteration {after // (self.sequence_length * (self.num_samples // self.num_iterations)):,}"
        yield f"first to run out: {each.prefix}, after {after:,} of {self.tokens:,} tokens{at}"
        if each.epochs_shuffled_together > 1:
            together = f"{each.epochs_shuffled_together:,} epochs are shuffled together"
            yield f"  its {together}, so some of its tokens come again before all have come once"


def run_mix(config: MixConfig) -> MixResult:
    """Count datasets and divide the tokens of a run among them.

    Raises:
        InputError: If a dataset is missing, empty or given twice, or the amounts contradict each other.
        LimitError: If Megatron would stop or loop forever.
    """
    prefixes, amounts, weights = _read_sources(config)
    held = _held_out(config, prefixes)
    others = {"valid": config.valid_data_path, "test": config.test_data_path}
    split = None if held or any(others.values()) else config.split or DEFAULT_SPLIT
    try:
        matrix: SplitMatrix = (WHOLE, None, None) if split is None else split_matrix(parse_split(split))
    except ValueError as error:
        raise InputError(f"--split: {error}") from error
    if matrix[0] is None:
        raise InputError(f"--split: expected a share of train above 0, got {split!r}")
    counts = _count(prefixes, matrix)
    available = [parts[0].tokens for parts in counts if parts[0] is not None]
    budget = _tokens_asked(config)
    if amounts is not None:
        tokens, shares = divide(amounts, available, budget, names=prefixes)
        num_samples: int | None = _whole_samples(tokens, config)
        weights = _write_weights(shares, num_samples or 1)
    elif weights is not None and budget is None:
        numbers = [Fraction(float(weight)) for weight in weights]
        shares_of = [Amount(kind="share", value=number / sum(numbers)) for number in numbers]
        num_samples = _whole_samples(divide(shares_of, available, None, names=prefixes)[0], config)
    else:
        num_samples = None if budget is None else _whole_samples(budget, config)
    settings = CacheSettings(sequence_length=config.seq_length, split=split, matrix=None if split is None else matrix)
    datasets, num_samples = _draw(prefixes, counts, weights, num_samples, settings)
    batch = config.global_batch_size
    result = MixResult(
        datasets=datasets,
        split=split,
        sequence_length=config.seq_length,
        num_samples=num_samples,
        num_iterations=None if batch is None else num_samples // batch,
        warnings=(),
        flags=(),
    )
    words = result.data_path
    if held:  # with the weights of their datasets
        others["valid"] = (
            tuple(word for pair in zip(words[::2], held, strict=True) for word in pair) if words[1:] else held
        )
    blends = {"train": words, **{name: tuple(words) for name, words in others.items() if words}}
    flags = tuple(f"--{name}-data-path {shlex.join(words)}" for name, words in blends.items())
    if split is not None:
        flags = (
            f"--data-path {shlex.join(result.data_path)}",
            *((f"--split {shlex.quote(split)}",) if config.split else ()),
        )
    warnings = (*_warn_of_datasets(result), *_warn_of_splits(result, counts, blends))
    return replace(result, warnings=warnings, flags=flags)


def _read_sources(config: MixConfig) -> tuple[tuple[str, ...], list[Amount] | None, tuple[str, ...] | None]:
    """Return the prefixes, with amounts or else with weights as typed; a blend may have no weights."""
    amounts: list[Amount] | None = None
    weights: tuple[str, ...] | None = None
    if config.data_path:
        blend = _parse_blend(config.data_path)
        prefixes, weights = blend.prefixes, None if blend.weights is None else config.data_path[::2]
    else:
        pairs = [read_source(word) for word in config.source]
        prefixes, amounts = tuple(prefix for prefix, _ in pairs), [amount for _, amount in pairs]
    files = [os.path.realpath(f"{prefix}.idx") for prefix in prefixes]
    for prefix, file in zip(prefixes, files, strict=True):
        if files.count(file) > 1:
            raise InputError(f"{prefix}: expected every dataset once, got it twice; add the amounts up")
    return prefixes, amounts, weights


def _parse_blend(words: Sequence[str]) -> Blend:
    try:
        return parse_data_path(words)
    except ValueError as error:
        raise InputError(str(error)) from error


def _held_out(config: MixConfig, prefixes: Sequence[str]) -> tuple[str, ...] | None:
    """Return the validation sets that `build --hold-out` wrote beside all datasets; None if some have none."""
    if config.split is not None or config.valid_data_path or config.test_data_path:
        return None
    found = [_find_hold_out(prefix) for prefix in prefixes]
    known = tuple(each for each in found if each is not None)
    return known if len(known) == len(prefixes) else None


def _find_hold_out(prefix: str) -> str | None:
    manifest = read_manifest(prefix)
    if manifest is None or manifest.content.options.leave_out is None:
        return None
    folder, name = os.path.split(prefix)
    places = (place for place, letter in enumerate(name) if letter == "_")
    others = (os.path.join(folder, f"{name[:place]}_valid{name[place:]}") for place in places)
    return next((other for other in others if os.path.isfile(f"{other}.idx")), None)


def _count(prefixes: Sequence[str], matrix: SplitMatrix) -> list[list[PartCounts | None]]:
    """Count the parts of datasets side by side."""
    with ThreadPoolExecutor(max_workers=available_cpus()) as threads:
        return list(threads.map(lambda prefix: _count_parts(prefix, matrix), prefixes))


def _count_parts(prefix: str, matrix: SplitMatrix) -> list[PartCounts | None]:
    idx = f"{prefix}.idx"
    if not os.path.isfile(idx):
        near = [found.removesuffix(".idx") for found in sorted(glob.glob(f"{glob.escape(prefix)}_*.idx"))]
        hint = f"did you mean {', '.join(near[:4])}?" if near else "check the path"
        raise InputError(f"{idx}: no such file; {hint}")
    stem = prefix.removesuffix(MASK_SUFFIX)
    if stem != prefix and os.path.isfile(f"{stem}{TEXT_SUFFIX}.idx"):
        raise InputError(f"{idx}: expected tokens, got the loss mask of instruction data; use {stem}{TEXT_SUFFIX}")
    if read_header(idx).dtype.kind not in "iu":
        raise InputError(f"{idx}: expected a dataset of tokens, which are integers; leave it out")
    parts = count_parts(prefix, matrix)
    if parts[0] is None or parts[0].tokens <= 0:
        raise InputError(f"{idx}: expected tokens to draw, got a dataset without any in train; leave it out")
    return parts


def _tokens_asked(config: MixConfig) -> int | None:
    """Return the tokens of the run, if the options say them."""
    samples = config.train_samples
    if config.train_iters is not None and config.global_batch_size is not None:
        samples = config.train_iters * config.global_batch_size
    return config.tokens if samples is None else samples * config.seq_length


def _whole_samples(tokens: int, config: MixConfig) -> int:
    """Return the samples of a run, in whole iterations.

    Raises:
        InputError: If it is shorter than one.
    """
    batch = config.global_batch_size or 1
    samples = tokens // config.seq_length // batch * batch
    if not samples:
        what = "one sample" if batch == 1 else "one iteration"
        raise InputError(f"expected a run of at least {what}, {config.seq_length * batch:,} tokens, got {tokens:,}")
    return samples


def _write_weights(shares: Sequence[Fraction], num_samples: int) -> tuple[str, ...]:
    """Return weights with as many decimals as it takes to draw within one sample of the shares."""
    digits = max(5, len(str(num_samples)) + 1)
    rounded = [f"{float(share):.{digits}f}".rstrip("0").rstrip(".") for share in shares]
    return tuple(
        text if float(text) > 0 else f"{float(share):.3g}" for text, share in zip(rounded, shares, strict=True)
    )


def _draw(
    prefixes: Sequence[str],
    counts: Sequence[Sequence[PartCounts | None]],
    weights: Sequence[str] | None,
    num_samples: int | None,
    settings: CacheSettings,
) -> tuple[tuple[MixedDataset, ...], int]:
    """Return what a job draws of each dataset, and its samples.

    Raises:
        LimitError: If Megatron would stop or loop forever.
    """
    parts = {prefix: own[0] for prefix, own in zip(prefixes, counts, strict=True) if own[0] is not None}
    numbers = None if weights is None or len(prefixes) == 1 else tuple(map(float, weights))
    caches, blends = find_needed_caches(
        (Blend(prefixes=tuple(prefixes), weights=numbers), None, None),
        [(num_samples, None, None)],
        settings=settings,
        counts=dict(zip(prefixes, counts, strict=True)),
    )
    shares = [Fraction(weight) for weight in blends[0].weights] if blends else [Fraction(1)]
    size = num_samples or sum(cache.epochs.num_samples for cache in caches)
    if not size:
        raise LimitError(
            f"expected at least one sample of {settings.sequence_length + 1:,} tokens, got none; the datasets or the "
            "budget are too small for --seq-length"
        )
    drawn = apportion(shares, size)
    datasets = tuple(
        MixedDataset(
            prefix=prefix,
            tokens=parts[prefix].tokens,
            valid_tokens=0 if counts[place][1] is None else counts[place][1].tokens,  # type: ignore[union-attr]
            test_tokens=0 if counts[place][2] is None else counts[place][2].tokens,  # type: ignore[union-attr]
            weight=None if weights is None else weights[place],
            share=float(shares[place] / sum(shares)),
            num_samples=drawn[place],
            tokens_drawn=drawn[place] * settings.sequence_length,
            epochs=drawn[place] * settings.sequence_length / parts[prefix].tokens,
            epochs_shuffled_together=caches[place].epochs.num_epochs - caches[place].epochs.separate_final_epoch,
        )
        for place, prefix in enumerate(prefixes)
    )
    return datasets, size


def apportion(shares: Sequence[Fraction], num_samples: int) -> list[int]:
    """Divide samples by shares, by the largest remainders, so that their sum is exact.

    >>> apportion([Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)], 10)
    [4, 3, 3]
    """
    total = sum(shares, Fraction(0))
    exact = [num_samples * share / total for share in shares]
    drawn = [math.floor(number) for number in exact]
    order = sorted(range(len(exact)), key=lambda place: drawn[place] - exact[place])
    for place in order[: num_samples - sum(drawn)]:
        drawn[place] += 1
    return drawn


def _warn_of_datasets(result: MixResult) -> Iterator[str]:
    """Yield sentences about datasets that are repeated often, too small, or made for another loss."""
    for each in result.datasets:
        if each.tokens <= result.sequence_length:
            yield f"{each.prefix} has {each.tokens:,} tokens, less than one sample; leave it out"
        elif each.epochs > MANY_EPOCHS:
            times = f"{each.prefix} is read {show_epochs(each.epochs)} times"
            yield f"{times}; repeating a dataset more than {MANY_EPOCHS} times gains little"
        if not each.num_samples:
            yield f"{each.prefix} gives no sample; raise its share or the budget, or leave it out"
        stem = each.prefix.removesuffix(TEXT_SUFFIX)
        if stem != each.prefix and os.path.isfile(f"{stem}{MASK_SUFFIX}.idx"):
            yield f"{each.prefix} is instruction data; Megatron's blend ignores its loss mask and trains on all tokens"


def _warn_of_splits(
    result: MixResult, counts: Sequence[Sequence[PartCounts | None]], blends: dict[str, tuple[str, ...]]
) -> Iterator[str]:
    """Yield sentences about valid and test, and about weights and tokenizers that differ.

    Raises:
        InputError: If a dataset of valid or test is missing or empty.
    """
    parsed = {name: parse_data_path(words, flag=f"--{name}-data-path") for name, words in blends.items()}
    yield from describe_sums(parsed)
    trained = {os.path.realpath(f"{each.prefix}.idx") for each in result.datasets}
    for name in SPLIT_NAMES[1:]:
        own = parsed[name].prefixes if name in parsed else ()
        _count(own, (WHOLE, None, None))
        for prefix in own:
            if os.path.realpath(f"{prefix}.idx") in trained:
                yield f"{prefix} is in {name} and in train, so the job is evaluated on what it was trained on"
        parts = zip(result.datasets, (each[SPLIT_NAMES.index(name)] for each in counts), strict=True)
        empty = [each.prefix for each, part in parts if part is not None and not part.tokens]
        if empty:
            yield f"{name} has no tokens of {', '.join(empty)}; a job that requests samples of {name} loops forever"
    tails = [
        (each.prefix, own[1].begin, own[1].end) for each, own in zip(result.datasets, counts, strict=True) if own[1]
    ]
    for said in (describe_tails(tails), tell_tokenizers_apart(each.prefix for each in result.datasets)):
        if said is not None:
            yield said


# Amounts: a share, epochs, tokens, part of what remains, or at most so much of it.

_AMOUNT = re.compile(rf"(max)?\s*{TOKEN_NUMBER}\s*(%|epochs?|tokens?|[kmbt])?", flags=re.ASCII | re.IGNORECASE)
TOLERANCE = Fraction(1, 1000)
"""Shares and amounts may miss the whole by this share of it, as 33.33% of each of three datasets do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much of a dataset a mixture draws."""

    kind: Literal["share", "epochs", "tokens", "rest"]
    value: Fraction = Fraction(1)
    is_limit: bool = False
    """Whether it is what remains, in proportion to the dataset's tokens, up to this amount."""

    def tokens(self, available: int, budget: int) -> Fraction:
        """Return the tokens of an amount that is not `rest`."""
        return self.value * {"share": budget, "epochs": available, "tokens": 1}[self.kind]

    @property
    def takes_rest(self) -> bool:
        """Whether it takes part in what the others leave."""
        return self.is_limit or self.kind == "rest"


REST = Amount(kind="rest")


def read_source(word: str) -> tuple[str, Amount]:
    """Return the dataset and the amount of `PREFIX=AMOUNT`; a path itself may have an equals sign.

    Raises:
        UsageError: If there is no dataset, or what follows the equals sign is no amount.
    """
    refuse_address(word, ONLY_INPUTS, UsageError)
    prefix, equals, text = word.rpartition("=")
    if not equals or os.path.isfile(f"{as_prefix(word)}.idx"):
        return as_prefix(word), REST
    try:
        return as_prefix(prefix), parse_amount(text)
    except ValueError as error:
        raise UsageError(f"{prefix}: {error}") from error


def parse_amount(text: str) -> Amount:
    """Return the amount that a text names.

    Raises:
        ValueError: If it names none, or a number from 1 on without a unit, which can be percent or epochs.

    >>> parse_amount("40%") == parse_amount("0.4"), parse_amount("10B").value
    (True, Fraction(10000000000, 1))
    >>> parse_amount("max2epochs")
    Amount(kind='epochs', value=Fraction(2, 1), is_limit=True)
    """
    if text.strip().lower() == "rest":
        return REST
    found = _AMOUNT.fullmatch(text.strip())
    number = Fraction(0) if found is None else Fraction(found[2])
    unit = "" if found is None else (found[3] or "").lower()
    if found is None or number == 0 or (not unit and number >= 1) or (unit == "%" and number > 100):
        expected = "40% of the tokens or 0.4, 2.5epochs, 10B tokens, rest, or a limit such as max2epochs"
        raise ValueError(f"expected {expected}, got {text!r}")
    kind: Literal["share", "epochs", "tokens"] = "tokens"
    if unit in {"", "%"}:
        kind, number = "share", number / (100 if unit else 1)
    elif unit.startswith("epoch"):
        kind = "epochs"
    else:
        number *= TOKEN_UNITS.get(unit, 1)
    return Amount(kind=kind, value=number, is_limit=found[1] is not None)


def divide(
    amounts: Sequence[Amount], available: Sequence[int], budget: int | None, *, names: Sequence[str]
) -> tuple[int, tuple[Fraction, ...]]:
    """Turn amounts into shares of the tokens that are drawn.

    Without a budget, it follows from the amounts in tokens and epochs, and what takes the rest is read once, or up to
    its limit. If all are shares, the run ends where the first dataset has been read once.

    Args:
        amounts: One for each dataset.
        available: Tokens of one epoch of each dataset, all positive.
        budget: Tokens of the run; None if it follows from the amounts.
        names: The datasets' names for messages.

    Returns:
        The tokens of the run, and the share of each dataset in them.

    Raises:
        InputError: If the amounts contradict each other or the budget.

    >>> parsed = [parse_amount(text) for text in ("30%", "max2epochs", "rest")]
    >>> tokens, shares = divide(parsed, [900, 100, 500], 1000, names="abc")
    >>> [str(share * tokens) for share in shares]
    ['300', '350/3', '1750/3']
    """
    shared = sum((a.value for a in amounts if a.kind == "share" and not a.is_limit), Fraction(0))
    if shared > 1 + TOLERANCE:
        raise InputError(f"expected shares of at most 100% together, got {show_percent(shared)}; make them smaller")
    if budget is None:
        amounts = [_without_budget(amount, num) for amount, num in zip(amounts, available, strict=True)]
        budget = _follow_budget(amounts, available, shared)
    pairs = list(zip(amounts, available, strict=True))
    tokens = [Fraction(0) if a.takes_rest else a.tokens(num, budget) for a, num in pairs]
    remaining = budget - sum(tokens, Fraction(0))
    if remaining < -TOLERANCE * budget:
        largest, name = max(zip(tokens, names, strict=True))
        raise InputError(
            f"{name}: expected amounts of at most {budget:,} tokens together, got {int(budget - remaining):,}, "
            f"{int(largest):,} of them of this dataset; raise the budget, or make them smaller"
        )
    takers = [place for place, amount in enumerate(amounts) if amount.takes_rest]
    if takers and remaining <= 0:
        msg = f"{names[takers[0]]}: nothing remains for it, since the others take all {budget:,} tokens"
        raise InputError(f"{msg}; make them smaller")
    remaining = _pour(remaining, takers, pairs, budget, tokens)
    if remaining > TOLERANCE * budget:
        raise InputError(
            f"expected amounts of {budget:,} tokens together, got {int(budget - remaining):,} "
            f"({show_percent((budget - remaining) / budget)}); raise them or their limits, lower the budget, or write "
            "one dataset without an amount to take the rest"
        )
    total = sum(tokens)
    return budget, tuple(each / total for each in tokens)


def _pour(
    remaining: Fraction, takers: list[int], pairs: Sequence[tuple[Amount, int]], budget: int, tokens: list[Fraction]
) -> Fraction:
    """Divide what remains among the takers in proportion to their tokens, up to their limits; return what is left."""
    while takers and remaining > 0:
        rate = remaining / sum(pairs[place][1] for place in takers)
        limits = {
            place: pairs[place][0].tokens(pairs[place][1], budget) for place in takers if pairs[place][0].is_limit
        }
        full = [place for place, limit in limits.items() if limit <= rate * pairs[place][1]]
        for place in full or takers:
            tokens[place] = limits[place] if full else rate * pairs[place][1]
            remaining -= tokens[place]
        takers = [place for place in takers if place not in full] if full else []
    return remaining


def _without_budget(amount: Amount, available: int) -> Amount:
    """Return what takes the rest as an amount of its own: an epoch, or less if that is its limit."""
    if not amount.takes_rest:
        return amount
    is_less = amount.is_limit and amount.kind != "share" and amount.tokens(available, 0) < available
    return Amount(kind=amount.kind, value=amount.value) if is_less else Amount(kind="epochs")


def _follow_budget(amounts: Sequence[Amount], available: Sequence[int], shared: Fraction) -> int:
    """Return the tokens of a run that follow from the amounts."""
    pairs = list(zip(amounts, available, strict=True))
    fixed = sum((amount.tokens(num, 0) for amount, num in pairs if amount.kind != "share"), Fraction(0))
    if fixed and shared >= 1:
        msg = "expected shares below 100% together, since other amounts are in tokens or epochs; make them smaller"
        raise InputError(msg)
    if fixed:
        return max(1, int(fixed / (1 - shared)))
    if shared < 1 - TOLERANCE:
        raise InputError(
            f"expected shares of 100% together, got {show_percent(shared)}; raise them, or write one dataset without "
            "an amount to take the rest"
        )
    return max(1, int(min(num / amount.value for amount, num in pairs)))
