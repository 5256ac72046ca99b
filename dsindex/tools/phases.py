"""The phases of a blend that was planned over time, and how often a dataset's tokens were read.

The record beside a blend's cache has its phases: what came from the first job, and what follows. What each phase really
draws is counted in the arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.amounts import show_percent
from dsindex.datasets.blended import BlendedDataset
from dsindex.errors import FormatError
from dsindex.index.cache import array_beside, record_beside
from dsindex.index.continuing import read_runs, tokens_by_times

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


def describe_phases(description: str, index: NDArray[Any], names: Sequence[str]) -> list[str]:
    """Return what each phase of a blend that was planned over time draws; nothing for another blend."""
    settings = (record_beside(description) or {}).get("settings")
    recorded = settings.get("phases") if isinstance(settings, dict) else None
    try:
        begins = [(int(phase["begin"]), str(phase["what"])) for phase in recorded or ()]
    except (KeyError, TypeError, ValueError):
        return []  # verify says what is wrong with it
    lines = []
    for (begin, what), end in zip(begins, [*(begin for begin, _ in begins[1:]), len(index)], strict=False):
        drawn = np.bincount(index[begin:end], minlength=len(names)).tolist()
        parts = [
            f"{name} {n:,} ({show_percent(n / max(1, end - begin))})" for name, n in zip(names, drawn, strict=True) if n
        ]
        lines.append(f"{begin:,} to {end:,}, {what}: {', '.join(parts)}")
    return lines


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
