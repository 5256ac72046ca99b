"""What the files of a dataset without a manifest say about the program that wrote them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import FormatError, InputError
from dsindex.formats.mmididx import check_index, read_index
from dsindex.formats.token_array import open_token_array
from dsindex.objects.urls import is_url

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dsindex.formats.mmididx import SequenceIndex

DOCUMENTS_LOOKED_AT = 1 << 20
"""Documents from which the rule for empty texts is told."""
_LEVELS = ("_document", "_sentence")


@dataclass(frozen=True, slots=True, kw_only=True)
class LastKey:
    """The dataset of the last key, the only one whose `.idx` an old preprocess_data.py finished."""

    prefix: str
    num_documents: int
    """As many as every other key of the same run has."""

    def describe(self, prefix: str) -> str:
        """Return a sentence about a dataset of an earlier key of the same run."""
        return (
            f"{prefix}.idx is missing, and {self.prefix} beside it is whole, as Megatron's preprocess_data.py left "
            f"several --json-keys before its pull request 4573: it finished only the .idx of the last key. The .bin "
            f"then has all tokens, of {self.num_documents} documents as {self.prefix} has; if they were written with "
            f"--append-eod, `dsindex repair {prefix} --output NEW --guess --eod-id N --dtype TYPE` restores the "
            f"boundaries, otherwise only a new run does"
        )


def find_last_key(prefix: str) -> LastKey | None:
    """Return the finished dataset of the last key, if a `.bin` without `.idx` was left by a run with several keys."""
    if (
        is_url(prefix)
        or not os.path.isfile(f"{prefix}.bin")
        or any(map(os.path.lexists, (f"{prefix}.idx", f"{prefix}.manifest.json")))
    ):
        return None
    folder, name = os.path.split(prefix)
    level = next((level for level in _LEVELS if name.endswith(level)), None)
    if level is None:
        return None
    for file in sorted(os.listdir(folder or ".")):
        other = file.removesuffix(".idx")
        if other == file or not other.endswith(level) or not _same_run(name, other):
            continue
        path = os.path.join(folder, other)
        if os.path.isfile(f"{path}.bin") and not os.path.lexists(f"{path}.manifest.json"):
            try:
                index = read_index(f"{path}.idx")
                check_index(f"{path}.idx", index, bin_size_bytes=os.path.getsize(f"{path}.bin"))
            except (FormatError, InputError):
                continue
            return LastKey(prefix=path, num_documents=index.header.num_documents)
    return None


def describe_empty_texts(prefix: str) -> str | None:
    """Return a sentence about what texts without tokens became; None if there are none, or it cannot be told.

    Args:
        prefix: A dataset with an intact index.
    """
    index = read_index(f"{prefix}.idx")
    number = min(index.header.num_documents, DOCUMENTS_LOOKED_AT)
    boundaries = index.document_indices[: number + 1]
    num_kept = int(np.count_nonzero(boundaries[1:] == boundaries[:-1]))
    if num_kept:
        return f"{num_kept} texts without tokens are empty documents, as by preprocess_data.py (--empty-documents keep)"
    lengths = index.sequence_lengths[: boundaries[-1]]
    num_zero = int(np.count_nonzero(lengths == 0))
    if num_zero:
        return f"{num_zero} sequences have length 0, as texts without tokens by preprocess_data_fast.py"
    num_eod = _count_eod_alone(prefix, index, boundaries.astype(np.int64))
    if num_eod:
        return f"{num_eod} texts without tokens are EOD alone, as by preprocess_data_fast.py (--empty-documents eod)"
    return None


def _count_eod_alone(prefix: str, index: SequenceIndex, boundaries: NDArray[np.int64]) -> int:
    """Count the documents of one token that are the last token of every document; 0 if documents end differently."""
    tokens, size_bytes = open_token_array(f"{prefix}.bin", index.dtype)
    if len(boundaries) < 2 or not size_bytes:
        return 0
    last = boundaries[1:] - 1
    ends = index.sequence_pointers[last] // index.dtype.itemsize + index.sequence_lengths[last] - 1
    values = tokens[ends]
    alone = (np.diff(boundaries) == 1) & (index.sequence_lengths[last] == 1)
    return int(np.count_nonzero(alone)) if (values == values[0]).all() and not alone.all() else 0


def _same_run(name: str, other: str) -> bool:
    """Tell whether two names have the same beginning before their keys, such as `docs_` and `0_`."""
    cuts = [place + 1 for place, letter in enumerate(name) if letter == "_" and place]
    return name != other and any(name[:cut] == other[:cut] for cut in cuts)
