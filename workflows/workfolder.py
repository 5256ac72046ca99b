"""A job's work folder: its plan, its ledger, its lock; what may be resumed and what is refused by name."""

from __future__ import annotations

import contextlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsindex.errors import PlanError
from dsindex.storage import make_folder, remove_if_present, write_whole
from workflows.ledger import Ledger
from workflows.lock import hold_lock
from workflows.progress_file import PROGRESS_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from workflows.plan import InputFile

PLAN_FILE = "plan.json"
LEDGER_FILE = "ledger.jsonl"
LOCK_FILE = "owner.json"
SHARDS_FOLDER = "shards"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a job will do: everything that its output, or its shards, depend on."""

    settings: Mapping[str, Any]
    """Option or fact to value, in plain JSON types."""
    inputs: tuple[InputFile, ...]

    def to_json(self) -> dict[str, Any]:
        """Give the plan as it is stored."""
        return {
            "settings": dict(self.settings),
            "inputs": [[file.absolute_path, file.size_bytes, file.version] for file in self.inputs],
        }

    @property
    def plan_id(self) -> str:
        """A short id of the whole plan."""
        return xxhash.xxh3_64_hexdigest(orjson.dumps(self.to_json(), option=orjson.OPT_SORT_KEYS))


_HARMLESS_BEFORE = (("on-bad-record", "fail"),)
"""Settings that may change from this value: what was made while bad records failed has none to set aside."""


def describe_changes(old: Mapping[str, Any], plan: Plan) -> list[str]:
    """Name what a plan changes against a stored one.

    Inputs that were only added are no change: their shards are made, the others are kept.
    """
    new = orjson.loads(orjson.dumps(plan.to_json()))
    old_settings, new_settings = old.get("settings", {}), new["settings"]
    changes = [
        f"{name} was {_shown(old_settings.get(name))} and is {_shown(new_settings.get(name))}"
        for name in sorted(old_settings.keys() | new_settings.keys())
        if old_settings.get(name) != new_settings.get(name) and (name, old_settings.get(name)) not in _HARMLESS_BEFORE
    ]
    before = {entry[0]: entry for entry in old.get("inputs", [])}
    now = {entry[0]: entry for entry in new["inputs"]}
    for path, entry in before.items():
        if path not in now:
            changes.append(f"the input {path} is missing from --input")
        elif now[path] != entry:
            changes.append(f"the input {path} was written again ({entry[1]} bytes then, {now[path][1]} now)")
    kept = [path for path in now if path in before]
    if not changes and kept != [path for path in before if path in now]:
        changes.append("the inputs are in another order")
    return changes


def has_added_inputs(old: Mapping[str, Any], plan: Plan) -> bool:
    """Tell whether a plan only adds inputs to a stored one."""
    return len(plan.inputs) > len(old.get("inputs", []))


def _shown(value: object) -> str:
    return "not set" if value is None else orjson.dumps(value).decode()


@contextlib.contextmanager
def own_work_folder(path: str, plan: Plan, *, keep: bool = True) -> Iterator[None]:
    """Own a work folder for the time of the block, and remove it when the block succeeds, unless it is to be kept.

    A block that fails before it opens the ledger leaves no trace.

    Raises:
        PlanError: If another driver works there, or another plan has committed work there, naming what differs.
        OutputError: If it cannot be made.
    """
    make_folder(path)
    try:
        with hold_lock(os.path.join(path, LOCK_FILE)):
            _refuse_other_plan(path, plan)
            yield
            if not keep:
                _empty(path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.rmdir(path)  # which it lets only if nothing was begun there
        raise
    if not keep:
        _remove_emptied(path)


def _refuse_other_plan(path: str, plan: Plan) -> None:
    stored = read_plan(path)
    nothing_done = _size(os.path.join(path, LEDGER_FILE)) == 0
    if stored is not None and not nothing_done and (changes := describe_changes(stored, plan)):
        msg = (
            f"{path}: an unfinished build of another plan is here: {'; '.join(changes)}; "
            f"give the former options and inputs to continue it, or --fresh to start over"
        )
        raise PlanError(msg)


@contextlib.contextmanager
def open_ledger(path: str, plan: Plan) -> Iterator[Ledger]:
    """Begin or continue a plan in a work folder that is owned.

    Raises:
        FormatError: If what an earlier run recorded cannot be read.
        OutputError: If the folder cannot be written.
    """
    if read_plan(path) is None:  # a ledger that no plan explains: a removal was cut off, and it may be of another plan
        remove_if_present(os.path.join(path, LEDGER_FILE))
    write_whole(os.path.join(path, PLAN_FILE), orjson.dumps(plan.to_json()))
    ledger = Ledger(os.path.join(path, LEDGER_FILE))
    try:
        yield ledger
    finally:
        ledger.close()


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def read_plan(path: str) -> dict[str, Any] | None:
    """Read the plan of a work folder; None where there is none, or none that can be read."""
    try:
        with open(os.path.join(path, PLAN_FILE), "rb") as file:
            stored = orjson.loads(file.read())
    except (OSError, orjson.JSONDecodeError):
        return None
    return stored if is_plan(stored) else None


class _StoredPlan(BaseModel):
    """The form of a stored plan."""

    model_config = ConfigDict(strict=True)

    settings: dict[str, Any]
    inputs: list[Annotated[list[str | int], Field(min_length=3, max_length=3)]]


def is_plan(stored: object) -> bool:
    """Tell whether what a file says has the form of a plan, so that it can be compared with one."""
    try:
        inputs = _StoredPlan.model_validate(stored).inputs
    except ValidationError:
        return False
    return all(
        isinstance(path, str) and isinstance(size_bytes, int) and size_bytes >= 0 and isinstance(version, str)
        for path, size_bytes, version in inputs
    )


def remove_work_folder(path: str) -> None:
    """Remove the work folder of a job that is finished, unless a driver works there.

    Raises:
        PlanError: If another driver works there.
    """
    if os.path.isdir(path):
        with hold_lock(os.path.join(path, LOCK_FILE)):
            _empty(path)
        _remove_emptied(path)


@contextlib.contextmanager
def start_over(path: str) -> Iterator[None]:
    """Own a work folder, if there is one, for the time of the block, then empty it: what --fresh needs.

    Raises:
        PlanError: If another driver works there, or the folder holds other things: it is not ours to empty.
    """
    if not os.path.isdir(path):
        yield
        return
    foreign = [name for name in os.listdir(path) if name not in _OURS and not name.endswith(".tmp")]
    if foreign:
        msg = (
            f"{path}: expected a work folder, found {foreign[0]!r} in it; remove the folder by hand, or give --work-dir"
        )
        raise PlanError(msg)
    with hold_lock(os.path.join(path, LOCK_FILE)):
        yield
        _empty(path)


_OURS = {PLAN_FILE, LEDGER_FILE, LOCK_FILE, PROGRESS_FILE, SHARDS_FOLDER}


def _empty(path: str) -> None:
    """Remove what a job left in its work folder, but for the lock that is held.

    The ledger goes first: cut off in the middle, this leaves nothing that could be taken for a finished shard.
    """
    remove_if_present(os.path.join(path, LEDGER_FILE))
    _remove_files(os.path.join(path, SHARDS_FOLDER))
    remove_if_present(os.path.join(path, PROGRESS_FILE))
    remove_if_present(os.path.join(path, PLAN_FILE))


def _remove_files(folder: str) -> None:
    """Remove a folder, several files at once: large ones take time each, and so does every one on a server."""
    with ThreadPoolExecutor(_REMOVED_AT_ONCE, thread_name_prefix="dsindex-remove") as pool:
        for parent, _, names in os.walk(folder):
            list(pool.map(_remove_quietly, [os.path.join(parent, name) for name in names]))
    shutil.rmtree(folder, ignore_errors=True)


_REMOVED_AT_ONCE = 8


def _remove_quietly(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _remove_emptied(path: str) -> None:
    """Remove the folder itself, with what crashes in the middle of a small file's writing left; keep strangers."""
    for name in os.listdir(path):
        if name.endswith(".tmp"):
            remove_if_present(os.path.join(path, name))
    with contextlib.suppress(OSError):
        os.rmdir(path)
