"""Collate samples of an InstructionDataset into a batch, assembled as configured, padded or packed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dsindex.errors import InputError, RecordProblem
from dsindex.instruction.blocks import Block, assemble_block, lay_out_blocks
from dsindex.instruction.construction import MessageConstruction
from dsindex.text.jq import write_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.instruction.config import InstructionConfig
    from dsindex.instruction.tokens import ChatTokenizer
    from dsindex.text.jq import PatternAnswers

SPECIAL_TOKENS_KEY = "special_tokens"
TOKENS_KEY = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetBatch:
    """The batch of a training step: numpy arrays, or torch tensors of the same shapes and types."""

    tokens: Any
    """int64, shape [rows, L]."""
    targets: Any
    """int64, shape [rows, L]: the next token of the same conversation, or the pad id if there is none."""
    loss_mask: Any
    """float32, shape [rows, L]: 1 where the target is trainable."""
    position_ids: Any
    """int64, shape [rows, L]: position in the conversation, from 0."""
    attention_lengths: Any
    """int32, shape [rows]: tokens in each row before its padding."""
    sequence_boundaries: list[Any]
    """int32 per row, shape [conversations + 1]: start of each conversation, within which attention stays, and the last
    end."""


def stack_blocks(blocks: Sequence[Block], *, as_torch: bool = False) -> DatasetBatch:
    """Stack blocks of equal length into a batch.

    Args:
        blocks: At least one block.
        as_torch: Return torch tensors, which own their memory.
    """
    ends = np.array([block.sequence_boundaries[-1] for block in blocks], dtype=np.int32)
    convert = _to_torch if as_torch else _as_is
    return DatasetBatch(
        tokens=convert(np.stack([block.tokens for block in blocks])),
        targets=convert(np.stack([block.targets for block in blocks])),
        loss_mask=convert(np.stack([block.loss_mask for block in blocks])),
        position_ids=convert(np.stack([block.position_ids for block in blocks])),
        attention_lengths=convert(ends),
        sequence_boundaries=[convert(block.sequence_boundaries) for block in blocks],
    )


class InstructionCollator:
    """Assembles samples of an InstructionDataset by `message_construction` and the masking patterns.

    Args:
        config: A configuration with `message_construction`.
        tokenizer: The dataset's tokenizer, for prefixes and separators.
        layout: `padded` for one sample per row, or `packed` for as few rows as best fit finds.
        sequence_length: L; for `padded`, None means the longest sample of each batch.
        pad_id: Fills rows; None for the id of `pad_token`, or else of `eos_token`.
        as_torch: Return torch tensors instead of numpy arrays.

    Raises:
        InputError: If the configuration has no `message_construction`, or no token to pad with.
        TokenizerError: If a special token is not exactly one id.
        ValueError: If the layout is `packed` and there is no `sequence_length`.
    """

    def __init__(
        self,
        config: InstructionConfig,
        tokenizer: ChatTokenizer,
        *,
        layout: Literal["padded", "packed"] = "padded",
        sequence_length: int | None = None,
        pad_id: int | None = None,
        as_torch: bool = False,
    ) -> None:
        if not config.message_construction:
            raise InputError("InstructionCollator: expected message_construction in the configuration")
        if layout == "packed" and sequence_length is None:
            raise ValueError("expected a sequence_length for the packed layout")
        special_ids = {name: tokenizer.special_id(name, text) for name, text in config.special_tokens.items()}
        if pad_id is None:
            pad_id = special_ids.get("pad_token", special_ids.get("eos_token"))
        if pad_id is None:
            raise InputError("InstructionCollator: expected a pad_token or eos_token in special_tokens, or a pad_id")
        self._construction = MessageConstruction(config, from_fields=True)
        self._tokenizer = tokenizer
        self._layout = layout
        self._sequence_length = sequence_length
        self._pad_id = pad_id
        self._as_torch = as_torch

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> DatasetBatch:
        """Return one batch.

        Args:
            samples: At least one result of `InstructionDataset.__getitem__`.

        Raises:
            RecordProblem: If a sample cannot be assembled, has no trainable token, or is longer than a row.
            LimitReachedError: If a masking pattern takes too much time or memory for a sample.
        """
        fields = [_fields_of(sample) for sample in samples]
        answers = self._construction.read_all([write_record(values) for values in fields])
        conversations = [self._encode(*given) for given in zip(samples, fields, answers, strict=True)]
        lengths = [len(tokens) for tokens, _ in conversations]
        limit = max(lengths) if self._sequence_length is None else self._sequence_length
        if max(lengths) > limit:
            raise RecordProblem("too-long", f"expected at most {limit} tokens in a sample, got {max(lengths)}")
        rows = [[conversation] for conversation in conversations]
        if self._layout == "packed":
            plan = lay_out_blocks(lengths, sequence_length=limit)
            rows = [[conversations[number] for number in plan.block(row)] for row in range(plan.num_blocks)]
        blocks = [assemble_block(row, sequence_length=limit, pad_id=self._pad_id) for row in rows]
        return stack_blocks(blocks, as_torch=self._as_torch)

    def encode(self, sample: Mapping[str, Any]) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
        """Return tokens and mask (1 = trainable) of one sample.

        Raises:
            RecordProblem: If the sample cannot be assembled, or has no trainable token.
            LimitReachedError: If a masking pattern takes too much time or memory for the sample.
        """
        fields = _fields_of(sample)
        [answers] = self._construction.read_all([write_record(fields)])
        return self._encode(sample, fields, answers)

    def _encode(
        self, sample: Mapping[str, Any], fields: Mapping[str, Any], answers: PatternAnswers
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
        special_ids = sample[SPECIAL_TOKENS_KEY]
        parts = self._construction.build_parts(fields, answers)
        tokens: list[NDArray[np.uint32]] = []
        mask: list[NDArray[np.uint8]] = []
        for segment in self._construction.lay_out(parts):
            if segment.special is not None:
                ids = np.array([special_ids[segment.special]], dtype=np.uint32)
            elif segment.place is not None:
                name, number = segment.place
                ids = (sample[name] if number is None else sample[name][number])[TOKENS_KEY]
            else:
                ids = self._tokenizer.encode(segment.text).ids
            tokens.append(ids)
            mask.append(np.full(len(ids), segment.trainable, dtype=np.uint8))
        assembled = np.concatenate(mask)
        if not assembled.any():
            raise RecordProblem("nothing-learnt", "expected at least one token to learn, got a mask of zeros only")
        return np.concatenate(tokens), assembled


def _fields_of(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample's fields as JSON data for masking patterns."""
    return {name: _without_tokens(value) for name, value in sample.items() if name != SPECIAL_TOKENS_KEY}


def _without_tokens(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, list):
        return [{key: item for key, item in message.items() if key != TOKENS_KEY} for message in value]
    return value["value"]


def _as_is(array: NDArray[Any]) -> NDArray[Any]:
    return array


def _to_torch(array: NDArray[Any]) -> Any:  # noqa: ANN401 - torch may not be installed
    import torch

    return torch.from_numpy(array)
