"""The driver of `dsindex mix`: count the datasets, divide the tokens, and compare with caches."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from dsindex.amounts import count
from dsindex.errors import InputError, OutputError
from dsindex.execution.local import available_cpus
from dsindex.execution.report import Report
from dsindex.index.blend import Blend, parse_data_path
from dsindex.index.epochs import SPLIT_NAMES, parse_split, split_matrix
from dsindex.index.needed_caches import CacheSettings
from dsindex.options.index import DEFAULT_SPLIT
from dsindex.options.mix import read_source
from dsindex.options.mix_amounts import Amount, Kind, divide, show_epochs, show_percent
from dsindex.store.storage import atomic_writer, make_folder, open_file
from dsindex.tools.mixture import (
    WHOLE_IN_TRAIN,
    DrawnBlend,
    IntendedBlend,
    MixedSource,
    Mixture,
    SourceCounts,
    check_drawn,
    count_source,
    mix,
    write_weights,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.index.epochs import SplitMatrix
    from dsindex.options.mix import MixConfig


# What is probably not meant in a mixture, as sentences.

MANY_EPOCHS = 4
"""Up to about four epochs, repeated tokens are nearly worth as much as new ones (Muennighoff et al., 2023)."""


def find_warnings(mixture: Mixture, counts: Sequence[SourceCounts]) -> list[str]:
    """Return sentences about datasets that are repeated often, too small, or made for another loss."""
    sentences = []
    for source, counted in zip(mixture.sources, counts, strict=True):
        sample = mixture.sequence_length + 1
        if source.tokens < sample:
            sentences.append(
                f"{source.prefix} has {source.tokens:,} tokens, less than one sample of {sample:,}, so each sample "
                "repeats them; leave it out, or merge it with another dataset"
            )
        elif source.epochs > MANY_EPOCHS:
            sentences.append(
                f"{source.prefix} is read {show_epochs(source.epochs)} times; repeating a dataset more than "
                f"{MANY_EPOCHS} times gains little"
            )
        if source.num_samples < 1:
            sentences.append(
                f"{source.prefix} gives no sample: {show_percent(source.share)} of "
                f"{count(mixture.num_samples, 'sample')} is {source.share * mixture.num_samples:.2g}; raise its share "
                "or the budget, or leave it out"
            )
        if counted.has_mask:
            sentences.append(
                f"{source.prefix} is instruction data; Megatron's blend ignores its loss mask and trains on all tokens"
            )
    return sentences + _find_empty_splits(counts)


def _find_empty_splits(counts: Sequence[SourceCounts]) -> list[str]:
    sentences = []
    for split in SPLIT_NAMES:
        prefixes = [counted.prefix for counted in counts if split in counted.empty_splits]
        if prefixes:
            sentences.append(
                f"{split} has no tokens of {', '.join(prefixes)}; a job that requests samples of {split} loops "
                "forever: give it a larger share with --split, or datasets of its own with --per-split-data-args-path"
            )
    return sentences


def find_weight_warnings(weights: Sequence[float], mixture: Mixture, counts: Sequence[SourceCounts]) -> list[str]:
    """Return sentences about weights that look like something else than shares of tokens."""
    total = math.fsum(weights)
    largest = max(range(len(weights)), key=lambda number: weights[number])
    source = mixture.sources[largest]
    sentences = []
    if len(weights) > 1 and not any(math.isclose(total, whole, rel_tol=1e-3) for whole in (1, 100)):
        sentences.append(
            f"the weights are not shares: their sum is {total:g}, by which Megatron divides them, so "
            f"{weights[largest]:g} for {source.prefix} is {show_percent(source.share)} of the tokens, or "
            f"{show_epochs(source.epochs)} epochs"
        )
    documents = [counted.num_documents for counted in counts]
    if (
        len(weights) > 1
        and _proportional(weights, documents)
        and not _proportional(weights, [source.tokens for source in mixture.sources])
    ):
        sentences.append(
            "the weights are in proportion to the datasets' numbers of documents; they are shares of tokens, and one "
            f"epoch of each would be {' '.join(show_percent(source.share_of_all) for source in mixture.sources)}"
        )
    return sentences


def _proportional(weights: Sequence[float], sizes: Sequence[int]) -> bool:
    return all(
        math.isclose(weight * sum(sizes), size * math.fsum(weights), rel_tol=0.01)
        for weight, size in zip(weights, sizes, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixResult(Report):
    """A mixture, and what there is to say about it."""

    mixture: Mixture
    split: str | None
    """As the job has it; None if each split has its own datasets."""
    global_batch_size: int | None
    warnings: tuple[str, ...]
    drawn: tuple[DrawnBlend, ...]
    """What the caches draw; empty without --check."""
    per_split_data_args_path: str | None
    """The file that was written."""

    @property
    def num_iterations(self) -> int | None:
        """Iterations of the run, if the batch size is known."""
        return None if self.global_batch_size is None else self.mixture.num_samples // self.global_batch_size

    @property
    def ok(self) -> bool:
        """Whether no cache differs from the mixture."""
        return not any(blend.findings for blend in self.drawn)

    @property
    def data_path(self) -> tuple[str, ...]:
        """The words of Megatron's `--data-path`: weights and prefixes."""
        return self.mixture.data_path

    def __repr__(self) -> str:
        return f"{type(self).__name__}({' '.join(self.data_path)}: {count(self.mixture.tokens, 'token')})"

    def lines(self) -> list[str]:
        """Return a report as text: the table, the length of the run, warnings, and what to give to Megatron."""
        mixture = self.mixture
        rows = [_HEADINGS, *map(_row, mixture.sources)]
        total = sum(source.tokens for source in mixture.sources)
        rows.append(
            ("total", f"{total:,}", "100%", "", f"{mixture.tokens:,}", "100%", show_epochs(mixture.tokens / total))
        )
        lines = [*_align(rows), "", *_describe_run(self), *_describe_first(self)]
        lines += [f"warning: {warning}" for warning in self.warnings]
        for blend in self.drawn:
            lines += _describe_drawn(self, blend)
        lines.append("")
        if self.per_split_data_args_path is not None:
            lines.append(f"--per-split-data-args-path {shlex.quote(self.per_split_data_args_path)}")
        else:
            lines.append(f"--data-path {shlex.join(mixture.data_path)}")
        return lines


def run_mix(config: MixConfig) -> MixResult:
    """Plan a mixture, or explain a blend; write its file, and compare it with caches, if asked.

    Raises:
        InputError: If a dataset is missing or has no tokens, or the amounts contradict each other.
        DsindexError: If Megatron would refuse the blend, or a file cannot be read or written.
    """
    split = None if config.per_split_data_args_path is not None else config.split or DEFAULT_SPLIT
    settings = _settings(config, split)
    prefixes, amounts, weights = _read_sources(config)
    matrix = WHOLE_IN_TRAIN if settings.matrix is None else settings.matrix
    if matrix[0] is None:
        raise InputError(f"--split: expected a share for train, got {split!r}; a mixture is of the train split")
    counts = _count(prefixes, matrix)
    budget = _tokens_asked(config)
    has_length = budget is not None
    if amounts is not None or weights is not None:
        asked = amounts if amounts is not None else _as_amounts(weights or ())
        has_length = has_length or any(amount.kind is not Kind.SHARE for amount in asked)
        division = divide(asked, [source.part.tokens for source in counts], budget, names=prefixes)
        budget = division.tokens
    batch = config.global_batch_size or 1
    num_samples = None if budget is None else max(1, budget // config.seq_length // batch) * batch
    if amounts is not None:
        weights = write_weights(division.shares, num_samples or 1)
    mixture = mix(counts, weights, num_samples, settings=settings)
    warnings = find_warnings(mixture, counts)
    if amounts is None and weights is not None:
        warnings += find_weight_warnings([float(weight) for weight in weights], mixture, counts)
    drawn: list[DrawnBlend] = []
    if config.check:
        folder = config.data_cache_path or ""
        blends = _intended(
            config, mixture, counts, settings.matrix, has_length=has_length, has_weights=weights is not None
        )
        drawn = [each for blend in blends for each in check_drawn(folder, blend, matrix=settings.matrix)]
    if config.per_split_data_args_path is not None:
        warnings += _write_per_split(config.per_split_data_args_path, mixture, config)
    return MixResult(
        mixture=mixture,
        split=split,
        global_batch_size=config.global_batch_size,
        warnings=tuple(warnings),
        drawn=tuple(drawn),
        per_split_data_args_path=config.per_split_data_args_path,
    )


def _intended(
    config: MixConfig,
    mixture: Mixture,
    counts: Sequence[SourceCounts],
    matrix: SplitMatrix | None,
    *,
    has_length: bool,
    has_weights: bool,
) -> Iterator[IntendedBlend]:
    """Yield what each split should draw: valid and test have the weights of train, or datasets of their own."""
    prefixes = tuple(source.prefix for source in mixture.sources)
    shares = tuple(source.share for source in mixture.sources)
    yield IntendedBlend(
        split="train",
        prefixes=prefixes,
        shares=shares,
        tokens=mixture.tokens if has_length else None,
        parts=tuple(source.part for source in counts),
    )
    for number, (split, given) in enumerate((("valid", config.valid_data_path), ("test", config.test_data_path)), 1):
        if given:
            blend = _parse_blend(given, split)
            total = sum(blend.weights or ())
            own = None if blend.weights is None else tuple(weight / total for weight in blend.weights)
            yield IntendedBlend(split=split, prefixes=blend.prefixes, shares=own)
        elif matrix is not None and matrix[number] is not None:
            yield IntendedBlend(split=split, prefixes=prefixes, shares=shares if has_weights else None)


def _settings(config: MixConfig, split: str | None) -> CacheSettings:
    try:
        matrix = None if split is None else split_matrix(parse_split(split))
    except ValueError as error:
        raise InputError(f"--split: {error}") from error
    return CacheSettings(sequence_length=config.seq_length, split=split, matrix=matrix)


def _read_sources(config: MixConfig) -> tuple[tuple[str, ...], tuple[Amount, ...] | None, tuple[str, ...] | None]:
    """Return the prefixes, with amounts or else with weights as typed; a blend may have no weights.

    Raises:
        InputError: If an amount is not one, or a dataset is there twice.
        LimitError: If Megatron would refuse a weight.
    """
    amounts: tuple[Amount, ...] | None = None
    weights: tuple[str, ...] | None = None
    try:
        if config.data_path:
            blend = parse_data_path(config.data_path)
            prefixes = blend.prefixes
            weights = None if blend.weights is None else config.data_path[::2]
            if weights is None:
                _check_no_weights(prefixes)
            elif not math.isfinite(sum(blend.weights or ())):
                raise ValueError("--data-path: expected weights with a finite sum; make them smaller")
        else:
            pairs = [read_source(word) for word in config.source]
            prefixes, amounts = tuple(prefix for prefix, _ in pairs), tuple(amount for _, amount in pairs)
    except ValueError as error:
        raise InputError(str(error)) from error
    files: set[str] = set()
    for prefix in prefixes:
        if _real(prefix) in files:
            raise InputError(
                f"{prefix}: expected every dataset once, got it twice; Megatron would draw the same samples for both, "
                "so add the amounts up"
            )
        files.add(_real(prefix))
    return prefixes, amounts, weights


def _real(prefix: str) -> str:
    """Return a dataset's file, whatever links lead to it."""
    return os.path.realpath(f"{prefix}.idx")


def _check_no_weights(prefixes: Sequence[str]) -> None:
    """Refuse weights that Megatron would take for datasets, since they are not before every dataset.

    Raises:
        ValueError: Naming the first.
    """
    for prefix in prefixes:
        if re.fullmatch(r"\d+(\.\d*)?|\.\d+", prefix) and not os.path.isfile(f"{prefix}.idx"):
            msg = f"--data-path: expected a weight before each dataset or before none, got {prefix} and no other pairs"
            raise ValueError(msg)


def _as_amounts(weights: Sequence[str]) -> tuple[Amount, ...]:
    numbers = [Fraction(float(weight)) for weight in weights]
    return tuple(Amount(kind=Kind.SHARE, value=number / sum(numbers)) for number in numbers)


def _count(prefixes: Sequence[str], matrix: SplitMatrix) -> list[SourceCounts]:
    """Count the datasets side by side."""
    with ThreadPoolExecutor(max_workers=available_cpus()) as threads:
        return list(threads.map(lambda prefix: count_source(prefix, matrix), prefixes))


def _tokens_asked(config: MixConfig) -> int | None:
    """Return the tokens of the run, if the options say them.

    Raises:
        InputError: If they are fewer than those of one iteration.
    """
    samples = config.train_samples
    if config.train_iters is not None and config.global_batch_size is not None:
        samples = config.train_iters * config.global_batch_size
    tokens = config.tokens if samples is None else samples * config.seq_length
    least = config.seq_length * (config.global_batch_size or 1)
    if tokens is not None and tokens < least:
        what = "one sample" if config.global_batch_size is None else "one iteration"
        raise InputError(f"expected a run of at least {what}, {least:,} tokens, got {tokens:,}; make it longer")
    return tokens


def _write_per_split(path: str, mixture: Mixture, config: MixConfig) -> list[str]:
    """Write the file of Megatron's `--per-split-data-args-path`, and return warnings about its other splits.

    Raises:
        InputError: If a dataset of valid or test is missing or empty.
        OutputError: If the file exists with other content, or cannot be written.
    """
    words: dict[str, list[str] | None] = {"train": list(mixture.data_path), "valid": None, "test": None}
    trained = {_real(source.prefix) for source in mixture.sources}
    warnings = []
    for split, given in (("valid", config.valid_data_path), ("test", config.test_data_path)):
        if not given:
            continue
        words[split] = list(given)
        prefixes = _parse_blend(given, split).prefixes
        _count(prefixes, WHOLE_IN_TRAIN)
        warnings += [
            f"{prefix} is in {split} and in train, so the job is evaluated on what it was trained on"
            for prefix in prefixes
            if _real(prefix) in trained
        ]
    text = json.dumps(words, indent=2, ensure_ascii=False) + "\n"
    if os.path.lexists(path) and not (os.path.isfile(path) and _read(path) == text.encode()):
        raise OutputError(f"{path}: exists already with other content; remove it, or choose another path")
    make_folder(os.path.dirname(path) or ".")
    with atomic_writer(path) as file:
        file.write(text.encode())
    return warnings


def _parse_blend(given: Sequence[str], split: str) -> Blend:
    try:
        return parse_data_path(given, flag=f"--{split}-data-path")
    except ValueError as error:
        raise InputError(str(error)) from error


def _read(path: str) -> bytes:
    try:
        with open_file(path) as file:
            return file.read()
    except OSError as error:
        msg = f"{path}: exists already and cannot be read ({error.strerror}); choose another path"
        raise OutputError(msg) from error


_HEADINGS = ("dataset", "tokens", "of all", "weight", "drawn", "of drawn", "epochs")


def _row(source: MixedSource) -> tuple[str, ...]:
    return (
        source.prefix,
        f"{source.tokens:,}",
        show_percent(source.share_of_all),
        source.weight or "-",
        f"{source.tokens_drawn:,}",
        show_percent(source.share),
        show_epochs(source.epochs),
    )


def _align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()


def _describe_run(report: MixResult) -> Iterator[str]:
    mixture = report.mixture
    part = "all of each dataset" if report.split is None else f"the train split of {report.split!r}"
    iterations = ""
    if report.num_iterations is not None:
        iterations = f", {count(report.num_iterations, 'iteration')} of {report.global_batch_size:,}"
    yield (
        f"draws {count(mixture.num_samples, 'sample')} of {mixture.sequence_length:,} tokens from {part}{iterations}: "
        f"--train-samples {mixture.num_samples}"
    )


def _describe_first(report: MixResult) -> Iterator[str]:
    mixture = report.mixture
    source = mixture.first_to_run_out
    after = mixture.tokens_until_read_once(source)
    if source.tokens_drawn > source.tokens + mixture.sequence_length:
        at = f", at iteration {_iteration(report, after):,}" if report.global_batch_size else ""
        yield f"first to run out: {source.prefix}, after {after:,} of {mixture.tokens:,} tokens{at}"
        if source.epochs_shuffled_together > 1:
            together = f"{source.epochs_shuffled_together:,} epochs are shuffled together"
            yield f"  its {together}, so some of its tokens come again before all have come once"
    else:
        yield f"nothing runs out before the end; {source.prefix} would be the first, after {after:,} tokens"


def _iteration(report: MixResult, tokens: int) -> int:
    return tokens // (report.mixture.sequence_length * (report.global_batch_size or 1))


def _describe_drawn(report: MixResult, blend: DrawnBlend) -> Iterator[str]:
    size = sum(blend.num_samples)
    yield f"{blend.description}: draws {'something else' if blend.findings else 'what is intended'}"
    epoch = {source.prefix: source.tokens for source in report.mixture.sources} if blend.split == "train" else {}
    for prefix, num, share in zip(blend.prefixes, blend.num_samples, blend.shares, strict=True):
        tokens = num * blend.sequence_length
        epochs = f", {show_epochs(tokens / epoch[prefix])} epochs" if prefix in epoch else ""
        yield f"  {prefix}: {num:,} of {count(size, 'sample')}, {show_percent(share)}; {tokens:,} tokens{epochs}"
    for finding in blend.findings:
        yield f"  FOUND: {finding}"
