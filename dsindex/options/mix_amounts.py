"""How much of a dataset goes into a mixture: a share, epochs, tokens, or part of what remains."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING

from dsindex.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_NUMBER = r"(\d{1,25}(?:_\d{1,25}){0,8}(?:\.\d{1,25})?|\.\d{1,25})"
_TOKENS = re.compile(rf"{_NUMBER}([kmbt]?)", flags=re.ASCII | re.IGNORECASE)
EXAMPLES = "40% of the tokens or 0.4, 2.5epochs, 10B tokens, or rest"

TOLERANCE = Fraction(1, 1000)
"""Shares and amounts may miss the whole by this share of it, as 33.33% of each of three datasets do."""


class Kind(Enum):
    """What the number of an amount counts."""

    SHARE = "share"
    EPOCHS = "epochs"
    TOKENS = "tokens"
    REST = "rest"
    """Without a number: part of what the others leave, in proportion to the dataset's tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much of a dataset a mixture draws."""

    kind: Kind
    value: Fraction = Fraction(1)


REST = Amount(kind=Kind.REST)


def parse_tokens(text: str) -> int:
    """Return a number of tokens.

    Raises:
        ValueError: If it is no positive number, with k, M, B or T after it or not.

    >>> parse_tokens("300B"), parse_tokens("1.5M"), parse_tokens("2000")
    (300000000000, 1500000, 2000)
    """
    found = _TOKENS.fullmatch(text.strip())
    tokens = 0 if found is None else int(Fraction(found[1]) * _UNITS[found[2].lower()])
    if tokens <= 0:
        raise ValueError(f"expected a positive number of tokens such as 300B, 1.5T or 2000000, got {text!r}")
    return tokens


def is_number(text: str) -> bool:
    """Tell whether a text is a number without a unit, as a weight is."""
    return re.fullmatch(_NUMBER, text.strip(), flags=re.ASCII) is not None


def parse_amount(text: str) -> Amount:
    """Return the amount that a text names.

    Raises:
        ValueError: If it names none, or a number from 1 on without a unit, which can be percent or epochs.

    >>> parse_amount("40%") == parse_amount("0.4")
    True
    >>> parse_amount("2.5epochs").value, parse_amount("10B").value
    (Fraction(5, 2), Fraction(10000000000, 1))
    """
    word = text.strip()
    if word.lower() == "rest":
        return REST
    if is_number(word) and 0 < Fraction(word) < 1:
        return Amount(kind=Kind.SHARE, value=Fraction(word))
    found = re.fullmatch(rf"{_NUMBER}\s*(%|epochs?|tokens?|[kmbt])", word, flags=re.ASCII | re.IGNORECASE)
    if found is None:
        hint = f": write {word}%, {word}epochs or {word}tokens" if is_number(word) and Fraction(word) else ""
        raise ValueError(f"expected {EXAMPLES}, got {text!r}{hint}")
    number, unit = Fraction(found[1]), found[2].lower()
    if number == 0:
        raise ValueError(f"expected more than nothing, got {text!r}; leave the dataset out")
    if unit == "%":
        if number > 100:
            msg = f"expected a share of at most 100%, got {text!r}; more than one pass over a dataset is 2epochs"
            raise ValueError(msg)
        return Amount(kind=Kind.SHARE, value=number / 100)
    if unit.startswith("epoch"):
        return Amount(kind=Kind.EPOCHS, value=number)
    return Amount(kind=Kind.TOKENS, value=number * _UNITS.get(unit, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The tokens of a run, and the share of each dataset in them."""

    tokens: int
    shares: tuple[Fraction, ...]


def divide(
    amounts: Sequence[Amount], available: Sequence[int], budget: int | None, *, names: Sequence[str]
) -> Division:
    """Turn amounts into shares of the tokens that are drawn.

    Without a budget, it follows from the amounts in tokens and epochs, and `rest` is one epoch. If all are shares, the
    run ends where the first dataset has been read once.

    Args:
        amounts: One for each dataset.
        available: Tokens of one epoch of each dataset, all positive.
        budget: Tokens of the run; None if it follows from the amounts.
        names: The datasets' names for messages.

    Raises:
        InputError: If the amounts contradict each other or the budget.

    >>> parsed = [parse_amount("40%"), parse_amount("3epochs"), REST]
    >>> [str(share) for share in divide(parsed, [900, 100, 500], 1000, names="abc").shares]
    ['2/5', '3/10', '3/10']
    """
    if budget is None:  # then nothing says what remains
        amounts = [Amount(kind=Kind.EPOCHS) if amount.kind is Kind.REST else amount for amount in amounts]
    shared = sum((amount.value for amount in amounts if amount.kind is Kind.SHARE), Fraction(0))
    fixed = sum(map(_fixed_tokens, amounts, available), Fraction(0))
    if shared > 1 + TOLERANCE:
        raise InputError(f"expected shares of at most 100% together, got {show_percent(shared)}; make them smaller")
    if budget is None:
        budget = _follow_budget(amounts, available, shared, fixed)
    remaining = budget - fixed - shared * budget
    takers = [name for name, a in zip(names, amounts, strict=True) if a.kind is Kind.REST]
    wanted = [
        amount.value * budget if amount.kind is Kind.SHARE else _fixed_tokens(amount, num)
        for amount, num in zip(amounts, available, strict=True)
    ]
    largest = max(zip(wanted, names, strict=True))
    _check_remaining(remaining, budget, takers, largest, follows=bool(fixed))
    rest = sum(num for amount, num in zip(amounts, available, strict=True) if amount.kind is Kind.REST)
    parts = [
        remaining * num / rest if amount.kind is Kind.REST else tokens
        for amount, num, tokens in zip(amounts, available, wanted, strict=True)
    ]
    total = sum(parts, Fraction(0))
    return Division(tokens=budget, shares=tuple(part / total for part in parts))


def _fixed_tokens(amount: Amount, available: int) -> Fraction:
    """Return the tokens of an amount that does not depend on the budget; 0 for one that does."""
    if amount.kind is Kind.EPOCHS:
        return amount.value * available
    return amount.value if amount.kind is Kind.TOKENS else Fraction(0)


def _follow_budget(amounts: Sequence[Amount], available: Sequence[int], shared: Fraction, fixed: Fraction) -> int:
    """Return the tokens of a run that follow from the amounts."""
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
    return max(1, int(min(num / amount.value for amount, num in zip(amounts, available, strict=True))))


def _check_remaining(
    remaining: Fraction, budget: int, takers: Sequence[str], largest: tuple[Fraction, str], *, follows: bool
) -> None:
    """Refuse amounts that exceed the budget, leave nothing for the rest, or something that nobody takes.

    Args:
        remaining: Tokens that no amount takes.
        budget: Tokens of the run.
        takers: The datasets that take what remains.
        largest: The largest amount, and its dataset.
        follows: Whether an amount is in tokens or epochs.
    """
    taken = budget - remaining
    if remaining < -TOLERANCE * budget:
        raise InputError(
            f"{largest[1]}: expected amounts of at most {budget:,} tokens together, got {int(taken):,}, of which "
            f"{int(largest[0]):,} of this dataset; raise the budget, or make them smaller"
        )
    if takers and remaining <= 0:
        msg = f"{takers[0]}: nothing remains for it, since the others take all {budget:,} tokens; make them smaller"
        raise InputError(msg)
    if not takers and remaining > TOLERANCE * budget:
        raise InputError(
            f"expected amounts of {budget:,} tokens together, got {int(taken):,} ({show_percent(taken / budget)}); "
            f"{'leave the budget out if it follows from' if follows else 'raise'} them, or write one dataset without "
            "an amount to take the rest"
        )


def show_percent(share: Fraction | float) -> str:
    """Return a share in percent, with at least three digits if it is small.

    >>> show_percent(0.4), show_percent(1 / 3), show_percent(0.00012345)
    ('40%', '33.33%', '0.0123%')
    """
    percent = float(share) * 100
    if percent >= 1 or percent == 0:
        return f"{percent:.2f}".rstrip("0").rstrip(".") + "%"
    return f"{percent:.3g}%"


def show_epochs(epochs: float) -> str:
    """Return a number of epochs with four digits, or as many as it has before the point.

    >>> show_epochs(0.86556), show_epochs(2), show_epochs(41775.46)
    ('0.8656', '2', '41,775')
    """
    return f"{epochs:,.0f}" if epochs >= 1000 else f"{epochs:.4g}"
