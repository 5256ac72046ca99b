"""What stands under a job's final names: finished by the same plan, by another one, foreign, or nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.errors import OutputError, PlanError
from dsindex.storage import remove_if_present
from workflows.manifest import files_have_recorded_sizes, manifest_path, read_manifest
from workflows.publishing import PACKED_PUBLISHING_ORDER, PUBLISHING_ORDER, FileDigest, remove_partials
from workflows.workfolder import describe_changes, has_added_inputs, start_over

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workflows.workfolder import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A dataset that a job publishes."""

    prefix: str
    """Path without suffix."""
    suffixes: tuple[str, ...]
    """Of its files, in the order in which --fresh removes them."""


MEGATRON_SUFFIXES = ("idx", *(suffix for suffix in PUBLISHING_ORDER if suffix != "idx"))
PACKED_SUFFIXES = tuple(reversed(PACKED_PUBLISHING_ORDER))


def find_finished(
    outputs: Sequence[Output], plan: Plan, work_dir: str, *, may_grow: bool
) -> list[dict[str, Any]] | None:
    """Look at what is there already.

    Args:
        outputs: All that the job publishes.
        plan: What it would do.
        work_dir: Where an unfinished run of it would have left its shards.
        may_grow: Whether added inputs continue what is there; otherwise they are another plan.

    Returns:
        The manifests of finished output of the same plan; None where there is work to do.

    Raises:
        PlanError: If the output was made by another plan, naming what differs.
        OutputError: If files stand under final names that no manifest and no work folder explain.
    """
    manifests = [read_manifest(output.prefix) for output in outputs]
    finished: list[dict[str, Any]] = []
    for output, manifest in zip(outputs, manifests, strict=True):
        if manifest is None:
            continue
        stored = manifest["run"].get("plan", {})
        changes = describe_changes(stored, plan)
        grown = has_added_inputs(stored, plan)
        if grown and not may_grow:
            changes.append("inputs were added")
        if changes:
            msg = (
                f"{output.prefix}: finished output of another plan is here: {'; '.join(changes)}; "
                f"choose another place for the output, or replace it with --fresh"
            )
            raise PlanError(msg)
        if not grown and files_have_recorded_sizes(output.prefix, manifest):
            finished.append(manifest)
    if len(finished) == len(outputs):
        return finished
    if not os.path.isdir(work_dir) and not any(manifest is not None for manifest in manifests):
        _refuse_foreign(outputs)
    return None


def _refuse_foreign(outputs: Sequence[Output]) -> None:
    for output in outputs:
        for suffix in output.suffixes:
            path = f"{output.prefix}.{suffix}"
            if os.path.exists(path):
                msg = (
                    f"{path}: exists already, and no manifest or work folder says what it is; "
                    f"choose another place for the output, or replace it with --fresh"
                )
                raise OutputError(msg)


def remove_outputs(outputs: Sequence[Output], work_dir: str) -> None:
    """Start over: remove each manifest, then its `.idx`, then the rest, then empty the work folder.

    Raises:
        PlanError: If another driver works in the work folder, or it holds things that are not ours.
    """
    with start_over(work_dir):
        for output in outputs:
            remove_if_present(manifest_path(output.prefix))
            for suffix in output.suffixes:
                remove_if_present(f"{output.prefix}.{suffix}")
            remove_partials(output.prefix)


def recorded_files(content: dict[str, Any]) -> dict[str, FileDigest]:
    """Give sizes and digests as a manifest's content says them, by suffix."""
    return {
        suffix: FileDigest(size_bytes=entry["size_bytes"], digest=entry["xxh3_128"])
        for suffix, entry in content["digests"].items()
    }
