"""What a job tokenizes and how: inputs, tokenizer, engine, shards. Shared by every job that begins with JSONL text."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.errors import OutputError
from dsindex.storage import free_bytes
from dsindex.text.tokenizer import load_tokenizer, require_eod
from workflows.plan import choose_shard_size, find_inputs, plan_shards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.shards import ShardResult, ShardTask
    from dsindex.text.engines import Engine
    from dsindex.text.tokenizer import Tokenizer
    from workflows.config import TextConfig
    from workflows.plan import InputFile
    from workflows.preflight import Estimate

ACCOUNT_FIELDS = ("lines", "blank", "records", "kept", "quarantined")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource:
    """The inputs of a job, looked at, and the tokenizer, loaded."""

    config: TextConfig
    inputs: tuple[InputFile, ...]
    tokenizer: Tokenizer
    engine: Engine
    eod_id: int | None
    shard_size: int

    @property
    def total_bytes(self) -> int:
        """Size of all inputs."""
        return sum(file.size_bytes for file in self.inputs)

    def tasks(self) -> list[ShardTask]:
        """Give all shards, in plan order."""
        return list(plan_shards(self.inputs, self.shard_size))

    def settings(self) -> dict[str, Any]:
        """Give what a plan must say of the source, by the names of the options."""
        config = self.config
        return {
            "tokenizer": self.tokenizer.sha256,
            "engine": [self.engine.name, self.engine.version],
            "append-eod": self.eod_id,
            "tokenizer-hf-no-include-special-tokens": config.tokenizer_hf_no_include_special_tokens,
            "shard-size": self.shard_size,
            "no-provenance": config.no_provenance,
            "on-bad-record": config.on_bad_record,
            "max-record-size": config.max_record_size,
        }

    def describe_inputs(self, results: Sequence[tuple[ShardTask, ShardResult]]) -> list[dict[str, Any]]:
        """Give the manifest's `inputs`: what each was, and the account of its lines."""
        own: list[list[ShardResult]] = [[] for _ in self.inputs]
        for task, result in results:
            own[task.input].append(result)
        return [
            {
                "path": file.path,
                "size_bytes": file.size_bytes,
                "fingerprint": shards[0].input_fingerprint,
                **count_lines(shards),
            }
            for file, shards in zip(self.inputs, own, strict=True)
        ]

    def describe_tokenizer(self) -> dict[str, Any]:
        """Give the manifest's `tokenizer`."""
        return {
            "name": self.tokenizer.name,
            "sha256": self.tokenizer.sha256,
            "vocabulary_size": self.tokenizer.vocabulary_size,
            "eod_id": self.eod_id,
        }

    def describe_options(self) -> dict[str, Any]:
        """Give the options that the output depends on, for the manifest."""
        config = self.config
        return {
            "append_eod": self.eod_id is not None,
            "tokenizer_hf_no_include_special_tokens": config.tokenizer_hf_no_include_special_tokens,
            "on_bad_record": config.on_bad_record,
            "max_record_size": config.max_record_size,
        }


def open_source(config: TextConfig, *, append_eod: bool) -> TextSource:
    """Look at the inputs and load the tokenizer.

    Raises:
        InputError: If an input is missing, empty or not readable.
        TokenizerError: If the tokenizer cannot be used, or has no EOD where one is to be appended.
    """
    from dsindex.text.engines import choose_engine

    inputs = tuple(find_inputs(config.input))
    tokenizer = load_tokenizer(config.tokenizer_model, eod_token=config.eod_token)
    engine = choose_engine(
        tokenizer, config.engine, add_special_tokens=not config.tokenizer_hf_no_include_special_tokens
    )
    total = sum(file.size_bytes for file in inputs)
    return TextSource(
        config=config,
        inputs=inputs,
        tokenizer=tokenizer,
        engine=engine,
        eod_id=require_eod(tokenizer) if append_eod else None,
        shard_size=choose_shard_size(total, config.shard_size),
    )


def count_lines(results: Sequence[ShardResult]) -> dict[str, int]:
    """Give the account: lines = records + blank; records = kept + quarantined."""
    return {
        "lines": sum(result.num_lines for result in results),
        "blank": sum(result.num_blank for result in results),
        "records": sum(result.num_records + result.num_quarantined for result in results),
        "kept": sum(result.num_records for result in results),
        "quarantined": sum(result.num_quarantined for result in results),
    }


def check_room(
    estimate: Estimate,
    *,
    itemsize: int,
    num_keys: int,
    output_folder: str,
    work_dir: str,
    unfinished: Sequence[str] = (),
) -> None:
    """Refuse a job whose shards and output would not fit.

    Args:
        estimate: From a sample.
        itemsize: Bytes of a token on disk.
        num_keys: Datasets that are made of each document.
        output_folder: Where the output goes; it exists.
        work_dir: Where the shards go; it need not exist.
        unfinished: Files that an earlier run has written of the output.

    Raises:
        OutputError: Naming the folder, what is needed and what is free.
    """
    output = int(estimate.tokens * itemsize + estimate.documents * num_keys * 24)
    shards = output + int(estimate.documents * 16)
    work = work_dir if os.path.isdir(work_dir) else os.path.dirname(work_dir)
    needs = {output_folder: output}
    if os.path.isdir(work) and os.stat(work).st_dev == os.stat(output_folder).st_dev:
        needs[output_folder] += shards
    else:
        needs[work] = shards
    shards_there = [os.path.join(folder, name) for folder, _, names in os.walk(work_dir) for name in names]
    already = sum(map(_allocated_bytes, [*shards_there, *unfinished]))
    for place, needed in needs.items():
        if needed - already > free_bytes(place):
            msg = (
                f"{place}: about {_gigabytes(needed - already)} are needed for shards and output, "
                f"{_gigabytes(free_bytes(place))} are free; make room, or put shards elsewhere with --work-dir"
            )
            raise OutputError(msg)


def _allocated_bytes(path: str) -> int:
    """Tell what a file takes on disk; an output that is not whole has holes."""
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0  # another attempt's, and gone by now


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.2f} GB"
