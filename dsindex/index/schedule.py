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
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import InputError
from dsindex.json_text import show_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

FILES = (".yaml", ".yml", ".json")
SHAPES = ("steps", "linear")
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
    weights: tuple[float, ...] | tuple[tuple[str, float], ...]
    """In the order of the datasets, or by prefix; not all 0."""

    @property
    def shown(self) -> str:
        """The position in words."""
        return f"{float(self.number):.15g}" + {"share": "%", "samples": "", "tokens": "tokens"}[self.unit]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendSchedule:
    """Weights over a run."""

    points: tuple[Point, ...]
    is_linear: bool = False


def read_blend_schedule(given: str) -> BlendSchedule:
    """Read a schedule from its text, or from the file that it names.

    Raises:
        ValueError: If it is none.
        InputError: If the file cannot be read.

    >>> [point.shown for point in read_blend_schedule("linear 0:90,10 1.5Btokens:1,1 80%:0,1").points]
    ['0', '1500000000tokens', '80%']
    """
    if given.endswith(FILES):
        from dsindex.store.config_files import read_yaml  # yaml is not there in an environment that only reads

        content = read_yaml(given)
        try:
            return _from_mapping(content)
        except ValueError as error:
            raise InputError(f"{given}: {error}") from error
    words = given.split()
    shape = words.pop(0) if words and words[0] in SHAPES else SHAPES[0]
    points = []
    for word in words:
        position, colon, weights = word.partition(":")
        if not colon:
            raise ValueError(f"expected POSITION:WEIGHT,WEIGHT,…, as in {_EXAMPLE}, got {show_value(word)}")
        points.append(_point(position, weights.split(",")))
    return _checked(points, shape)


def _from_mapping(content: Mapping[str, Any]) -> BlendSchedule:
    """Read `{shape: linear, points: [{at: 50%, weights: [90, 10]}]}`; weights may be by prefix."""
    points, shape = content.get("points"), content.get("shape", SHAPES[0])
    if not isinstance(points, list) or shape not in SHAPES or content.keys() - {"points", "shape"}:
        raise ValueError(f"expected `points`, and perhaps `shape: linear`, got {show_value(content)}")
    read = []
    for point in points:
        if not isinstance(point, dict) or point.keys() != {"at", "weights"}:
            raise ValueError(f"expected points with `at` and `weights`, got {show_value(point)}")
        weights = point["weights"]
        if not isinstance(weights, list | dict):
            raise ValueError(f"expected weights as a list, or by prefix, got {show_value(weights)}")
        read.append(_point(point["at"], weights))
    return _checked(read, shape)


def _point(position: object, weights: Sequence[Any] | Mapping[str, Any]) -> Point:
    found = _POSITION.fullmatch(str(position))
    if found is None or (found[2] and found[3] in {"", "%"}):
        raise ValueError(
            "expected a position in samples, tokens or as a share of the run, such as 16000, 250Btokens or 50%, got "
            f"{show_value(position)}"
        )
    unit = {"%": "share", "t": "tokens"}.get(found[3][:1].lower(), "samples")
    number = Fraction(found[1]) * _FACTORS[found[2].lower()]
    values = list(weights.values()) if isinstance(weights, dict) else list(weights)
    numbers = [float(str(value)) if _WEIGHT.fullmatch(str(value)) else None for value in values]
    known = [value for value in numbers if value is not None]
    if len(known) < len(numbers) or not any(known):
        raise ValueError(f"expected weights of at least 0, not all 0, at {position}, got {show_value(values)}")
    if isinstance(weights, dict):
        return Point(number=number, unit=unit, weights=tuple(zip(map(str, weights), known, strict=True)))
    return Point(number=number, unit=unit, weights=tuple(known))


def _checked(points: Sequence[Point], shape: str) -> BlendSchedule:
    if not points or points[0].number != 0:
        raise ValueError(f"expected weights from 0 on, as in {_EXAMPLE}, got {points[0].shown if points else 'none'}")
    return BlendSchedule(points=tuple(points), is_linear=shape == "linear")


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

    def borders(self) -> list[int]:
        """Return the samples at which a phase begins, the first one included."""
        return [int(start) for start in self.starts]

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


def draw_curve(
    schedule: BlendSchedule, prefixes: Sequence[str], *, num_samples: int, sequence_length: int
) -> WeightCurve:
    """Return the weights of datasets over a run.

    Args:
        schedule: The schedule.
        prefixes: The datasets of the blend, in its order.
        num_samples: Samples of the run.
        sequence_length: L, by which positions in tokens become samples.

    Raises:
        InputError: If it does not fit the datasets or the run.

    >>> curve = draw_curve(read_blend_schedule("0:9,1 50%:1,1"), ["a", "b"], num_samples=100, sequence_length=8)
    >>> curve.integral(0, 100).tolist()
    [70.0, 30.0]
    """
    starts: list[int] = []
    rows = []
    for point in schedule.points:
        scale = {"samples": Fraction(1), "tokens": Fraction(1, sequence_length)}.get(
            point.unit, Fraction(num_samples, 100)
        )
        start = int(point.number * scale)
        if start >= num_samples and (start > num_samples or not schedule.is_linear):
            raise InputError(
                f"--blend-schedule: expected positions below the {num_samples} samples of the run, got {point.shown}"
            )
        if starts and start <= starts[-1]:
            raise InputError(
                f"--blend-schedule: expected ascending positions, got {point.shown}, sample {start}, after sample "
                f"{starts[-1]}"
            )
        starts.append(start)
        rows.append(_weights_of(point, prefixes))
    places, weights = np.array(starts, np.float64), np.array(rows, np.float64)
    weights /= weights.sum(axis=1, keepdims=True)
    slopes = np.zeros_like(weights)
    if schedule.is_linear:
        slopes[:-1] = np.diff(weights, axis=0) / np.diff(places)[:, np.newaxis]
    return WeightCurve(starts=places, weights=weights, slopes=slopes, num_samples=num_samples)


def _weights_of(point: Point, prefixes: Sequence[str]) -> list[float]:
    if isinstance(point.weights[0], tuple):
        named = dict(point.weights)
        if sorted(named) != sorted(prefixes):
            raise InputError(
                f"--blend-schedule: expected a weight for each of {', '.join(prefixes)} at {point.shown}, got weights "
                f"for {', '.join(named)}"
            )
        return [named[prefix] for prefix in prefixes]
    if len(point.weights) != len(prefixes):
        raise InputError(
            f"--blend-schedule: expected {len(prefixes)} weights at {point.shown}, one for each dataset, got "
            f"{len(point.weights)}"
        )
    return list(point.weights)
