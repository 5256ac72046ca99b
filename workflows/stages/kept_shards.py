"""The shards that an earlier run committed: intact ones are kept, the others are made again."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from dsindex.containers.decoding import decoder_version
from dsindex.errors import InputError, PlanError
from dsindex.objects.urls import ObjectUrl, joined
from dsindex.objects.writing import list_objects
from dsindex.shards.ownership import SHARDS_FOLDER
from dsindex.storage import digest_file
from workflows.execution.calls import Call
from workflows.execution.dispatch import run_calls
from workflows.stages.source import require_same_inputs
from workflows.state.ledger import stored_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from dsindex.shards.tasks import ShardResult, ShardTask
    from dsindex.storage import StoredFile
    from workflows.execution.calls import Executor
    from workflows.execution.dispatch import RetryPolicy
    from workflows.progress.reporter import Reporter
    from workflows.stages.work import Work


def find_kept_shards(
    work: Work,
    tasks: Sequence[ShardTask],
    work_dir: str,
    *,
    find_moved: Callable[[Mapping[int, ShardResult]], Collection[int]] | None = None,
) -> dict[int, ShardResult]:
    """Return the intact shards of the ledger, by number in the plan.

    Args:
        work: The job's executor, ledger and reporter.
        tasks: All shards of the plan.
        work_dir: The work folder.
        find_moved: Returns the shards among those of the ledger whose documents are intact in other files, so that
            only their quarantine is looked at.

    Raises:
        PlanError: If an input's content changed while its size and time did not.
        InputError: If an input cannot be read.
    """
    known = {
        number: result
        for number, task in enumerate(tasks)
        if (result := work.ledger.shard(task)) is not None and _ends_where_it_would(task, result)
    }
    if not known:
        return {}
    _require_same_inputs(tasks, known)
    moved = find_moved(known) if find_moved is not None else ()
    needed = {
        number: replace(result, keys=(), provenance=None) if number in moved else result
        for number, result in known.items()
    }
    whole = find_whole_shards(needed, work_dir, executor=work.executor, reporter=work.reporter, policy=work.policy)
    return {number: result for number, result in known.items() if number in whole}


def find_whole_shards(
    known: Mapping[int, ShardResult],
    work_dir: str,
    *,
    executor: Executor,
    reporter: Reporter,
    policy: RetryPolicy | None = None,
) -> set[int]:
    """Return the numbers of the shards whose files have the recorded sizes and digests."""
    groups = {number: stored_files(result) for number, result in known.items()}
    return find_whole_groups(groups, work_dir, executor=executor, reporter=reporter, policy=policy)


def find_whole_groups(
    groups: Mapping[int, Sequence[StoredFile]],
    work_dir: str,
    *,
    executor: Executor,
    reporter: Reporter,
    policy: RetryPolicy | None = None,
    unit: str = "shards",
) -> set[int]:
    """Return the numbers of the groups of files that all have the recorded sizes and digests.

    The store of a work folder in one has checked their digests as they were sent, and is asked for their sizes.
    """
    reporter.stage("check", total=len(groups), unit=unit)
    if isinstance(work_dir, ObjectUrl):
        whole = _whole_objects(groups, work_dir)
        reporter.advance(len(groups))
        return whole
    whole = set()

    def on_result(number: int, is_whole: bool) -> None:
        reporter.advance(1)
        if is_whole:
            whole.add(number)

    def calls() -> Iterator[tuple[int, Call]]:
        for number, files in groups.items():
            name = f"check[{number:05d}]"
            yield number, Call(name=name, place=work_dir, function=are_whole, arguments=(work_dir, tuple(files)))

    run_calls(executor, calls(), on_result=on_result, policy=policy, on_idle=reporter.tick)
    return whole


def _whole_objects(groups: Mapping[int, Sequence[StoredFile]], work_dir: ObjectUrl) -> set[int]:
    """Return the groups all of whose objects are there with the recorded sizes, by a listing of the shards."""
    sizes = {str(each.url): each.size_bytes for each in list_objects(work_dir.lengthened(f"/{SHARDS_FOLDER}"))}
    return {
        number
        for number, files in groups.items()
        if all(sizes.get(joined(work_dir, file.name)) == file.size_bytes for file in files)
    }


def are_whole(work_dir: str, files: Sequence[StoredFile]) -> bool:
    """Tell whether committed files have the recorded sizes and digests."""
    for file in files:
        path = os.path.join(work_dir, file.name)
        try:
            if os.path.getsize(path) != file.size_bytes or digest_file(path) != file.digest:
                return False
        except (OSError, InputError):
            return False
    return True


def _ends_where_it_would(task: ShardTask, result: ShardResult) -> bool:
    """Tell whether a part of a stream was unpacked by the decompressor that would unpack the parts beside it now."""
    return not task.is_of_stream or result.decoder == decoder_version(task.form.container)


def _require_same_inputs(tasks: Sequence[ShardTask], known: dict[int, ShardResult]) -> None:
    """Refuse shards of inputs whose content changed while their sizes and times did not."""
    by_input: dict[str, list[ShardResult]] = {}
    for number, result in known.items():
        by_input.setdefault(tasks[number].path, []).append(result)
    require_same_inputs({path: _require_one_input(path, results) for path, results in by_input.items()})


def _require_one_input(path: str, results: Iterable[ShardResult]) -> str | None:
    """Return the fingerprint of the input that all these shards were made from; None if none was recorded.

    Raises:
        PlanError: If they were made from different content.
    """
    fingerprints = {result.input_fingerprint for result in results} - {None}
    if len(fingerprints) > 1:
        msg = f"{path}: expected all shards to be made from the same content, got shards of another; use --fresh"
        raise PlanError(msg)
    return next(iter(fingerprints), None)
