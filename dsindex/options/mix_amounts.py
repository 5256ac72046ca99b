"""How much of a dataset goes into a mixture: a share, epochs, tokens, part of what remains, or at most so much."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from dsindex.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_NUMBER = r"(\d{1,25}(?:_\d{1,25}){0,8}(?:\.\d{1,25})?|\.\d{1,25})"
_AMOUNT = re.compile(rf"(max)?\s*{_NUMBER}\s*(%|epochs?|tokens?|[kmbt])?", flags=re.ASCII | re.IGNORECASE)
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


def parse_tokens(text: str) -> int:
    """Return a number of tokens.

    Raises:
        ValueError: If it is no positive number, with k, M, B or T after it or not.

    >>> parse_tokens("300B"), parse_tokens("1.5M"), parse_tokens("2000")
    (300000000000, 1500000, 2000)
    """
    found = re.fullmatch(rf"{_NUMBER}([kmbt]?)", text.strip(), flags=re.ASCII | re.IGNORECASE)
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
        number *= _UNITS.get(unit, 1)
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
