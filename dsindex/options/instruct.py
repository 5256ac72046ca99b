"""The options of `dsindex instruct`; its YAML configuration is in `dsindex.chat.config`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path as Folder
from typing import Any, ClassVar, Literal, TypeAlias

from dsindex.datasets.arguments import AnyPath
from dsindex.errors import UsageError
from dsindex.options.common import Output, RecordsConfig, TextConfig
from dsindex.options.model import Parsed, option, options_of
from dsindex.store.urls import refuse_address

ExportKind: TypeAlias = Literal["parquet", "bridge"]
Reasoning: TypeAlias = Literal["learn", "mask", "drop"]
LongerThanPack: TypeAlias = Literal["refuse", "drop", "truncate", "split-turns"]


class InstructConfig(RecordsConfig):
    """Options of the command and of the Python function."""

    group: ClassVar = "input and output"
    largest_shard: ClassVar[int] = 8 << 20
    """Smaller than for a build: a worker encodes a tenth as fast, and all workers should stay busy until the end."""
    config: Parsed[AnyPath | Mapping[str, Any] | None, Any] = option("CONFIG", default=None, positional=True)
    """YAML file that says how records become prompts; its section `job` may hold the options below (default: the
    tokenizer's own chat template)."""
    output_prefix: Output = option("P", default=...)
    """Outputs are named P_text_document.*, P_loss_mask.* and so on, on a disk or in a bucket (s3://, gs://, az://)."""
    seq_length: int | None = option("L", default=None, ge=2, le=2**27)
    """Pack conversations into blocks of L tokens. Also sets max_length if CONFIG does not."""
    pad_to_multiple: int = option("N", default=1, ge=1, le=2**20, needs=("seq_length",))
    """Pad each conversation in a pack to a multiple of N tokens. Context parallelism needs twice its ranks, times the
    tensor-parallel ranks with sequence parallelism (default: 1)."""
    longer_than_pack: LongerThanPack | None = option(default=None, needs=("seq_length",))
    """What to do with conversations of more than L tokens. refuse: bad record. drop: leave them out of the packs.
    truncate: cut them. split-turns: make several sequences. All are counted (default: `too_long` of CONFIG)."""
    reasoning: Reasoning | None = option(default=None)
    """Train on reasoning (reasoning_content, <think>), mask it, or drop it from the messages (default: `reasoning` of
    CONFIG, or learn)."""
    unwritten: Literal["count", "refuse"] | None = option(default=None)
    """What to do if the template leaves out a part of a conversation, such as reasoning. count: count it. refuse: bad
    record (default: `unwritten` of CONFIG, or count)."""
    split: Parsed[str | Sequence[float] | None, tuple[float, float, float] | None] = option(
        "A,B,C", default=None, separator=","
    )
    """Shares of train, valid and test. A hash of its content decides the split of each conversation."""
    split_seed: int = option("N", default=1234)
    """Seed of the split (default: 1234)."""
    export: Parsed[ExportKind | Sequence[ExportKind], tuple[ExportKind, ...]] = option("KIND", default=())
    """Also write a folder for other trainers. parquet: rows of input_ids and labels for TRL, axolotl and others.
    bridge: packs for Megatron-Bridge and NeMo."""

    @classmethod
    def prepare(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Take options from the section `job` of the configuration."""
        if values.get("config") is None:
            return values
        settings, source, _ = read_instruction(values["config"])
        job = settings.get("job") or {}
        if not isinstance(job, dict):
            raise UsageError(f"{source}: the section job must be a mapping of options to values, not {job!r}")
        return {**{str(name).replace("-", "_"): value for name, value in job.items()}, **values}

    def _check_agreement(self) -> None:
        """Check that packs and exports can be made."""
        if self.export:
            refuse_address(self.output_prefix, "--export writes folders, so it needs an output on a disk", ValueError)
        if self.split is not None and not any(self.split):
            raise UsageError("--split: all shares are 0", hint="give shares of train, valid and test such as 98,1,1")
        if "bridge" in self.export and self.seq_length is None:
            raise ValueError("--export bridge needs --seq-length, the size of a pack")
        if self.seq_length is not None and self.seq_length % self.pad_to_multiple:
            multiple = self.seq_length - self.seq_length % self.pad_to_multiple
            problem = f"--seq-length {self.seq_length} is not a multiple of --pad-to-multiple {self.pad_to_multiple}"
            raise UsageError(problem, hint=f"for example --seq-length {multiple or self.pad_to_multiple}")


class InstructFlags(InstructConfig):
    r"""Turn conversations into tokens, loss masks and packed blocks.

    Writes P_text_document (tokens) and P_loss_mask (uint8, 1 = trained on), with the same sequences and documents. With
    --seq-length L it also writes P_packing_L, which assigns whole conversations to blocks of L tokens. With --split,
    each split has its own files: P_train_text_document, and so on.

    CONFIG says how records become prompts and which text is trained on (special_tokens, message_construction,
    loss_masking_jq_patterns, or a chat template). Without it, the tokenizer's own chat template is used. Its
    section `job` may hold the options below, except --show and --dry-run, with underscores for dashes; flags override
    it.

    Rerun the command to continue after an interruption.

    Examples:
        dsindex instruct --show 3 --input chats.jsonl --tokenizer-model FOLDER
        dsindex instruct chat.yaml --input chats.jsonl --tokenizer-model FOLDER \
          --output-prefix out/chat --seq-length 4096
    """

    show: int | None = option("N", default=None, ge=1, le=1000, group="input and output")
    """Write nothing; show the first N records as the model will see them, with the trained text in [[brackets]]."""
    dry_run: bool = option(default=False, group="input and output")
    """The same as --show 3."""

    @classmethod
    def prepare(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Complete the options of a command that writes nothing, which needs no --output-prefix."""
        if values.get("dry_run"):
            values = {"show": 3, **values}
        return super().prepare({"output_prefix": "not-written", **values} if values.get("show") else values)


def read_instruction(config: Any) -> tuple[Mapping[str, Any], str, Folder]:  # noqa: ANN401 - a path, a mapping or None
    """Return a configuration as parsed YAML, its name for messages, and the folder that its paths are relative to.

    Raises:
        InputError: If it is a file that cannot be read.
        UsageError: If it is neither a path, a mapping nor None.
    """
    if config is None or isinstance(config, Mapping):
        return config or {}, "config", Folder.cwd()
    if isinstance(config, str | os.PathLike):
        from dsindex.store.config_files import read_yaml  # loads YAML

        return read_yaml(os.fspath(config)), os.fspath(config), Folder(config).parent
    raise UsageError(f"config: {config!r} is neither the path of a YAML file nor a dict")


class _ChatText(TextConfig):
    largest_shard: ClassVar[int] = InstructConfig.largest_shard


def as_text_config(config: InstructConfig) -> TextConfig:
    """Return the options for tokenizing without the post-processor."""
    values: dict[str, Any] = {name: getattr(config, name) for name in options_of(RecordsConfig)}
    return _ChatText(**values, tokenizer_hf_no_include_special_tokens=True)
