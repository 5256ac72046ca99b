"""Count the documents that the borders of samples cut.

Sample k takes the input tokens [k * L, (k + 1) * L) of the documents laid end to end (dsindex.index.arrays), so a
document is cut if it begins before a multiple of L and ends after it. One of at most L tokens need not be cut; a longer
one of n tokens is cut at least ceil(n / L) - 1 times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 1 << 20
"""Documents counted at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """How many documents of an index cache the borders of its samples cut."""

    sequence_length: int
    num_short: int = 0
    """Documents of 1 to L tokens in all epochs."""
    short_cut: int = 0
    num_long: int = 0
    extra_cuts: int = 0
    """Cuts of longer documents beyond those that their lengths require."""
    tokens: int = 0
    continued_tokens: int = 0
    """Tokens in a sample in which their document does not begin."""

    @property
    def short_share(self) -> float:
        """Share of the documents of at most L tokens that are cut."""
        return self.short_cut / max(1, self.num_short)

    def lines(self) -> list[str]:
        """Return the counts in words."""
        length = self.sequence_length
        continued = self.continued_tokens / max(1, self.tokens)
        return [
            f"{self.short_cut:,} of {self.num_short:,} documents of at most {length:,} tokens ({self.short_share:.2%})",
            f"{self.extra_cuts:,} more cuts than needed of {self.num_long:,} longer ones",
            f"{continued:.1%} of the tokens are read without the beginning of their document",
        ]


def count_cuts(
    lengths: NDArray[np.int32], documents: NDArray[np.integer[Any]], *, sequence_length: int, num_samples: int
) -> Cuts:
    """Count the cuts of an index, whichever program built it.

    Args:
        lengths: Tokens of each sequence of the dataset.
        documents: The document index.
        sequence_length: L.
        num_samples: Samples of the index; documents after the last of them are not counted.

    >>> lengths = np.array([5, 3, 6, 12, 2], np.int32)
    >>> count_cuts(lengths, np.array([0, 2, 1, 3, 4]), sequence_length=8, num_samples=3).short_cut
    1
    """
    length, begin = np.int64(sequence_length), np.int64(0)
    last = num_samples * length
    counts = np.zeros(6, np.int64)
    for first in range(0, len(documents), CHUNK):
        own = np.asarray(lengths[documents[first : first + CHUNK]], np.int64)
        ends = begin + np.cumsum(own)
        starts, begin = ends - own, begin + own.sum()
        read = (starts < last) & (own > 0)
        own, starts, ends = own[read], starts[read], np.minimum(ends[read], last)
        cuts = (ends - 1) // length - starts // length
        is_short = own <= length
        needed = (np.minimum(own, ends - starts) - 1) // length
        counts += [
            is_short.sum(),
            (cuts[is_short] > 0).sum(),
            len(own) - is_short.sum(),
            (cuts - needed)[~is_short].sum(),
            (ends - starts).sum(),
            np.maximum(0, ends - (starts // length + 1) * length).sum(),
        ]
        if begin >= last:
            break
    short, short_cut, num_long, extra, tokens, continued = counts.tolist()
    return Cuts(
        sequence_length=sequence_length,
        num_short=short,
        short_cut=short_cut,
        num_long=num_long,
        extra_cuts=extra,
        tokens=tokens,
        continued_tokens=continued,
    )
