"""Whether every node of a cluster sees the files that a job reads and the folders that it writes to.

`nodes.py` asks more, for jobs that tokenize.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsindex.objects.urls import absolute, is_url
from workflows.execution.calls import Call
from workflows.stages.nodes import (
    NODE_SECONDS,
    QUICK_INPUTS,
    SHARE_IT,
    NodeReport,
    look_at_folders,
    marked,
    nearest_folder,
    require_sound,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from workflows.execution.calls import Executor


def require_shared(executor: Executor, *, files: Iterable[str], folders: Iterable[str] = ()) -> None:
    """Refuse a cluster one of whose nodes does not see what a job reads, or where it writes; others need no check.

    Args:
        executor: The executor of the job.
        files: Files that the job reads. Those that are missing here too are left to the job.
        folders: Folders that it writes to, or will make. Where this node must not write, the job may find all done.

    Raises:
        InputError: Naming nodes and paths.
        OutputError: If a folder cannot be written.
    """
    if not executor.is_cluster:
        return
    here = [folder for folder in folders if not is_url(folder) and os.access(nearest_folder(folder), os.W_OK)]
    with marked(here) as markers:
        require_seen(executor, markers, files=files)


def require_seen(executor: Executor, markers: Sequence[str], *, files: Iterable[str]) -> None:
    """Refuse nodes that do not see the files, of many at most QUICK_INPUTS, or the markers of the driver.

    Raises:
        InputError: Naming nodes and paths.
    """
    paths = list(dict.fromkeys(absolute(path) for path in files if not is_url(path) and os.path.isfile(path)))
    spread = paths[:: -(-len(paths) // QUICK_INPUTS)] if paths else []
    sizes = {path: os.stat(path).st_size for path in spread}
    call = Call(name="check", place="", function=find_unseen, arguments=(sizes, tuple(markers)))
    answers = executor.on_every_node(call, timeout=NODE_SECONDS)
    reports = []
    for node, answer in answers.items():
        unseen = [f"{answer.error}; look at that node, or take it out of the cluster"]
        faults = answer.value if answer.error is None else unseen
        reports.append(NodeReport(node=node, facts=None, faults=tuple(f"{node}: {fault}" for fault in faults)))
    require_sound(reports)


def find_unseen(sizes: Mapping[str, int], markers: Sequence[str]) -> list[str]:
    """Return sentences about files that this node does not see as the driver does, and about folders of markers."""
    faults = []
    for path, size_bytes in sizes.items():
        try:
            got = os.stat(path).st_size
        except OSError as error:
            faults.append(f"{path}: cannot be read ({error.strerror}); {SHARE_IT}")
            continue
        if got != size_bytes:
            faults.append(f"{path}: expected {size_bytes:,} bytes as on the driver's node, got {got:,}; {SHARE_IT}")
    return faults + look_at_folders(markers)
