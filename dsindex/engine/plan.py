"""A job's identity, which is its settings and the ordered list of its inputs, and the differences between two jobs.

Two runs belong to the same plan if and only if nothing that their output depends on differs. If only inputs differ,
their shards alone are made again: each belongs to its own input.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import xxhash

from dsindex.json_text import decode_json, encode_json, show_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dsindex.engine.inputs import InputFile

_HUB_FILE = re.compile("(hf://datasets/[^/@]+/[^/@]+)@([^/]+)")
EMPTY_PLAN: dict[str, Any] = {"settings": {}, "inputs": []}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that a job's output or its shards depend on."""

    settings: Mapping[str, Any]
    """Name → value, in plain JSON types: options, and facts such as the tokenizer's hash."""
    inputs: tuple[InputFile, ...]
    """The inputs in the order of the output; one may occur more than once."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as it is stored."""
        return {
            "settings": dict(self.settings),
            "inputs": [[file.absolute_path, file.size_bytes, file.version] for file in self.inputs],
        }

    def decoded(self) -> dict[str, Any]:
        """Return the plan as it is when it is read again, to be compared with a stored one."""
        stored = self.to_json()
        if any("://" in path for path, *_ in stored["inputs"]):  # addresses are decoded as Locations
            return cast("dict[str, Any]", decode_json(encode_json(stored)))
        return {**stored, "settings": decode_json(encode_json(stored["settings"]))}

    @cached_property
    def plan_id(self) -> str:
        """A short id of the whole plan."""
        return id_of_plan(self.to_json())


def id_of_plan(plan: Mapping[str, Any]) -> str:
    """Return the id of a plan as `Plan.to_json` writes it."""
    return xxhash.xxh3_64_hexdigest(encode_json(plan, sort_keys=True))


def _is_harmless(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Tell whether a setting may change: shards made under `fail` have no bad record, nor one that is too long."""
    if old.get("on-bad-record") != "fail":
        return False
    if name == "max_length" and old.get("too_long") == "refuse" == new.get("too_long"):
        before, now = old.get(name), new.get(name)
        return before is not None and (now or before) >= before
    return name == "on-bad-record"


def describe_changes(old: Mapping[str, Any], plan: Plan) -> list[str]:
    """Return the differences between a plan and a stored one, a phrase for each."""
    return [*describe_settings(old, plan), *describe_inputs(old, plan)]


def describe_settings(old: Mapping[str, Any], plan: Plan) -> list[str]:
    """Return the differences between the settings of a plan and of a stored one.

    The commit of a dataset on the Hub is one, so that a build does not mix two when a branch moves.
    """
    before, now = old["settings"], decode_json(encode_json(dict(plan.settings)))
    then = _commits(path for path, *_ in old["inputs"])
    return [
        f"{dataset} was at the commit {then[dataset]} ({dataset}@{then[dataset]}) and is at {commit}"
        for dataset, commit in sorted(_commits(file.path for file in plan.inputs).items())
        if then.get(dataset, commit) != commit
    ] + [
        f"{name} was {_shown(name, before.get(name))} and is {_shown(name, now.get(name))}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name) and not _is_harmless(name, before, now)
    ]


def _commits(paths: Iterable[str]) -> dict[str, str]:
    """Return each dataset on the Hub → its last commit among the addresses of files."""
    found = (_HUB_FILE.match(path) for path in paths)
    return {match[1]: match[2] for match in found if match is not None}


_SHOWN_CHANGES = 5


def describe_inputs(old: Mapping[str, Any], plan: Plan) -> list[str]:
    """Return the differences between the inputs of a plan and of a stored one, a phrase for each of the first.

    A plan without inputs, which are not known yet, has none.
    """
    inputs = plan.decoded()["inputs"]
    if old["inputs"] == inputs or not inputs:
        return []
    before, now = (
        [(_HUB_FILE.sub(r"\1", path), size_bytes, version) for path, size_bytes, version in each]
        for each in (old["inputs"], inputs)
    )
    if before == now:
        return []
    changes = []
    counts_before, counts_now = (Counter(path for path, *_ in each) for each in (before, now))
    files_now = {path: (size_bytes, version) for path, size_bytes, version in now}
    for path, size_bytes, version in {entry[0]: entry for entry in before}.values():
        name, count = f"the input {show_name(path)}", counts_before[path]
        if path not in files_now:
            changes.append(f"{name} is missing from --input")
        elif files_now[path] != (size_bytes, version):
            changes.append(f"{name} was written again ({size_bytes} bytes then, {files_now[path][0]} now)")
        if 0 < counts_now[path] < count:
            changes.append(f"{name} was given {count} times and is given {counts_now[path]}")
    added = list((counts_now - counts_before).elements())
    if added:
        one = f"the input {show_name(added[0])} was"
        changes.append(f"{one if len(added) == 1 else f'{len(added)} inputs were'} added")
    more = len(changes) - _SHOWN_CHANGES
    shown = changes[:_SHOWN_CHANGES] + ([f"and {more:,} more changes"] if more > 0 else [])
    return shown or ["the inputs are in another order"]


def _shown(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if name == "append-eod":  # stored as the token that it appends
        return "off" if value is None else f"on (token {value})"
    return "not set" if value is None else encode_json(value).decode()


class _StoredPlan(msgspec.Struct):
    """The form of a stored plan."""

    settings: dict[str, Any]
    inputs: list[tuple[str, Annotated[int, msgspec.Meta(ge=0)], str]]


def is_plan(stored: object) -> bool:
    """Tell whether a decoded value has the form of a stored plan."""
    try:
        msgspec.convert(stored, _StoredPlan)
    except msgspec.ValidationError:
        return False
    return True
