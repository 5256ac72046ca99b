"""Find the shards in a build's work folder without a driver: which are intact, and which are lost."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dsindex.errors import FormatError
from dsindex.merging.parts import Part, open_part
from workflows.stages.kept_shards import find_whole_shards
from workflows.state.inputs import (
    FEW_SHARDS,
    MAX_SHARDS,
    InputFile,
    InputParts,
    by_input,
    choose_shard_sizes,
    count_shards,
    plan_shards,
)
from workflows.state.journal import ledger_path
from workflows.state.ledger import read_committed_shards, task_key
from workflows.state.work_folder import read_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.shards.tasks import ShardResult, ShardTask
    from workflows.execution.calls import Executor
    from workflows.progress.reporter import Reporter

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundShards:
    """The shards of one dataset in a work folder."""

    parts: tuple[Part, ...]
    """Intact shards, in plan order."""
    lost: tuple[str, ...]
    """Sentences about the others."""


def find_work_folder(prefix: str) -> str | None:
    """Return the folder `<output-prefix>.build` of a dataset `<output-prefix>_<key>_document`, or None."""
    folder, name = os.path.split(prefix)
    stems = [name] + [name[:at] for at in range(len(name) - 1, 0, -1) if name[at] == "_"]
    candidates = [os.path.join(folder, f"{stem}.build") for stem in stems]
    return next((path for path in candidates if os.path.isdir(path)), None)


def find_shards(work_dir: str, prefix: str, *, executor: Executor, reporter: Reporter) -> FoundShards:
    """Find the shards of a dataset and compare each with the ledger's digests.

    Raises:
        FormatError: If the folder has no plan of a build with this dataset, or no intact shard.
    """
    plan = read_plan(work_dir)
    if plan is None:
        msg = f"{work_dir}: expected the work folder of a build with its plan.json, got none that can be read"
        raise FormatError(msg)
    key, shard_size = _read_settings(work_dir, plan["settings"], prefix)
    if plan["settings"].get("shuffle-documents") is not None:
        msg = f"{work_dir}: the documents are shuffled, so they are not in the order of the shards; build them again"
        raise FormatError(msg)
    parts = plan.get("parts", {})
    inputs = [
        InputFile(
            path=path,
            absolute_path=path,
            size_bytes=size_bytes,
            version=version,
            parts=InputParts(bounds=tuple(parts[path])) if path in parts else None,
            share=share,
        )
        for (path, size_bytes, version), share in zip(plan["inputs"], _read_shares(plan), strict=True)
    ]
    sizes = choose_shard_sizes(inputs) if shard_size is None else by_input(inputs, shard_size)
    num_shards = count_shards(inputs, sizes)
    most = MAX_SHARDS + len(inputs)  # the limit of choose_shard_size
    if num_shards > most + (8 * FEW_SHARDS if shard_size is None else 0):
        msg = f"{work_dir}: expected a plan of at most {most} shards, got {num_shards}"
        raise FormatError(msg)
    committed = read_committed_shards(ledger_path(work_dir))
    tasks = list(plan_shards(inputs, sizes))
    known = {number: committed[task_key(task)] for number, task in enumerate(tasks) if task_key(task) in committed}
    whole = find_whole_shards(known, work_dir, executor=executor, reporter=reporter)
    parts, lost = [], []
    for number, task in enumerate(tasks):
        part = _part_of(known[number], key, work_dir) if number in whole else None
        if part is not None:
            parts.append(part)
        else:
            lost.append((task, number in known))
    if not parts:
        msg = f"{work_dir}: expected at least one intact shard, got none of {len(tasks)}"
        raise FormatError(msg)
    return FoundShards(parts=tuple(parts), lost=tuple(_describe_lost(lost, len(tasks))))


def _read_shares(plan: dict[str, Any]) -> list[float | None]:
    """Return the share of each input: of an input that is read 2.5 times, every third one is a half."""
    repeat = plan["settings"].get("repeat")
    times = repeat if isinstance(repeat, dict) else {}
    seen: Counter[str] = Counter()
    shares: list[float | None] = []
    for path, *_ in plan["inputs"]:
        seen[path] += 1
        number = times.get(path, 1)
        rest = Fraction(str(number)) % 1 if isinstance(number, float) and math.isfinite(number) else Fraction(0)
        shares.append(float(rest) if rest and seen[path] % math.ceil(number) == 0 else None)
    return shares


def _read_settings(work_dir: str, settings: dict[str, Any], prefix: str) -> tuple[str, int | None]:
    """Return the key that a dataset was built from, and the shard size in bytes, None if the inputs chose it."""
    keys, output, shard_size = settings.get("json-keys"), settings.get("output-prefix"), settings.get("shard-size")
    is_size = shard_size is None or (isinstance(shard_size, int) and shard_size >= 1)
    if not isinstance(keys, list) or not isinstance(output, str) or not is_size:
        msg = f"{work_dir}: expected the plan of a build, with json-keys, output-prefix and shard-size"
        raise FormatError(msg)
    names = {f"{os.path.basename(output)}_{key}_document": key for key in keys if isinstance(key, str)}
    if os.path.basename(prefix) not in names:
        msg = f"{work_dir}: expected a build of {os.path.basename(prefix)}, got one of {', '.join(names)}"
        raise FormatError(msg)
    return names[os.path.basename(prefix)], shard_size


def _part_of(result: ShardResult, key: str, work_dir: str) -> Part | None:
    for part in result.keys:
        stem, suffix = os.path.splitext(part.bin.name)
        if part.key == key and suffix == ".bin" and part.idx.name == f"{stem}.idx":
            return open_part(os.path.join(work_dir, stem))
    return None


def _describe_lost(lost: Sequence[tuple[ShardTask, bool]], num_shards: int) -> list[str]:
    sentences = [
        f"{task.path}, bytes {task.begin} to {task.end}: its shard {'is damaged' if known else 'was never finished'}"
        for task, known in lost[:_SHOWN]
    ]
    if len(lost) > _SHOWN:
        sentences.append(f"and {len(lost) - _SHOWN} more of {num_shards} shards")
    if lost:
        sentences.append("the same build command makes the missing shards again, if the inputs still exist")
    return sentences
