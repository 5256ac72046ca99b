"""Instruction data to train on: JSONL that is tokenized when read, or the output of `dsindex instruct`.

`InstructionDataset` reads JSONL through a raw index and returns one dict per record, for an InstructionCollator.
`PackedInstructionDataset` reads `<prefix>_text_document` (tokens), `<prefix>_loss_mask` (uint8, one per token,
1 = trainable) and, if it exists, `<prefix>_packing_<L>`, all in MMIDIDX. In the last one, the block layout, a sequence
is a block, and its "tokens" are the numbers of the sequences in that block.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import numpy as np

from dsindex.chat.construction import MessageConstruction
from dsindex.chat.conversations import check_text, message_text, strings_in
from dsindex.chat.packing import Block, BlockLayout, assemble_block, lay_out_blocks
from dsindex.datasets.base import MapDataset, return_unchanged, tensor_maker
from dsindex.datasets.decoding import decode_tokens
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.raw import RawLines
from dsindex.datasets.samples import LocatedSample, SampleDataset, SamplePart
from dsindex.errors import FormatError, InputError, RecordProblem
from dsindex.formats.dtypes import starts_of
from dsindex.store.read import is_stored
from dsindex.store.urls import locate_dataset, refuse_address
from dsindex.text.fields import parse_record
from dsindex.text.jq import Patterns, name_patterns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.chat.config import InstructionConfig
    from dsindex.chat.tokens import ChatTokenizer
    from dsindex.datasets.decoding import TokenizerLike


# Collate samples of an InstructionDataset into a batch, assembled as configured, padded or packed.

SPECIAL_TOKENS_KEY = "special_tokens"
TOKENS_KEY = "tokens"
STACKED_FIELDS = ("tokens", "targets", "loss_mask", "position_ids")
"""Fields of a Block that have shape [L]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetBatch:
    """The batch of a training step: numpy arrays, or torch tensors of the same shapes and types."""

    tokens: Any
    """int64, shape [rows, L]."""
    targets: Any
    """int64, shape [rows, L]: the next token of the same conversation, or the pad id at its end."""
    loss_mask: Any
    """float32, shape [rows, L]: 1 where the target is trainable."""
    position_ids: Any
    """int64, shape [rows, L]: position in the conversation, from 0."""
    attention_lengths: Any
    """int32, shape [rows]: tokens in each row before its padding."""
    sequence_boundaries: list[Any]
    """int32 per row, shape [conversations + 1]: start of each conversation and end of the last. Attention stays within
    a conversation."""
    cu_seqlens: list[Any]
    """int32 per row: as in a Block, for variable-length attention."""
    cu_seqlens_unpadded: list[Any]


def stack_blocks(blocks: Sequence[Block], *, as_torch: bool = False) -> DatasetBatch:
    """Stack blocks of equal length into a batch.

    Args:
        blocks: At least one block.
        as_torch: Return torch tensors; those in lists share their memory with the blocks.
    """
    convert = importlib.import_module("torch").from_numpy if as_torch else return_unchanged
    rows_by_field = {field.name: [getattr(block, field.name) for block in blocks] for field in fields(Block)}
    ends = np.array([boundaries[-1] for boundaries in rows_by_field["sequence_boundaries"]], np.int32)
    batch: dict[str, Any] = {name: convert(np.stack(rows_by_field.pop(name))) for name in STACKED_FIELDS}
    batch |= {name: [convert(array) for array in arrays] for name, arrays in rows_by_field.items()}
    return DatasetBatch(attention_lengths=convert(ends), **batch)


@dataclass(eq=False)
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

    config: InstructionConfig
    tokenizer: ChatTokenizer
    _: KW_ONLY
    layout: Literal["padded", "packed"] = "padded"
    sequence_length: int | None = None
    pad_id: int | None = None
    as_torch: bool = False

    def __post_init__(self) -> None:
        if not self.config.message_construction:
            raise InputError("InstructionCollator: the configuration has no message_construction")
        if self.layout == "packed" and self.sequence_length is None:
            raise ValueError("the packed layout needs a sequence_length")
        special = {name: self.tokenizer.special_id(name, text) for name, text in self.config.special_tokens.items()}
        if self.pad_id is None:
            self.pad_id = special.get("pad_token", special.get("eos_token"))
        if self.pad_id is None:
            raise InputError("InstructionCollator: set a pad_id, or a pad_token or eos_token in special_tokens")
        self._construction = MessageConstruction(self.config, from_fields=True)

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> DatasetBatch:
        """Return one batch.

        Args:
            samples: At least one result of `InstructionDataset.__getitem__`.

        Raises:
            RecordProblem: If a sample cannot be assembled, has no trainable token, or is longer than a row.
        """
        conversations = [self.encode(sample) for sample in samples]
        lengths = [len(tokens) for tokens, _ in conversations]
        limit = max(lengths) if self.sequence_length is None else self.sequence_length
        if max(lengths) > limit:
            raise RecordProblem("too-long", f"a sample of {max(lengths)} tokens is longer than {limit}")
        rows = [[conversation] for conversation in conversations]
        if self.layout == "packed":
            plan = lay_out_blocks(lengths, sequence_length=limit)
            rows = [[conversations[number] for number in plan.block(row)] for row in range(plan.num_blocks)]
        blocks = [assemble_block(row, sequence_length=limit, pad_id=self.pad_id or 0) for row in rows]
        return stack_blocks(blocks, as_torch=self.as_torch)

    def encode(self, sample: Mapping[str, Any]) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
        """Return tokens and mask (1 = trainable) of one sample.

        Raises:
            RecordProblem: If the sample cannot be assembled, or has no trainable token.
        """
        special_ids = sample[SPECIAL_TOKENS_KEY]
        fields = {name: _remove_tokens(value) for name, value in sample.items() if name != SPECIAL_TOKENS_KEY}
        parts = self._construction.build_parts(fields, self._construction.read(fields))
        token_segments: list[NDArray[np.uint32]] = []
        mask_segments: list[NDArray[np.uint8]] = []
        for segment in self._construction.lay_out(parts):
            if segment.special is not None:
                ids = np.array([special_ids[segment.special]], dtype=np.uint32)
            elif segment.place is not None:
                name, number = segment.place
                ids = (sample[name] if number is None else sample[name][number])[TOKENS_KEY]
            else:
                ids = self.tokenizer.encode(segment.text).ids
            token_segments.append(ids)
            mask_segments.append(np.full(len(ids), segment.trainable, dtype=np.uint8))
        loss_mask = np.concatenate(mask_segments)
        if not loss_mask.any():
            raise RecordProblem("no-trained-tokens", "nothing is trained on: the mask is 0 for every token")
        return np.concatenate(token_segments), loss_mask


def _remove_tokens(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a field of a sample as JSON data for masking patterns."""
    if isinstance(value, list):
        return [{key: item for key, item in message.items() if key != TOKENS_KEY} for message in value]
    return value["value"]


class InstructionDataset(MapDataset[dict[str, Any]]):
    """Records of a JSONL file, with the fields that jq patterns select tokenized.

    Args:
        jsonl_path: The JSONL file.
        index_path: Its raw index; `<stem>.idx` in the same folder if None. Without an index, the file is read once to
            find its lines, and nothing is written.
        tokenizer: Tokenizes texts; adds no special tokens.
        jq_patterns: Name -> pattern, or patterns named after their last part; each selects a text or messages.
        special_tokens: Name -> text of a special token, which must be exactly one id; or texts that are also the names.

    Raises:
        TokenizerError: If a special token is not exactly one id.
        InputError: If the file cannot be read, or a pattern cannot be used.
        BadRecordError: If there is no index and a line is faulty.
        FormatError: If the index is damaged, or does not fit the current file.
    """

    noun = "record"

    def __init__(
        self,
        jsonl_path: str | os.PathLike[str],
        index_path: str | os.PathLike[str] | None = None,
        *,
        tokenizer: ChatTokenizer,
        jq_patterns: Mapping[str, str] | Sequence[str],
        special_tokens: Mapping[str, str] | Sequence[str],
    ) -> None:
        self._keep_arguments(locals())
        fields = name_patterns(jq_patterns)
        self._names = list(fields)
        if SPECIAL_TOKENS_KEY in self._names:
            problem = f"jq_patterns: a field cannot be called {SPECIAL_TOKENS_KEY!r}"
            raise InputError(problem, hint="choose another name")
        self._patterns = Patterns(fields)
        self._tokenizer = tokenizer
        texts = dict(special_tokens) if isinstance(special_tokens, Mapping) else {text: text for text in special_tokens}
        self.special_ids = {name: tokenizer.special_id(name, text) for name, text in texts.items()}
        """Name -> id of each special token."""
        path = refuse_address(os.fspath(jsonl_path), "lines are read one by one, which needs a file on this machine")
        self.lines = RawLines(path, index_path)
        self.place = self.lines.path

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.lines)

    def _read(self, number: int) -> dict[str, Any]:
        """Return the fields of one record, tokenized.

        Returns:
            For each field that the record has: `{"value": text, "tokens": ids}` for a text, or the list of messages,
            each with `tokens` added. Also `special_tokens`: name -> id.

        Raises:
            InputError: If the file has changed since it was opened.
            RecordProblem: If a field is neither a text nor a list of messages.
        """
        record = parse_record(self.lines[number])
        for text in strings_in(record):
            check_text(text)
        answers = self._patterns.read(record)
        sample: dict[str, Any] = {}
        for name in self._names:
            if (value := answers.value(name)) is not None:
                sample[name] = self._tokenize(name, value)
        sample[SPECIAL_TOKENS_KEY] = dict(self.special_ids)
        return sample

    def _tokenize(self, name: str, value: object) -> object:
        if isinstance(value, str):
            return {"value": value, TOKENS_KEY: self._tokenizer.encode(value).ids}
        if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
            raise RecordProblem("bad-field", f"field {name!r} is neither a text nor a list of messages")
        return [
            {**message, TOKENS_KEY: self._tokenizer.encode(message_text(message, number)).ids}
            for number, message in enumerate(value, 1)
        ]


class Packs(SampleDataset[Any]):
    """Blocks of whole sequences of a dataset. They can be traced like the samples of an index cache.

    Args:
        dataset: The tokens.
        plan: The sequences in each block.
    """

    noun = "block"

    def __init__(self, dataset: IndexedDataset, plan: BlockLayout) -> None:
        self.dataset, self.place = dataset, dataset.prefix
        self.plan = plan

    def __len__(self) -> int:
        """Return the number of blocks."""
        return self.plan.num_blocks

    def locate(self, index: SupportsIndex) -> LocatedSample:
        """Return a block's number and parts; `trace_samples` traces many of them at once."""
        number, lengths = self._number(index), self.dataset.sequence_lengths
        parts = [
            SamplePart(prefix=self.dataset.prefix, sequence=sequence, offset=0, num_tokens=int(lengths[sequence]))
            for sequence in self.plan.block(number).tolist()
        ]
        return LocatedSample(sample=number, dataset=0, data=self.dataset, parts=parts)


class PackedInstructionDataset(Packs):
    """Blocks of conversations with their loss masks, in the stored block layout or, without one, a computed one.

    Args:
        prefix: Path or address in an object store, without `_text_document.bin`.
        sequence_length: Tokens per block.
        pad_id: Token that fills up blocks.
        pad_to_multiple: Pad each conversation to a multiple of this many tokens, as context parallelism needs.
        torch: Return blocks as dicts of tensors, with the names of a Block's fields.

    Raises:
        FormatError: If a file is missing or damaged, or tokens, masks and block layout do not fit each other.
        ValueError: If a conversation is longer than a block.
        MissingPackageError: If `torch` is set and torch is not installed.
    """

    def __init__(
        self,
        prefix: str | os.PathLike[str],
        *,
        sequence_length: int,
        pad_id: int,
        pad_to_multiple: int = 1,
        torch: bool = False,
    ) -> None:
        self._keep_arguments(locals())
        self.prefix = locate_dataset(prefix)
        self._convert = tensor_maker(torch)
        self.sequence_length = sequence_length
        self._block_options = {"sequence_length": sequence_length, "pad_id": pad_id, "pad_to_multiple": pad_to_multiple}
        dataset, self._mask = open_masked(self.prefix)
        lengths = dataset.sequence_lengths
        path = packing_prefix(self.prefix, sequence_length, pad_to_multiple)
        lay_out = partial(read_layout, path) if is_stored(f"{path}.idx") else lay_out_blocks
        super().__init__(dataset, lay_out(lengths, sequence_length=sequence_length, pad_to_multiple=pad_to_multiple))

    def _read(self, number: int) -> Block | dict[str, Any]:
        """Return one block, or with `torch` a dict of tensors."""
        numbers = self.plan.block(number).tolist()
        conversations = zip(self.dataset.__getitems__(numbers), self._mask.__getitems__(numbers), strict=True)
        block = assemble_block(list(conversations), **self._block_options)
        if self._convert is return_unchanged:
            return block
        return self._convert({field.name: getattr(block, field.name) for field in fields(block)})

    def decode(self, index: SupportsIndex, *, tokenizer: TokenizerLike | None = None) -> str:
        """Return the text of a block's conversations in order, with special tokens and without padding.

        The tokenizer is found as in `IndexedDataset.decode`.
        """
        tokens, _ = self.dataset.take(self.plan.block(self._number(index)))
        return decode_tokens(tokens, prefix=self.dataset.prefix, tokenizer=tokenizer)


def open_masked(prefix: str) -> tuple[IndexedDataset, IndexedDataset]:
    """Open the tokens and the masks of instruction data.

    Raises:
        FormatError: If a file is missing or damaged, or masks do not fit the tokens.
    """
    texts, masks = (IndexedDataset(f"{prefix}_{name}") for name in ("text_document", "loss_mask"))
    if masks.dtype != np.uint8 or not np.array_equal(texts.sequence_lengths, masks.sequence_lengths):
        problem = f"not a uint8 mask for every token of {texts.prefix}.idx"
        raise FormatError(f"{masks.prefix}.idx: {problem}", hint="build both again")
    return texts, masks


def packing_prefix(prefix: str, sequence_length: int, pad_to_multiple: int = 1) -> str:
    """Return the path of a block layout without `.bin` and `.idx`.

    >>> packing_prefix("out/chat", 4096), packing_prefix("out/chat", 4096, 16)
    ('out/chat_packing_4096', 'out/chat_packing_4096_pad16')
    """
    return f"{prefix}_packing_{sequence_length}" + (f"_pad{pad_to_multiple}" if pad_to_multiple > 1 else "")


def read_layout(
    path: str, lengths: NDArray[np.int32], *, sequence_length: int, pad_to_multiple: int = 1
) -> BlockLayout:
    """Read a stored block layout, `<prefix>_packing_<L>`.

    Args:
        path: Its path without `.bin` and `.idx`.
        lengths: Tokens of each sequence of the dataset.
        sequence_length: L.
        pad_to_multiple: Each sequence is padded to a multiple of this many tokens.

    Raises:
        FormatError: If a file is missing or damaged, or does not fit the sequences.
    """
    blocks = IndexedDataset(path)
    conversations, starts = np.asarray(blocks.token_columns()[0][:]), starts_of(blocks.sequence_lengths)
    are_ids = conversations.dtype.kind in "iu" and bool(((conversations >= 0) & (conversations < len(lengths))).all())
    counts = np.bincount(conversations, minlength=len(lengths)) if are_ids else np.zeros(0)
    hint = "build the packs again"
    # Sequences longer than a block were dropped when the layout was made.
    if len(counts) != len(lengths) or not np.array_equal(counts, lengths <= sequence_length):
        raise FormatError(f"{path}.bin: does not have each of {len(lengths)} sequences once", hint=hint)
    places = starts_of(-(-lengths[conversations] // pad_to_multiple) * pad_to_multiple)
    max_block_tokens = int(np.diff(places[starts]).max(initial=0))
    if max_block_tokens > sequence_length:
        raise FormatError(f"{path}.bin: a block has {max_block_tokens} tokens, more than {sequence_length}", hint=hint)
    return BlockLayout(
        sequence_length=sequence_length,
        conversations=conversations.astype(np.int32, copy=False),
        block_starts=starts,
        num_tokens=int(lengths[conversations].sum(dtype=np.int64)),
    )


def lay_out_one_per_block(lengths: NDArray[np.int32], sequence_length: int) -> BlockLayout:
    """Return the layout in which each sequence is a block of its own."""
    return BlockLayout(
        sequence_length=sequence_length,
        conversations=np.arange(len(lengths), dtype=np.int32),
        block_starts=np.arange(len(lengths) + 1, dtype=np.int64),
        num_tokens=int(lengths.sum(dtype=np.int64)),
    )
