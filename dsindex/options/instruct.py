"""The options of `dsindex instruct`, apart from the YAML configuration of `dsindex.chat.config`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path as Folder
from typing import Any, ClassVar, Literal, TypeAlias

from dsindex.datasets.arguments import AnyPath
from dsindex.errors import UsageError
from dsindex.options.common import Output, RecordsConfig, TextConfig, Tokenizer
from dsindex.options.model import Parsed, option, options_of
from dsindex.store.urls import refuse_address

ExportKind: TypeAlias = Literal["parquet", "bridge"]
Reasoning: TypeAlias = Literal["learn", "mask", "drop"]
LongerThanPack: TypeAlias = Literal["refuse", "drop", "truncate", "split-turns"]


class InstructConfig(RecordsConfig):
    r"""Turn conversations into tokens, loss masks and packed blocks.

    Writes P_text_document (tokens) and P_loss_mask (uint8, 1 = trainable), with the same sequences and documents, and
    P_packing_L, which assigns whole conversations to blocks of L tokens. With --split each is made per split:
    P_train_text_document, and so on.

    CONFIG says how records become prompts and which of their text is trained on (special_tokens, message_construction,
    loss_masking_jq_patterns, or a chat template). The options below can also be set in its section `job`, with
    underscores for dashes; flags override it. Much text is encoded in processes, unless --executor says otherwise.

    Run the same command again to continue an interrupted job.

    Examples:
        dsindex instruct chat.yaml --input chats.jsonl --tokenizer-model FOLDER \
          --output-prefix out/chat --seq-length 4096
    """

    group: ClassVar = "input and output"
    largest_shard: ClassVar[int] = 8 << 20
    """Smaller than a build's: a worker encodes a tenth as fast, and all should be busy to the end."""
    config: Parsed[AnyPath | Mapping[str, Any] | None, Any] = option("CONFIG", default=None, positional=True)
    """A YAML file: how records become prompts, and in its section `job`, options as below."""
    output_prefix: Output = option("P", default=...)
    """Outputs are named P_text_document.*, P_loss_mask.*, …, here or in a bucket (s3://, gs://)."""
    tokenizer_model: Tokenizer = option("PATH", default=..., alias="tokenizer")
    """A tokenizer.json, or a folder with one."""
    seq_length: int | None = option("L", default=None, ge=2, le=2**27)
    """Pack conversations into blocks of L tokens; also sets max_length if CONFIG does not."""
    pad_to_multiple: int = option("N", default=1, ge=1, le=2**20, needs=("seq_length",))
    """Pad each conversation in a pack to a multiple of N tokens, as context parallelism needs it: twice its ranks,
    times the tensor-parallel ranks with sequence parallelism (default: 1)."""
    longer_than_pack: LongerThanPack | None = option(default=None, needs=("seq_length",))
    """A conversation of more than L tokens: refuse makes a bad record, drop leaves it out of the packs, truncate cuts
    it, split-turns makes several sequences; all are counted (default: `too_long` of CONFIG)."""
    reasoning: Reasoning | None = option(default=None)
    """Learn reasoning (reasoning_content, <think>), mask it, or drop it from the messages (default: `reasoning` of
    CONFIG, or learn)."""
    unwritten: Literal["count", "refuse"] | None = option(default=None)
    """What the template does not write of a conversation, such as reasoning, is counted, or makes a bad record
    (default: `unwritten` of CONFIG, or count)."""
    split: Parsed[str | Sequence[float] | None, tuple[float, float, float] | None] = option(
        "A,B,C", default=None, separator=","
    )
    """Shares of train, valid and test, by a hash of each conversation's content."""
    split_seed: int = option("N", default=1234)
    """Seed of the split (default: 1234)."""
    export: Parsed[ExportKind | Sequence[ExportKind], tuple[ExportKind, ...]] = option("KIND", default=())
    """Also write a folder for other trainers: parquet (rows of input_ids and labels, for TRL, axolotl and others) or
    bridge (packs of Megatron-Bridge and NeMo)."""

    @classmethod
    def prepare(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Take options from the section `job` of the configuration."""
        if values.get("config") is None:
            return values
        settings, source, _ = read_instruction(values["config"])
        job = settings.get("job") or {}
        if not isinstance(job, dict):
            raise UsageError(f"{source}: expected the section job to be a mapping of options to values, got {job!r}")
        return {**{str(name).replace("-", "_"): value for name, value in job.items()}, **values}

    def _agree(self) -> None:
        """Check that packs and exports can be made."""
        if self.export:
            expected = (
                "expected an output on a disk with --export, which makes folders beside it, got an address; leave out "
                "--export, or write to a disk"
            )
            refuse_address(self.output_prefix, expected, ValueError)
        if self.split is not None and not any(self.split):
            raise ValueError("--split: expected shares of train, valid and test such as 98,1,1, got none above 0")
        if "bridge" in self.export and self.seq_length is None:
            raise ValueError("--export bridge needs --seq-length, the places of a pack")
        if self.seq_length is not None and self.seq_length % self.pad_to_multiple:
            below = self.seq_length - self.seq_length % self.pad_to_multiple
            raise ValueError(
                f"expected a --seq-length that is a multiple of --pad-to-multiple {self.pad_to_multiple}, such as "
                f"{below or self.pad_to_multiple}, got {self.seq_length}: a pack is cut like its conversations"
            )


def read_instruction(config: Any) -> tuple[Mapping[str, Any], str, Folder]:  # noqa: ANN401 - a path or a mapping
    """Return a configuration as parsed YAML, its name for messages, and the folder that its paths are relative to.

    Raises:
        InputError: If it is a file that cannot be read.
        UsageError: If it is neither a path nor a mapping.
    """
    if isinstance(config, Mapping):
        return config, "config", Folder.cwd()
    if isinstance(config, str | os.PathLike):
        from dsindex.store.config_files import read_yaml  # loads YAML

        return read_yaml(os.fspath(config)), os.fspath(config), Folder(config).parent
    raise UsageError(f"config: expected the path of a YAML file or a dict, got {config!r}")


class _ChatText(TextConfig):
    largest_shard: ClassVar[int] = InstructConfig.largest_shard


def as_text_config(config: InstructConfig) -> TextConfig:
    """Return the options of a job that tokenizes without the post-processor."""
    shared: dict[str, Any] = {name: getattr(config, name) for name in options_of(RecordsConfig)}
    return _ChatText(**shared, tokenizer_hf_no_include_special_tokens=True)
