"""What a job is: its settings, and the ordered list of its inputs.

Two runs belong to the same plan if and only if nothing that their output depends on differs. If only inputs differ,
their shards alone are made again, since each shard belongs to its own input.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from dsindex.formats.manifest import Plan
from dsindex.messages import show_name, without_secrets
from dsindex.runtime.tasks import name_in_plan
from dsindex.store.json_text import encode_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dsindex.store.local import InputStatus


def make_plan(settings: Mapping[str, Any], inputs: Iterable[InputStatus] = ()) -> Plan:
    """Return the plan of settings, which are of types that JSON has, and inputs."""
    return Plan(
        settings=json.loads(encode_json(settings)),
        inputs=[(name_in_plan(file.path), file.size_bytes, file.version) for file in inputs],
    )


def compare_plans(old: Plan, new: Plan) -> tuple[list[str], list[str]]:
    """Return the differences between the settings and those between the inputs of two plans, a phrase for each.

    Bad records may be quarantined from now on: shards that were made when a bad record ended the job have none.
    """
    before, now = old.settings, new.settings
    settings = [
        f"{name} was {_shown(name, before.get(name))} and is {_shown(name, now.get(name))}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name) and (name, before.get(name)) != ("on-bad-record", "fail")
    ]
    if old.inputs == new.inputs:
        return settings, []
    inputs, files_before, files_now = [], Counter(old.inputs), Counter(new.inputs)
    for what, files in (("gone", files_before - files_now), ("new", files_now - files_before)):
        if files:
            more = f" and {files.total() - 1:,} more are" if files.total() > 1 else " is"
            inputs.append(f"the input {show_name(next(iter(files))[0])}{more} {what} or changed")
    return settings, inputs or ["the inputs are in another order"]


def _shown(name: str, value: object) -> str:
    if value is None or value is False:
        return "not given"
    return "given" if value is True or name == "append-eod" else without_secrets(encode_json(value).decode())
