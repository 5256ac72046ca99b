"""The phases of a blend that was planned over time, and how often a dataset's tokens were read.

The record beside a blend's cache has its phases: what came from the first job, and the weights that follow. What each
phase really draws is counted in the arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.datasets.blended import BlendedDataset
from dsindex.errors import FormatError
from dsindex.index.cache import array_beside, record_beside
from dsindex.index.continuing import read_runs, tokens_by_times
from dsindex.options.mix_amounts import show_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.datasets.gpt import GPTDataset

CHUNK_ITEMS = 1 << 22


def count_drawn(path: str, index: NDArray[Any], num_datasets: int) -> NDArray[np.int64]:
    """Return the samples of each dataset in the dataset index of a blend.

    Raises:
        FormatError: If it has other datasets.
    """
    drawn = np.zeros(num_datasets, np.int64)
    for begin in range(0, len(index), CHUNK_ITEMS):
        chunk = index[begin : begin + CHUNK_ITEMS]
        if chunk.min() < 0 or chunk.max() >= num_datasets:
            name = array_beside(path, "dataset_index")
            msg = f"{name}: expected datasets below {num_datasets}, got {chunk.max()}; build the cache again"
            raise FormatError(msg)
        drawn += np.bincount(chunk, minlength=num_datasets)
    return drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A run of a blend's samples with weights of its own."""

    begin: int
    end: int
    what: str
    """`first job`, `continued` or `schedule`."""
    intended: tuple[float, ...] | None
    """The samples that it should draw of each dataset; None if they are not known."""
    drawn: tuple[int, ...]
    """The samples that it draws."""

    @property
    def findings(self) -> list[str]:
        """Whether more than rounding lies between what is drawn and what was intended."""
        if self.intended is None:
            return []
        off = max((abs(n - m) for n, m in zip(self.drawn, self.intended, strict=True)), default=0.0)
        most = 1 + len(self.drawn) / 2  # Megatron's own order lags by more than one sample, if there are many datasets
        told = f"samples {self.begin:,} to {self.end:,}: expected {', '.join(f'{n:,.0f}' for n in self.intended)}"
        return [f"{told} samples of its datasets, got {', '.join(f'{n:,}' for n in self.drawn)}"] if off > most else []

    def line(self, names: Sequence[str]) -> str:
        """Return the phase in words."""
        size = max(1, self.end - self.begin)
        parts = [f"{name} {n:,} ({show_percent(n / size)})" for name, n in zip(names, self.drawn, strict=True) if n]
        return f"{self.begin:,} to {self.end:,}, {self.what}: {', '.join(parts)}"


def read_phases(description: str, datasets: NDArray[Any], num_datasets: int) -> list[Phase]:
    """Return the phases in the record of a blend's cache; none if it was not planned over time."""
    record = record_beside(description) or {}
    settings = record.get("settings")
    recorded = settings.get("phases") if isinstance(settings, dict) else None
    if not isinstance(recorded, list):
        return []
    try:
        return _phases(recorded, datasets, num_datasets)
    except (KeyError, TypeError, ValueError):
        return []  # verify says what is wrong with it


def _phases(recorded: Sequence[dict[str, Any]], datasets: NDArray[Any], num_datasets: int) -> list[Phase]:
    begins = [int(phase["begin"]) for phase in recorded]
    phases = []
    for begin, end, phase in zip(begins, [*begins[1:], len(datasets)], recorded, strict=True):
        intended = None
        if phase["weights"] is not None and len(phase["weights"]) == len(phase["until"]) == num_datasets:
            # Another job may go on before the end for which a line of weights was planned.
            share = (end - begin) / max(1, int(phase.get("end", end)) - begin)
            pairs = zip(phase["weights"], phase["until"], strict=True)
            intended = tuple((float(a) + (float(b) - float(a)) * share / 2) * (end - begin) for a, b in pairs)
        drawn = tuple(np.bincount(datasets[begin:end], minlength=num_datasets).tolist())
        phases.append(
            Phase(
                begin=begin,
                end=end,
                what=str(phase["what"]),
                intended=intended,
                drawn=drawn,
            )
        )
    return phases


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTokens:
    """How often the tokens of a dataset were read."""

    prefix: str
    num_samples: int
    """Samples of it that were read."""
    tokens_by_times: tuple[int, ...]
    """Tokens that were read, as inputs, not at all, once, twice, …"""


def count_read_tokens(samples: GPTDataset | BlendedDataset, consumed: int) -> list[ReadTokens]:
    """Count how often the first samples of a run read the tokens of each dataset."""
    if not isinstance(samples, BlendedDataset):
        return [_count(samples, np.arange(consumed))]
    datasets, numbers = samples.dataset_index[:consumed], samples.dataset_sample_index[:consumed]
    return [_count(each, numbers[datasets == place]) for place, each in enumerate(samples.datasets)]


def _count(dataset: GPTDataset, numbers: NDArray[Any]) -> ReadTokens:
    documents = dataset.document_index
    begin, end = (int(documents.min()), int(documents.max()) + 1) if len(documents) else (0, 0)
    lengths = np.asarray(dataset.dataset.sequence_lengths[begin:end], np.int32)
    rows = dataset.shuffle_index[numbers]
    places, times = read_runs(lengths, documents, rows, begin=begin, sequence_length=dataset.sequence_length)
    return ReadTokens(
        prefix=dataset.dataset.prefix, num_samples=len(rows), tokens_by_times=tokens_by_times(places, times)
    )
