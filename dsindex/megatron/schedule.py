"""Blends whose weights change over a run: `--blend-schedule`, and the samples that it draws from each dataset.

    0:90,10 50%:50,50               steps: these weights until the half of the run, then those
    linear 0:90,10 200Btokens:1,1   from the first to the second on a line, then constant

W[d](t) is the integral of the normalised weight of dataset d over the first t samples. `arrays.blend_by_schedule` draws
samples so that the samples taken from each dataset differ from W[d](t) by less than one at every t.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import InputError
from dsindex.messages import show_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_POSITION = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)([kmbt]?) ?(%|tokens?|samples?|)", flags=re.ASCII | re.IGNORECASE)
_WEIGHT = re.compile(r"(\d{1,20}(\.\d{0,20})?|\.\d{1,20})(e-?\d{1,2})?", flags=re.ASCII | re.IGNORECASE)
_EXAMPLE = "'0:90,10 50%:50,50'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The weights from a position of the run on, or at it in a linear schedule."""

    number: Fraction
    unit: str
    """What the number counts: `samples`, `tokens`, or `share` of the run."""
    weights: tuple[float, ...]
    """In the order of the datasets; not all 0."""

    @property
    def shown(self) -> str:
        """The position in words."""
        return f"{float(self.number):.15g}" + {"share": "%", "samples": "", "tokens": "tokens"}[self.unit]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendSchedule:
    """Weights over a run."""

    points: tuple[Point, ...]
    is_linear: bool = False


def parse_blend_schedule(text: str) -> BlendSchedule:
    """Parse a schedule.

    Raises:
        InputError: If it is not a schedule.

    >>> [point.shown for point in parse_blend_schedule("linear 0:90,10 1.5Btokens:1,1 80%:0,1").points]
    ['0', '1500000000tokens', '80%']
    """
    words = text.split()
    shape = words.pop(0) if words[:1] in (["steps"], ["linear"]) else "steps"
    points = tuple(map(_parse_point, words))
    if not points or points[0].number != 0:
        got = points[0].shown if points else "none"
        raise InputError(f"--blend-schedule begins at {got}", hint=f"give weights from 0 on, as in {_EXAMPLE}")
    return BlendSchedule(points=points, is_linear=shape == "linear")


def _parse_point(word: str) -> Point:
    position, _, after = word.partition(":")
    found = _POSITION.fullmatch(position)
    if found is None or (found[2] and found[3] in {"", "%"}):
        hint = "write POSITION:WEIGHT,WEIGHT with a position such as 16000, 250Btokens or 50%"
        raise InputError(f"--blend-schedule: {show_value(word)} is not weights at a position", hint=hint)
    weights = after.split(",")
    numbers = tuple(float(weight) for weight in weights if _WEIGHT.fullmatch(weight))
    if len(numbers) < len(weights) or not any(numbers):
        got = show_value(after)
        raise InputError(f"--blend-schedule: {got} at {position} are not weights above 0")
    unit = {"%": "share", "t": "tokens"}.get(found[3][:1].lower(), "samples")
    return Point(number=Fraction(found[1]) * _FACTORS[found[2].lower()], unit=unit, weights=numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCurve:
    """The weights of each dataset as a function of the sample, in pieces that are lines."""

    starts: NDArray[np.float64]
    """First sample of each piece, shape [k]."""
    weights: NDArray[np.float64]
    """Normalised weights at the begin of each piece, shape [k, datasets]."""
    slopes: NDArray[np.float64]
    """By which they change per sample, shape [k, datasets]."""
    num_samples: int

    def integral(self, begin: float, end: float) -> NDArray[np.float64]:
        """Return the samples that each dataset should give to [begin, end), shape [datasets]."""
        total = np.zeros(self.weights.shape[1])
        for number, start in enumerate(self.starts):
            stop = self.starts[number + 1] if number + 1 < len(self.starts) else max(end, start)
            low, high = max(begin, start) - start, min(end, stop) - start
            if high > low:
                total += self.weights[number] * (high - low) + self.slopes[number] * (high * high - low * low) / 2
        return total

    def beginning_at(self, begin: int) -> WeightCurve:
        """Return the rest of the curve, counted from a sample."""
        first = int(np.searchsorted(self.starts, begin, side="right")) - 1
        starts = np.maximum(self.starts[first:] - begin, 0.0)
        weights = self.weights[first:].copy()
        weights[0] += self.slopes[first] * (begin - self.starts[first])
        return WeightCurve(
            starts=starts, weights=weights, slopes=self.slopes[first:], num_samples=self.num_samples - begin
        )


def constant_curve(weights: Sequence[float], num_samples: int) -> WeightCurve:
    """Return the curve of weights that do not change."""
    shares = np.array([weights], np.float64) / sum(weights)
    return WeightCurve(starts=np.zeros(1), weights=shares, slopes=np.zeros_like(shares), num_samples=num_samples)


def draw_curve(schedule: BlendSchedule, num_datasets: int, *, num_samples: int, sequence_length: int) -> WeightCurve:
    """Return the weights of datasets over a run.

    Args:
        schedule: The schedule.
        num_datasets: Datasets of the blend.
        num_samples: Samples of the run.
        sequence_length: L, by which positions in tokens become samples.

    Raises:
        InputError: If it does not fit the datasets or the run.

    >>> curve = draw_curve(parse_blend_schedule("0:9,1 50%:1,1"), 2, num_samples=100, sequence_length=8)
    >>> curve.integral(0, 100).tolist()
    [70.0, 30.0]
    """
    scales = {"samples": Fraction(1), "tokens": Fraction(1, sequence_length), "share": Fraction(num_samples, 100)}
    starts: list[int] = []
    for point in schedule.points:
        start = int(point.number * scales[point.unit])
        last = num_samples if schedule.is_linear else num_samples - 1
        if start > last or (starts and start <= starts[-1]):
            raise InputError(f"--blend-schedule: {point.shown} (sample {start}) is not ascending and up to {last}")
        if len(point.weights) != num_datasets:
            raise InputError(f"--blend-schedule: {point.shown} has {len(point.weights)} weights of {num_datasets}")
        starts.append(start)
    places, weights = np.array(starts, np.float64), np.array([point.weights for point in schedule.points], np.float64)
    weights /= weights.sum(axis=1, keepdims=True)
    slopes = np.zeros_like(weights)
    if schedule.is_linear:
        slopes[:-1] = np.diff(weights, axis=0) / np.diff(places)[:, np.newaxis]
    return WeightCurve(starts=places, weights=weights, slopes=slopes, num_samples=num_samples)
