"""`dsindex mix`: weights of a blend from shares, epochs and token budgets, and what a job draws from each dataset.

A sample has L tokens, and one more that the next sample begins with, all from one dataset. Megatron draws samples, so
a normalised weight is a share of the samples and of the tokens, whatever the sizes of the datasets.

Source: docs/formats.md §2; megatron.core.datasets.blended_megatron_dataset_builder.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from dsindex.commands.index import describe_sums, write_sequence_counts
from dsindex.datasets.lineage import describe_data
from dsindex.errors import InputError, LimitError, UsageError
from dsindex.formats.manifest import read_manifest
from dsindex.megatron.building import count_parts
from dsindex.megatron.epochs import SPLIT_NAMES, WHOLE, parse_split, split_matrix
from dsindex.megatron.plan import Blend, CacheSettings, find_needed_caches, parse_data_path, read_list
from dsindex.messages import THOUSANDS, show_epochs, show_percent, split_unit
from dsindex.options.index import DEFAULT_SPLIT
from dsindex.store.machine import available_cpus
from dsindex.store.urls import ONLY_INPUTS, prefix_of, refuse_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.megatron.epochs import SplitMatrix
    from dsindex.megatron.plan import PartCounts
    from dsindex.options.mix import MixConfig

MANY_EPOCHS = 4
"""Up to about four epochs, repeated tokens are worth nearly as much as new ones (Muennighoff et al., 2023)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedDataset:
    """What a mixture draws from one dataset."""

    prefix: str
    tokens: int
    """Tokens of the dataset's part in train, which is one epoch."""
    valid_tokens: int
    test_tokens: int
    weight: str | None
    """The weight as written for Megatron; None in a blend without weights."""
    share: float
    """The dataset's share of the samples, and so of the tokens that are drawn."""
    num_samples: int
    tokens_drawn: int
    epochs_shuffled_together: int
    """Epochs whose samples are shuffled together; above 1, some tokens repeat before the first epoch ends."""

    @property
    def epochs(self) -> float:
        """How often the dataset's tokens are drawn."""
        return self.tokens_drawn / self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MixResult:
    """A blend, what it draws from each dataset, and warnings."""

    datasets: tuple[MixedDataset, ...]
    split: str | None
    """The job's --split; None if each split has its own datasets."""
    sequence_length: int
    num_samples: int
    num_iterations: int | None
    """None if the batch size is not known."""
    data_path: tuple[str, ...]
    """The words of Megatron's `--data-path`; a single dataset needs no weight."""
    flags: tuple[str, ...]
    """The training script's flags for the datasets."""
    warnings: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """Tokens of the run."""
        return self.num_samples * self.sequence_length

    @property
    def first_to_run_out(self) -> MixedDataset:
        """The dataset that is read most often, so its tokens run out first."""
        return max(self.datasets, key=lambda dataset: dataset.epochs)


def run_mix(config: MixConfig) -> MixResult:
    """Count datasets and divide the tokens of a run among them.

    Raises:
        InputError: If a dataset is missing, empty or given twice, or the amounts contradict each other.
        LimitError: If Megatron would stop or loop forever.
    """
    prefixes, amounts, weights = _read_sources(config)
    hold_outs = _find_hold_outs(config, prefixes)
    split = None if hold_outs or config.has_splits_of_their_own else config.split or DEFAULT_SPLIT
    matrix = (WHOLE, None, None) if split is None else split_matrix(parse_split(split))
    counts = _count_all_parts(prefixes, matrix)
    tokens, num_samples, batch = config.tokens, config.train_samples, config.global_batch_size
    if config.train_iters is not None and batch is not None:
        num_samples = config.train_iters * batch
    if num_samples is not None:
        tokens = num_samples * config.seq_length
    if amounts:
        tokens, shares = divide(amounts, [parts[0].tokens for parts in counts if parts[0]], tokens, names=prefixes)
    if tokens is not None:
        per_iteration = config.seq_length * (batch or 1)
        num_samples = tokens // per_iteration * (batch or 1)
        if not num_samples:
            problem = f"one {'sample' if batch is None else 'iteration'} takes {per_iteration:,} tokens"
            raise InputError(f"{tokens:,} tokens are too few: {problem}", hint="raise the tokens of the run")
    if config.source:
        digits = max(5, len(str(num_samples)) + 1)  # enough to draw within one sample of the shares
        weights = tuple(f"{float(share):.{digits}g}" for share in shares)
    settings = CacheSettings(sequence_length=config.seq_length, split=split, matrix=None if split is None else matrix)
    datasets, num_samples = _draw(prefixes, counts, weights, num_samples, settings)
    data_path = _blend_words(prefixes, weights)
    data_paths = {
        "train": data_path,
        "valid": _blend_words(hold_outs, weights) if hold_outs else config.valid_data_path,
        "test": config.test_data_path,
    }
    words_by_split = {name: tuple(words) for name, words in data_paths.items() if words}
    blends = {name: parse_data_path(words, flag=f"--{name}-data-path") for name, words in words_by_split.items()}
    flags = [f"--{name}-data-path {shlex.join(words)}" for name, words in words_by_split.items()]
    if split is not None:
        split_flags = [f"--split {shlex.quote(split)}"] if config.split else []
        flags = [f"--data-path {shlex.join(data_path)}", *split_flags]
    if config.per_dataset_sequences_path is not None:
        prefixes_by_path = {prefix: prefix for blend in blends.values() for prefix in blend.prefixes}
        write_sequence_counts(config.per_dataset_sequences_path, prefixes_by_path)
        flags.append(f"--per-dataset-sequences-path {shlex.quote(config.per_dataset_sequences_path)}")
    return MixResult(
        datasets=datasets,
        split=split,
        sequence_length=config.seq_length,
        num_samples=num_samples,
        num_iterations=None if batch is None else num_samples // batch,
        data_path=data_path,
        flags=tuple(flags),
        warnings=tuple(_warnings(datasets, counts, blends)),
    )


def _read_sources(config: MixConfig) -> tuple[tuple[str, ...], list[Amount], tuple[str, ...] | None]:
    """Return the prefixes, their amounts, and a job's weights as words; a job without weights has no amounts."""
    weights: tuple[str, ...] | None = None
    amounts: list[Amount] = []
    if config.data_path:
        blend = parse_data_path(config.data_path)
        prefixes = blend.prefixes
        if blend.weights is not None:
            weights = tuple(repr(weight).removesuffix(".0") for weight in blend.weights)
            amounts = [Amount(kind="share", value=share) for share in blend.shares("--data-path")]
    else:
        pairs = [pair for word in config.source for pair in read_source(word)]
        prefixes, amounts = tuple(prefix for prefix, _ in pairs), [amount for _, amount in pairs]
    num_by_path = Counter(os.path.realpath(f"{prefix}.idx") for prefix in prefixes)
    for prefix in prefixes:
        if num_by_path[os.path.realpath(f"{prefix}.idx")] > 1:
            raise InputError(f"{prefix}: this dataset is given twice", hint="add the amounts up")
    return prefixes, amounts, weights


def _find_hold_outs(config: MixConfig, prefixes: Sequence[str]) -> tuple[str, ...]:
    """Return the validation set that `build --hold-out` wrote next to each dataset; nothing if one is missing."""
    if config.split is not None or config.has_splits_of_their_own:
        return ()
    hold_outs = tuple(filter(None, map(_find_hold_out, prefixes)))
    return hold_outs if len(hold_outs) == len(prefixes) else ()


def _find_hold_out(prefix: str) -> str | None:
    manifest = read_manifest(prefix)
    if manifest is None or manifest.content.options.leave_out is None:
        return None
    folder, name = os.path.split(prefix)
    positions = (position for position, letter in enumerate(name) if letter == "_")
    candidates = (os.path.join(folder, f"{name[:position]}_valid{name[position:]}") for position in positions)
    return next((candidate for candidate in candidates if os.path.isfile(f"{candidate}.idx")), None)


def _blend_words(prefixes: tuple[str, ...], weights: Sequence[str] | None) -> tuple[str, ...]:
    """Return the words of a blend; a single dataset needs no weight."""
    if weights is None or len(prefixes) == 1:
        return prefixes
    return tuple(word for pair in zip(weights, prefixes, strict=True) for word in pair)


def _count_all_parts(prefixes: Sequence[str], matrix: SplitMatrix) -> list[list[PartCounts | None]]:
    """Count the parts of datasets in parallel.

    Raises:
        InputError: If one is missing, or has no tokens in train.
    """
    with ThreadPoolExecutor(max_workers=available_cpus()) as threads:
        counts = list(threads.map(lambda prefix: count_parts(prefix, matrix), prefixes))
    for prefix, (train, *_) in zip(prefixes, counts, strict=True):
        if train is None or train.tokens <= 0:
            raise InputError(f"{prefix}.idx: there are no tokens in train", hint="leave the dataset out")
    return counts


def _draw(
    prefixes: Sequence[str],
    counts: Sequence[Sequence[PartCounts | None]],
    weights: Sequence[str] | None,
    num_samples: int | None,
    settings: CacheSettings,
) -> tuple[tuple[MixedDataset, ...], int]:
    """Return what a job draws from each dataset, and the job's number of samples.

    Raises:
        LimitError: If Megatron would stop or loop forever.
    """
    numeric_weights = None if weights is None or len(prefixes) == 1 else tuple(map(float, weights))
    caches, blend_caches = find_needed_caches(
        (Blend(prefixes=tuple(prefixes), weights=numeric_weights), None, None),
        [(num_samples, None, None)],
        settings=settings,
        counts=dict(zip(prefixes, counts, strict=True)),
    )
    drawn_weights = tuple(blend_caches[0].weights) if blend_caches else (1.0,)
    shares = Blend(prefixes=tuple(prefixes), weights=drawn_weights).shares("--data-path")
    total_samples = num_samples or sum(cache.epochs.num_samples for cache in caches)
    if not total_samples:
        problem = f"there are too few tokens for a sample of {settings.sequence_length + 1:,}"
        raise LimitError(problem, hint="shorten --seq-length, or raise the tokens of the run")
    datasets, typed_weights = list[MixedDataset](), weights or (None,) * len(prefixes)
    for prefix, parts, weight, share, cache in zip(prefixes, counts, typed_weights, shares, caches, strict=True):
        train, valid, test = (0 if part is None else part.tokens for part in parts)
        dataset = MixedDataset(
            prefix=prefix,
            tokens=train,
            valid_tokens=valid,
            test_tokens=test,
            weight=weight,
            share=float(share),
            num_samples=round(share * total_samples),
            tokens_drawn=round(share * total_samples) * settings.sequence_length,
            epochs_shuffled_together=cache.epochs.num_epochs - cache.epochs.separate_final_epoch,
        )
        datasets.append(dataset)
    return tuple(datasets), total_samples


def _warnings(
    datasets: Sequence[MixedDataset], counts: Sequence[Sequence[PartCounts | None]], blends: dict[str, Blend]
) -> Iterator[str]:
    """Yield sentences about datasets that are repeated often or too small, and about valid, test and weights.

    Raises:
        InputError: If a dataset of valid or test is missing or empty.
    """
    for dataset in datasets:
        if dataset.epochs > MANY_EPOCHS:
            sentence = f"{dataset.prefix} is read {show_epochs(dataset.epochs)} times"
            yield f"{sentence}; repeating a dataset more than {MANY_EPOCHS} times gains little"
        if not dataset.num_samples:
            yield f"{dataset.prefix} gives no sample; raise its share or the budget, or leave it out"
    yield from describe_sums(blends)
    trained_paths = {os.path.realpath(f"{dataset.prefix}.idx") for dataset in datasets}
    for number, name in enumerate(SPLIT_NAMES[1:], start=1):
        prefixes = blends[name].prefixes if name in blends else ()
        _count_all_parts(prefixes, (WHOLE, None, None))
        for prefix in prefixes:
            if os.path.realpath(f"{prefix}.idx") in trained_paths:
                yield f"{prefix} is in {name} and in train, so the job is evaluated on what it was trained on"
        pairs = zip(datasets, (split_parts[number] for split_parts in counts), strict=True)
        empty = [dataset.prefix for dataset, part in pairs if part is not None and not part.tokens]
        if empty:
            yield f"{name} has no tokens of {', '.join(empty)}; a job that requests samples of {name} loops forever"
    valid_bounds = [None if parts[1] is None else (parts[1].begin, parts[1].end) for parts in counts]
    yield from describe_data(dict(zip((dataset.prefix for dataset in datasets), valid_bounds, strict=True)))


# Amounts: a share, epochs, tokens, a part of the rest, or a limit on that part.

TOLERANCE = Fraction(1, 1000)
"""Shares and amounts may miss the total by this fraction of it, as three shares of 33.33% do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much of a dataset a mixture draws."""

    kind: Literal["share", "epochs", "tokens"]
    value: Fraction
    is_limit: bool = False
    """Whether the dataset takes part of the rest, in proportion to its tokens, up to this amount."""

    def tokens(self, available: int, budget: int) -> Fraction:
        """Return the tokens of an amount, or of its limit."""
        return self.value * {"share": budget, "epochs": available, "tokens": 1}[self.kind]


_UNITS: dict[str, tuple[Literal["share", "epochs", "tokens"], Fraction]] = {
    "": ("share", Fraction(1)),
    "%": ("share", Fraction(1, 100)),
    **dict.fromkeys(("epoch", "epochs"), ("epochs", Fraction(1))),
    **dict.fromkeys(("token", "tokens"), ("tokens", Fraction(1))),
    **{unit: ("tokens", Fraction(size)) for unit, size in THOUSANDS.items() if unit},
}
REST = Amount(kind="tokens", value=Fraction(2**63), is_limit=True)
"""The rest, without a limit that could be reached."""


def read_source(word: str) -> Iterator[tuple[str, Amount]]:
    """Yield the dataset and the amount of `PREFIX=AMOUNT`; a path itself may have an equals sign.

    The datasets of a list divide shares and tokens by their weights; epochs hold for each of them.

    Raises:
        UsageError: If the word is only an amount, or the text after the equals sign is not an amount.
    """
    refuse_address(word, ONLY_INPUTS, UsageError)
    prefix, equals, text = word.rpartition("=")
    amount = REST
    if not equals or os.path.isfile(f"{prefix_of(word)}.idx"):
        prefix = word
    else:
        try:
            amount = parse_amount(text)
        except ValueError as error:
            raise UsageError(f"{prefix}: {error}") from error
    if split_unit(prefix)[0] is not None and not os.path.isfile(f"{prefix}.idx"):
        hint = "write PREFIX=AMOUNT, or give the words of a job: --data-path WEIGHT PREFIX WEIGHT PREFIX"
        raise UsageError(f"{prefix} is an amount, not a dataset", hint=hint)
    blend = read_list(prefix)
    if blend is None:
        yield prefix_of(prefix), amount
    elif amount == REST or amount.kind == "epochs":
        yield from ((member, amount) for member in blend.prefixes)
    else:
        amounts = (replace(amount, value=amount.value * share) for share in blend.shares(prefix))
        yield from zip(blend.prefixes, amounts, strict=True)


def parse_amount(text: str) -> Amount:
    """Return the amount that a text names.

    Raises:
        ValueError: If it names no amount, or a number from 1 on without a unit, which could be percent or epochs.

    >>> parse_amount("40%") == parse_amount("0.4"), parse_amount("10B").value
    (True, Fraction(10000000000, 1))
    >>> parse_amount("max2epochs")
    Amount(kind='epochs', value=Fraction(2, 1), is_limit=True)
    """
    text = text.strip().lower()
    if text == "rest":
        return REST
    number, unit = split_unit(text.removeprefix("max"))
    kind, factor = _UNITS.get(unit, ("share", Fraction(0)))
    value = (number or 0) * factor
    if value == 0 or (kind == "share" and value > 1) or (not unit and value == 1):
        amounts = "40% of the tokens or 0.4, 2.5epochs, 10B tokens, rest, or a limit such as max2epochs"
        raise ValueError(f"{text!r} is not an amount such as {amounts}")
    return Amount(kind=kind, value=value, is_limit=text.startswith("max"))


def divide(
    amounts: Sequence[Amount], available: Sequence[int], budget: int | None, *, names: Sequence[str]
) -> tuple[int, list[Fraction]]:
    """Turn amounts into shares of the tokens that are drawn.

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
    shares = sum(amount.value for amount in amounts if amount.kind == "share" and not amount.is_limit)
    if shares > 1 + TOLERANCE:
        raise InputError(f"the shares add up to {show_percent(shares)}, more than 100%", hint="make them smaller")
    if budget is None:
        budget = _derive_budget(amounts, available)
    sizes = [amount.tokens(epoch_tokens, budget) for amount, epoch_tokens in zip(amounts, available, strict=True)]
    tokens = [Fraction(0) if amount.is_limit else size for amount, size in zip(amounts, sizes, strict=True)]
    remaining = budget - sum(tokens)
    if remaining < -TOLERANCE * budget:
        largest, name = max(zip(tokens, names, strict=True))
        problem = f"the amounts add up to {int(budget - remaining):,} tokens, more than the {budget:,} of the run"
        hint = "raise the tokens of the run, or make the amounts smaller"
        raise InputError(f"{name}: {problem}; {int(largest):,} are of this dataset", hint=hint)
    takers = [place for place, amount in enumerate(amounts) if amount.is_limit]
    if takers and remaining <= 0:
        problem = f"nothing remains for it, since the others take all {budget:,} tokens"
        raise InputError(f"{names[takers[0]]}: {problem}", hint="make their amounts smaller")
    takers.sort(key=lambda place: sizes[place] / available[place])  # the limit that is reached first comes first
    for number, place in enumerate(takers):
        part = remaining * Fraction(available[place], sum(available[taker] for taker in takers[number:]))
        tokens[place] = min(part, sizes[place])
        remaining -= tokens[place]
    if remaining > TOLERANCE * budget:
        portion = f"{int(budget - remaining):,} tokens, {show_percent((budget - remaining) / budget)} of the run"
        hint = (
            "raise them or their limits, lower the tokens of the run, or give one dataset no amount: it takes the rest"
        )
        raise InputError(f"the amounts add up to {portion}", hint=hint)
    total = sum(tokens)
    return budget, [num_tokens / total for num_tokens in tokens]


def _derive_budget(amounts: Sequence[Amount], available: Sequence[int]) -> int:
    """Return the tokens of a run that follow from the amounts.

    Datasets that take the rest are read once, or up to their limit. If all amounts are shares, the run ends when the
    first dataset has been read once.
    """
    pairs = list(zip(amounts, available, strict=True))
    total_share = sum(amount.value for amount, _ in pairs if amount.kind == "share" and not amount.is_limit)
    if all(amount.kind == "share" and not amount.is_limit for amount in amounts):
        return max(1, int(min(tokens / amount.value for amount, tokens in pairs)))
    if total_share >= 1:
        problem = f"the shares add up to {show_percent(total_share)}, and other amounts are in tokens or epochs"
        raise InputError(problem, hint="make the shares smaller")
    fixed_tokens = Fraction(0)
    for amount, tokens in pairs:
        if amount.is_limit:
            fixed_tokens += tokens if amount.kind == "share" else min(Fraction(tokens), amount.tokens(tokens, 0))
        elif amount.kind != "share":
            fixed_tokens += amount.tokens(tokens, 0)
    return max(1, int(fixed_tokens / (1 - total_share)))
