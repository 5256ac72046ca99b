"""Options of a training sample's masks and positions, and how they are applied, as in Megatron-core's GPTDataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    """How masks and positions of a sample are made. The names are Megatron's."""

    eod_token: int | None = None
    """Id of EOD; `reset_position_ids`, `reset_attention_mask` and `eod_mask_loss` need it."""
    reset_position_ids: bool = False
    """Restart positions at 0 after each EOD."""
    reset_attention_mask: bool = False
    """Hide tokens up to an EOD from those after it; needs `create_attention_mask`."""
    eod_mask_loss: bool = False
    """Mask the loss where the input is EOD."""
    create_attention_mask: bool = False
    """Add `attention_mask`: sequence_length squared bytes for each sample, which most attention kernels do without."""
    pad_token: int | None = None
    """Pads a partial last sample. As in Megatron, loss on it is masked and the model sees token 0 instead."""
    inter_document_masking: bool = False
    """Add `cu_seqlens` and `max_seqlen`, by which attention stays inside documents, as from Megatron-core 0.19 on."""

    def __post_init__(self) -> None:
        if self.eod_token is None and (self.reset_position_ids or self.reset_attention_mask or self.eod_mask_loss):
            msg = "reset_position_ids, reset_attention_mask and eod_mask_loss need an eod_token, got None"
            raise ValueError(msg)
        if self.reset_attention_mask and not self.create_attention_mask:
            msg = "reset_attention_mask without create_attention_mask would change nothing; set both or neither"
            raise ValueError(msg)
        if self.inter_document_masking and self.create_attention_mask:
            msg = (
                "inter_document_masking gives cu_seqlens in place of an attention mask; leave out create_attention_mask"
            )
            raise ValueError(msg)
        if self.pad_token is not None and self.pad_token == self.eod_token:
            msg = f"pad_token {self.pad_token} is the eod_token, whose loss would be masked; leave pad_token out"
            raise ValueError(msg)


DEFAULT_OPTIONS = SampleOptions()


def apply_boundaries(sample: dict[str, NDArray[Any]], options: SampleOptions) -> None:
    """Apply the options that concern document boundaries to the arrays of a sample, and add its attention mask."""
    sequence_length = len(sample["tokens"])
    if options.eod_token is None:
        if options.create_attention_mask:
            sample["attention_mask"] = _causal_mask(sequence_length, [])
        return
    ends = np.flatnonzero(sample["tokens"] == options.eod_token)
    if options.eod_mask_loss:
        sample["loss_mask"][ends] = 0.0
    if options.reset_position_ids:
        sample["position_ids"] -= _document_starts(sequence_length, ends)
    if options.create_attention_mask:
        hidden_after = ends.tolist() if options.reset_attention_mask else []
        sample["attention_mask"] = _causal_mask(sequence_length, hidden_after)


def add_document_bounds(sample: dict[str, NDArray[Any]], lengths: list[int], *, extra: int) -> None:
    """Add the bounds of documents to a sample, and restart its positions at each.

    Args:
        sample: The arrays of a sample.
        lengths: Tokens of each of its parts in order, empty ones included, with the extra token if there is one.
        extra: Tokens at the end that only labels have: 1 or 0.

    `cu_seqlens`, int32, shape [sequence_length + 1], has the begin of each part, then sequence_length up to its end.
    `max_seqlen`, int32, shape [], is the length of the longest part. Padding belongs to the last part.

    Source: Megatron-core 0.19, GPTDataset.__getitem__.
    """
    sequence_length = len(sample["tokens"])
    sizes = np.array(lengths, np.int64)
    sizes[-1] -= extra
    if extra and sizes[-1] == 0 and len(sizes) > 1:
        sizes = sizes[:-1]
    sizes[-1] += sequence_length - sizes.sum()
    if len(sizes) > sequence_length:
        sizes = sizes[sizes > 0]  # Megatron stops at a sample with so many empty parts
    ends = np.cumsum(sizes)
    bounds = np.full(sequence_length + 1, sequence_length, np.int32)
    bounds[0] = 0
    bounds[1 : len(ends) + 1] = ends
    sample["cu_seqlens"] = bounds
    sample["max_seqlen"] = np.array(sizes.max(), np.int32)
    sample["position_ids"] = np.arange(sequence_length, dtype=np.int64) - np.repeat(ends - sizes, sizes)


def _document_starts(sequence_length: int, ends: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return the start of each position's document, given the positions of the EODs.

    >>> _document_starts(6, np.array([1, 3]))
    array([0, 0, 2, 2, 4, 4])
    """
    starts = np.zeros(sequence_length + 1, np.int64)
    starts[ends + 1] = ends + 1
    return np.asarray(np.maximum.accumulate(starts)[:-1])


def _causal_mask(sequence_length: int, hidden_after: list[int]) -> NDArray[np.bool_]:
    """Return a mask, True where the row must not see the column: later tokens, and those up to a given end."""
    mask = ~np.tri(sequence_length, dtype=np.bool_)
    for end in hidden_after:
        mask[end + 1 :, : end + 1] = True
    return mask[np.newaxis]
