"""The cluster check: whether every node sees the driver's inputs and folders and has the same versions.

A node with storage mounted elsewhere or another Python would fail its first task or, worse, write to another folder.
So a task on each node checks this before the work begins, and faults are reported with the node's name and the path.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import dsindex
from dsindex.errors import DsindexError, InputError, OutputError
from dsindex.execution.calls import Call
from dsindex.store.reading import open_readable
from dsindex.store.storage import create_empty, free_bytes, nearest_folder, output_error, remove_if_present
from dsindex.store.urls import absolute, folder_of, joined, local_paths, server_of
from dsindex.store.writing import identify
from dsindex.text.forms import TextPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from dsindex.engine.inputs import InputFile
    from dsindex.engine.source import TextSource
    from dsindex.execution.calls import Executor, NodeAnswer
    from dsindex.text.engines import Engine
    from dsindex.text.selection import Selection
    from dsindex.text.tokenizer import Tokenizer


NODE_SECONDS = 120.0
"""Time for a node to receive the code, start its first worker and answer; slower nodes are reported."""
QUICK_INPUTS = 1000
"""Maximum number of inputs checked on every node before a build, spread evenly over the list."""
NEW_NODE_INPUTS = 20
"""Maximum number of inputs checked by each worker of a node that joins later."""
SHOWN_FAULTS = 5
SAME_VERSIONS = ("ray", "gigatoken", "tokenizers", "sentencepiece", "tiktoken", "pyarrow", "numpy")
"""Packages whose versions, like Python's and dsindex's, must be equal: others may write or send different data."""
SHARE_IT = "mount the same storage under the same path on every node"
NO_NODE = "the cluster lost its last node with CPUs before the check; run the same command again"
AUDITED_BYTES = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The items to check on every node."""

    inputs: tuple[InputFile, ...]
    """The inputs, as the driver saw them."""
    markers: tuple[str, ...]
    """Files that the driver has just created in the folders that it will write to."""
    tokenizer: Tokenizer
    engine: Engine
    keys: tuple[str, ...]
    selection: Selection | None
    audits: bool
    """Whether to load the tokenizer and audit it on text that the node reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """The answer of one node."""

    versions: dict[str, str]
    num_readable: int
    faults: tuple[str, ...]
    """Sentences about inputs, folders and the tokenizer, without the node's name."""
    free_bytes: tuple[int | None, ...]
    """Free bytes in the folder of each marker; None if the node does not have the folder."""
    tokenizer: str
    """`audited`, `not asked`, or `fails`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One node's row of the table, and its faults."""

    node: str
    facts: NodeFacts | None
    """None if it did not answer."""
    faults: tuple[str, ...]
    """Sentences that begin with the node's name."""


def check_nodes(
    executor: Executor,
    source: TextSource,
    folders: Sequence[str],
    *,
    keys: Sequence[str],
    thorough: bool,
    selection: Selection | None = None,
) -> list[NodeReport]:
    """Check on every node that it sees the inputs and the folders and has the driver's versions.

    Args:
        executor: The executor whose nodes are checked; a local one has this process alone.
        source: Inputs, tokenizer and engine as the driver has them.
        folders: Folders for shards and output; of a folder that does not exist yet, the nearest parent is checked.
        keys: Keys whose texts are tokenized.
        thorough: Whether to check every input and run the tokenizer; otherwise QUICK_INPUTS inputs are checked.
        selection: The records to keep and the values to read, if they are more than keys.
    """
    with marked(folders) as markers:
        return _ask_nodes(executor, source, markers, keys=keys, thorough=thorough, selection=selection)


def _ask_nodes(
    executor: Executor,
    source: TextSource,
    markers: Sequence[str],
    *,
    keys: Sequence[str],
    thorough: bool,
    selection: Selection | None = None,
) -> list[NodeReport]:
    inputs = source.inputs if thorough else _spread(source.inputs, QUICK_INPUTS)
    probe = Probe(
        inputs=tuple(inputs),
        markers=tuple(markers),
        tokenizer=source.tokenizer,
        engine=source.engine,
        keys=tuple(keys),
        selection=selection,
        audits=thorough,
    )
    call = Call(name="check", place="", function=probe_node, arguments=(executor.share(probe),))
    answers = executor.on_every_node(call, timeout=NODE_SECONDS)
    own = versions()
    return [_judge(node, answer, own) for node, answer in answers.items()]


def require_sound_nodes(
    source: TextSource,
    executor: Executor,
    markers: Sequence[str],
    *,
    keys: Sequence[str],
    selection: Selection | None = None,
) -> None:
    """Check every node of a cluster quickly, and refuse nodes that would fail, now or when they join later.

    Args:
        source: Inputs, tokenizer and engine of the job.
        executor: The executor whose nodes are checked.
        markers: Files in the folders that the job writes to, which every node must see.
        keys: Keys whose texts are tokenized.
        selection: The records to keep and the values to read, if they are more than keys.

    Raises:
        InputError: If there are faults, naming nodes and files.
    """
    require_sound(_ask_nodes(executor, source, markers, keys=keys, thorough=False, selection=selection))
    inputs = tuple(_spread(source.inputs, NEW_NODE_INPUTS))
    executor.check_new_nodes(partial(require_sound_here, inputs, tuple(markers), versions()))


def require_sound(reports: Sequence[NodeReport]) -> None:
    """Refuse nodes that would fail.

    Raises:
        InputError: If there are faults, naming nodes and files.
    """
    faults = [fault for report in reports for fault in report.faults]
    if not reports:
        faults = [NO_NODE]
    if faults:
        more = [f"and {len(faults) - SHOWN_FAULTS:,} more; --check shows all"] if len(faults) > SHOWN_FAULTS else []
        raise InputError(*faults[:SHOWN_FAULTS], *more)


def require_sound_here(inputs: Sequence[InputFile], markers: Sequence[str], driver: Mapping[str, str]) -> None:
    """Check this node, which joined after the others were checked.

    Args:
        inputs: Some inputs, as the driver saw them.
        markers: Files in the folders that the job writes to.
        driver: The driver's versions.

    Raises:
        InputError: If the node would fail, with the first fault.
    """
    faults = [*_compare_versions(versions(), driver), *_look_at_inputs(inputs), *look_at_folders(markers)]
    if faults:
        raise InputError(faults[0])


def probe_node(probe: Probe) -> NodeFacts:
    """Check this node."""
    unreadable = _look_at_inputs(probe.inputs)
    faults = unreadable + look_at_folders(probe.markers)
    folders = list(map(os.path.dirname, local_paths(probe.markers)))
    free = [free_bytes(folder) if os.path.isdir(folder) else None for folder in folders]
    tokenizer = "not asked"
    if probe.audits and not faults:
        try:
            _audit_first_texts(probe)
            tokenizer = "audited"
        except DsindexError as error:
            faults.append(str(error))
            tokenizer = "fails"
    return NodeFacts(
        versions=versions(),
        num_readable=len(probe.inputs) - len(unreadable),
        faults=tuple(faults),
        free_bytes=tuple(free),
        tokenizer=tokenizer,
    )


def versions() -> dict[str, str]:
    """Return the versions that must be equal on all nodes."""
    found = {"python": platform.python_version()}
    for package in SAME_VERSIONS:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    return {**found, "dsindex": dsindex.__version__}  # shipped code has no metadata


def _look_at_inputs(inputs: Sequence[InputFile]) -> list[str]:
    # One of each server: a request for every object on every node would cost more than it tells.
    chosen: dict[str, InputFile] = {}
    for known in inputs:
        chosen.setdefault(server_of(known.absolute_path), known)
    return _look_at_files({known.absolute_path: known.size_bytes for known in chosen.values()})


def _look_at_files(sizes: Mapping[str, int]) -> list[str]:
    faults = []
    for path, size_bytes in sizes.items():
        try:
            with open_readable(path) as file:
                got = file.size_bytes
                file.read_at(1, 0)
        except InputError as error:
            faults.append(str(error))
            continue
        except OSError as error:
            faults.append(f"{path}: cannot be read ({error.strerror}); {SHARE_IT}")
            continue
        if got != size_bytes:
            faults.append(f"{path}: expected {size_bytes:,} bytes as on the driver's node, got {got:,}; {SHARE_IT}")
    return faults


def look_at_folders(markers: Sequence[str]) -> list[str]:
    """Return sentences about folders in which this node does not see the driver's marker, or must not write."""
    faults = []
    for marker in markers:
        folder = folder_of(marker)
        try:
            is_there = identify(marker) is not None
        except OutputError as error:
            faults.append(str(error))
            continue
        if not local_paths([marker]):
            faults += [] if is_there else [f"{marker}: expected what the driver has written there, found nothing"]
        elif not is_there:
            what = "another folder of this name" if os.path.isdir(folder) else "no folder"
            faults.append(f"{folder}: expected the folder that the driver writes to, got {what}; {SHARE_IT}")
        elif not os.access(folder, os.W_OK):
            faults.append(f"{folder}: cannot be written (Permission denied); {SHARE_IT}")
    return faults


def _compare_versions(own: Mapping[str, str], driver: Mapping[str, str]) -> list[str]:
    return [
        f"expected {name} {version} as on the driver's node, got {own.get(name)}; install the same"
        for name, version in driver.items()
        if own.get(name) != version
    ]


def _audit_first_texts(probe: Probe) -> None:
    from dsindex.text.audit import audit, clip_texts
    from dsindex.text.encoders import encode_leniently, make_encoder
    from dsindex.text.parts import read_part
    from dsindex.text.record_blocks import TextColumn

    first = probe.inputs[0]
    bounds = (0, min(first.size_bytes, AUDITED_BYTES)) if first.parts is None else first.parts.bounds
    part = TextPart(path=first.absolute_path, begin=0, end=bounds[1], form=first.form)
    for block in read_part(part, keys=probe.keys, selection=probe.selection, block_bytes=AUDITED_BYTES):
        for column in block.columns.values():
            if not isinstance(column, TextColumn):
                continue  # token ids are not encoded
            texts = clip_texts(column.texts, text_bytes=AUDITED_BYTES, total_bytes=AUDITED_BYTES)
            encode_leniently(make_encoder(probe.tokenizer, probe.engine), texts)
            audit(probe.tokenizer, probe.engine, texts)
        if first.parts is not None:
            return  # the first block is enough


def _judge(node: str, answer: NodeAnswer, own: dict[str, str]) -> NodeReport:
    if answer.error is not None:
        fault = f"{node}: {answer.error}; look at that node, or take it out of the cluster"
        return NodeReport(node=node, facts=None, faults=(fault,))
    facts: NodeFacts = answer.value
    faults = [f"{node}: {fault}" for fault in facts.faults]
    faults += [f"{node}: {fault}" for fault in _compare_versions(facts.versions, own)]
    return NodeReport(node=node, facts=facts, faults=tuple(faults))


@contextlib.contextmanager
def marked(folders: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Keep an empty file in each folder, or in its nearest existing parent, or an empty object, while the block runs.

    Raises:
        OutputError: If a folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        markers = []
        for folder in dict.fromkeys(map(nearest_folder, folders)):
            marker = joined(folder, f".dsindex-check.{uuid.uuid4().hex}")
            try:
                create_empty(marker)
            except OSError as error:
                raise output_error(folder, error) from error
            stack.callback(remove_if_present, marker)
            markers.append(marker)
        yield tuple(markers)


def _spread(inputs: Sequence[InputFile], limit: int) -> list[InputFile]:
    """Return at most `limit` inputs, evenly spread, beginning with the first."""
    return [inputs[number] for number in range(0, len(inputs), -(-len(inputs) // limit))]


# Whether every node of a cluster sees the files that a job reads and the folders that it writes to.
#
# `nodes.py` asks more, for jobs that tokenize.


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
    here = [folder for folder in local_paths(folders) if os.access(nearest_folder(folder), os.W_OK)]
    with marked(here) as markers:
        require_seen(executor, markers, files=files)


def require_seen(executor: Executor, markers: Sequence[str], *, files: Iterable[str]) -> None:
    """Refuse nodes that do not see the files, of many at most QUICK_INPUTS, or the markers of the driver.

    Raises:
        InputError: Naming nodes and paths.
    """
    paths = list(dict.fromkeys(absolute(path) for path in local_paths(files) if os.path.isfile(path)))
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
    return _look_at_files(sizes) + look_at_folders(markers)
