"""The options of `dsindex instruct`, apart from the YAML configuration of `dsindex.instruction.config`."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, field_validator, model_validator

from dsindex.options.config import EngineName, Options, RecordsConfig, ShardSize, TextConfig
from dsindex.options.declare import option
from dsindex.store.urls import refuse_address

ExportKind = Literal["parquet", "bridge"]
Reasoning = Literal["learn", "mask", "drop"]
LongerThanPack = Literal["refuse", "drop", "truncate", "split-turns"]


def parse_shares(value: object) -> object:
    """Read comma-separated shares.

    >>> parse_shares("98, 1, 1"), parse_shares([0.9, 0.1, 0])
    ((98.0, 1.0, 1.0), [0.9, 0.1, 0])
    """
    if not isinstance(value, str):
        return value
    if not re.fullmatch(r"\s*[\d.]+\s*,\s*[\d.]+\s*,\s*[\d.]+\s*", value):
        raise ValueError(f"expected the shares of train, valid and test such as 98,1,1, got {value!r}")
    return tuple(float(share) for share in value.split(","))


class InstructCommand(Options):
    """The file that `dsindex instruct` reads."""

    instruction: str = option(..., "a YAML file", "CONFIG", positional=True)


class InstructConfig(RecordsConfig):
    """`dsindex instruct`: from conversations to tokens, masks and packed blocks."""

    group: ClassVar = "input and output"
    largest_shard: ClassVar[int] = 8 << 20
    """Smaller than a build's: a worker encodes a tenth as fast, and all should be busy to the end."""
    output_prefix: str = option(
        ..., "outputs are named P_text_document.*, P_loss_mask.*, …, here or in a bucket (s3://, gs://)", "P"
    )
    tokenizer_model: str = option(..., "a tokenizer.json, or a folder with one", "PATH")
    shard_size: ShardSize | None = option(
        None,
        "bytes of input per shard (default: by the size of the inputs, at most 8MiB)",
        "SIZE",
        as_text=True,
        group="",
    )
    engine: EngineName = option(
        "auto",
        "the library that encodes; auto is gigatoken where it returns the same tokens and masks, else the "
        "reference (default: auto)",
    )
    seq_length: int | None = option(
        None,
        "pack conversations into blocks of L tokens; also sets max_length if CONFIG does not",
        "L",
        ge=2,
        le=2**27,
    )
    pad_to_multiple: int = option(
        1,
        "pad each conversation in a pack to a multiple of N tokens, as context parallelism needs it: twice its "
        "ranks, times the tensor-parallel ranks with sequence parallelism (default: 1)",
        "N",
        ge=1,
        le=2**20,
    )
    longer_than_pack: LongerThanPack | None = option(
        None,
        "a conversation of more than L tokens: refuse makes a bad record, drop leaves it out of the packs, truncate "
        "cuts it, split-turns makes several sequences; all are counted (default: `too_long` of CONFIG)",
    )
    reasoning: Reasoning | None = option(
        None,
        "learn reasoning (reasoning_content, <think>), mask it, or drop it from the messages (default: `reasoning` of "
        "CONFIG, or learn)",
    )
    unwritten: Literal["count", "refuse"] | None = option(
        None,
        "what the template does not write of a conversation, such as reasoning, is counted, or makes a bad record "
        "(default: `unwritten` of CONFIG, or count)",
    )
    split: Annotated[tuple[float, float, float] | None, BeforeValidator(parse_shares)] = option(
        None,
        "shares of train, valid and test, by a hash of each conversation's content",
        "A,B,C",
        as_text=True,
        accepts="str | Sequence[float] | None",
    )
    split_seed: int = option(1234, "seed of the split (default: 1234)", "N", ge=0, lt=2**64)
    export: tuple[ExportKind, ...] = option(
        (),
        "also write a folder for other trainers: parquet (rows of input_ids and labels, for TRL, axolotl and others) "
        "or bridge (packs of Megatron-Bridge and NeMo)",
        "KIND",
        accepts="ExportKind | Sequence[ExportKind]",
    )

    @field_validator("split")
    @classmethod
    def _has_shares(cls, split: tuple[float, float, float] | None) -> tuple[float, float, float] | None:
        if split is not None and not (min(split) >= 0 and 0 < sum(split) < float("inf")):
            raise ValueError(f"expected three shares of at least 0 with a sum above 0, got {list(split)}")
        return split

    @field_validator("export")
    @classmethod
    def _names_each_once(cls, export: tuple[ExportKind, ...]) -> tuple[ExportKind, ...]:
        return tuple(dict.fromkeys(export))

    @model_validator(mode="after")
    def _can_be_exported(self) -> Self:
        if self.export:
            expected = (
                "expected an output on a disk with --export, which makes folders beside it, got an address; leave out "
                "--export, or write to a disk"
            )
            refuse_address(self.output_prefix, expected, ValueError)
        if "bridge" in self.export and self.seq_length is None:
            raise ValueError("--export bridge needs --seq-length, the places of a pack")
        return self

    @model_validator(mode="after")
    def _can_be_packed(self) -> Self:
        given = "--pad-to-multiple" if self.pad_to_multiple > 1 else "--longer-than-pack"
        if self.seq_length is None:
            if self.pad_to_multiple > 1 or self.longer_than_pack is not None:
                raise ValueError(f"{given} needs --seq-length, the tokens of a pack")
        elif self.seq_length % self.pad_to_multiple:
            below = self.seq_length - self.seq_length % self.pad_to_multiple
            raise ValueError(
                f"expected a --seq-length that is a multiple of --pad-to-multiple {self.pad_to_multiple}, such as "
                f"{below or self.pad_to_multiple}, got {self.seq_length}: a pack is cut like its conversations"
            )
        return self


class _ChatText(TextConfig):
    largest_shard: ClassVar[int] = InstructConfig.largest_shard


def as_text_config(config: InstructConfig) -> TextConfig:
    """Return the options of a job that tokenizes without the post-processor."""
    shared: dict[str, Any] = {name: getattr(config, name) for name in RecordsConfig.model_fields}
    if config.shard_size is not None:
        shared["shard_size"] = f"{config.shard_size}B"
    return _ChatText(**shared, engine=config.engine, tokenizer_hf_no_include_special_tokens=True)
