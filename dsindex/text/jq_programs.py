"""Run jq programs in a guarded process: read fields of a record, select elements of them, and evaluate conditions."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import jq

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = dict[str, Any]
_MAX_NESTING = 900
"""The same as in `dsindex.text.fields`, which is slow to import."""
_SHOWN_CHARACTERS = 1000
"""Limit on jq's error messages, which may quote the record."""


def prepare(definition: dict[str, Any]) -> tuple[Answer, Callable[[bytes], Answer]]:
    """Compile programs.

    Args:
        definition: `fields`, a list of patterns for single values of a record; `masks`, a list of objects with
            `pattern`, `field` (its number in `fields`) and `rest`, a filter for the field's elements or None;
            `conditions`, a list of programs; and `is_joint`, whether fields and conditions are compiled to one program,
            so that a record is parsed once for all of them. There are no masks then.

    Returns:
        `refused`, the pattern that is not jq and the reason, or None; and a function from a record to its `fields`,
        `masks` and `conditions`, in order. Each of them is a `value` or a `problem`; a mask is null if its field has no
        value. If a condition does not hold, the fields are null and no pattern is run on the record.
    """
    try:
        fields = [(pattern, _compile(pattern, pattern)) for pattern in definition["fields"]]
        masks = [(mask["pattern"], mask["field"], _compile_mask(mask)) for mask in definition["masks"]]
        if definition["is_joint"]:
            return {"refused": None}, _JointProgram(definition["conditions"], definition["fields"])
    except _RefusedError as refused:
        return {"refused": refused.args}, _answer_nothing

    def answer(record: bytes) -> Answer:
        text = record.decode()
        values = [_only(pattern, functools.partial(program.input_text, text)) for pattern, program in fields]
        return {
            "fields": values,
            "masks": [_select(pattern, values[field], program) for pattern, field, program in masks],
            "conditions": [],
        }

    return {"refused": None}, answer


class _RefusedError(Exception):
    """A refused pattern, and jq's error message."""


def _compile(program: str, pattern: str) -> Any:  # noqa: ANN401 - jq has no types
    try:
        return jq.compile(program)
    except ValueError as error:
        raise _RefusedError(pattern, _first_line(error)) from error


def _compile_mask(mask: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
    rest = mask["rest"]
    if rest is None:
        return None
    # Compiled alone first, so that an unbalanced bracket cannot affect the program around it.
    _compile(rest, mask["pattern"])
    return _compile(f"[.[] | try ([({rest})] | any) catch {{error: .}}]", mask["pattern"])


class _JointProgram:
    """Conditions and fields as one program; the fields are read only if all conditions hold.

    For the condition `.a` and the field `.b`:

        [(try {value: ([(.a)] | any)} catch {error: .})] as $holds
        | {conditions: $holds,
           fields: (if ($holds | all(.value)) then [(try {values: [(.b)]} catch {error: .})] else [] end)}
    """

    def __init__(self, conditions: list[str], fields: list[str]) -> None:
        for pattern in (*conditions, *fields):
            _compile(pattern, pattern)  # alone, so that an unbalanced bracket cannot affect the program around it
        holds = ", ".join(f"(try {{value: ([({pattern})] | any)}} catch {{error: .}})" for pattern in conditions)
        values = ", ".join(f"(try {{values: [({pattern})]}} catch {{error: .}})" for pattern in fields)
        self._conditions, self._fields = conditions, fields
        self._program = _compile(
            f"[{holds}] as $holds | "
            f"{{conditions: $holds, fields: (if ($holds | all(.value)) then [{values}] else [] end)}}",
            " or ".join([*conditions, *fields]),
        )

    def __call__(self, record: bytes) -> Answer:
        try:
            [found] = self._program.input_text(record.decode()).all()
        except (ValueError, TypeError, RecursionError) as error:
            reason = _first_line(error)
            return {
                "fields": [_fails(pattern, reason) for pattern in self._fields],
                "masks": [],
                "conditions": [_fails(pattern, reason) for pattern in self._conditions],
            }
        fields = zip(self._fields, found["fields"], strict=bool(found["fields"]))
        return {
            "fields": [_only_value(pattern, answer) for pattern, answer in fields],
            "masks": [],
            "conditions": [
                answer if "value" in answer else _fails(pattern, _shown_error(answer["error"]))
                for pattern, answer in zip(self._conditions, found["conditions"], strict=True)
            ],
        }


def _only_value(pattern: str, answer: Answer) -> Answer:
    if "values" in answer:
        return _check_values(pattern, answer["values"])
    return _fails(pattern, _shown_error(answer["error"]))


def _shown_error(error: Any) -> str:  # noqa: ANN401 - the value of jq's `error`
    return _cut(error if isinstance(error, str) else f"(not a string): {json.dumps(error, ensure_ascii=False)}")


def _answer_nothing(record: bytes) -> Answer:
    raise AssertionError(f"a refused pattern cannot read {record!r}")


def _only(pattern: str, start: Callable[[], Any]) -> Answer:
    """Return the single value that a program returns; None if it returns none."""
    try:
        values = start().all()
    except (ValueError, TypeError, RecursionError) as error:
        return _fails(pattern, _first_line(error))
    return _check_values(pattern, values)


def _check_values(pattern: str, values: list[Any]) -> Answer:
    if len(values) > 1:
        return _problem(f"pattern `{pattern}`: expected one value, got {len(values)}; leave out `[]`")
    if _is_too_deep(values):
        return _problem(f"pattern `{pattern}`: expected at most {_MAX_NESTING} objects and lists inside each other")
    return {"value": values[0] if values else None}


def _select(pattern: str, field: Answer, program: Any) -> Answer | None:  # noqa: ANN401 - as above
    """Return for each element of a list, or for a single value, whether it is selected."""
    value = field.get("value")
    if value is None:
        return None
    elements = value if isinstance(value, list) else [value]
    if program is None:
        return {"value": [True] * len(elements)}
    found = _only(pattern, functools.partial(program.input_value, elements))
    for number, answer in enumerate(found.get("value") or [], 1):
        if isinstance(answer, dict):
            reason = str(answer["error"])[:_SHOWN_CHARACTERS]
            return _problem(f"pattern `{pattern}` fails on element {number}: {reason}")
    return found


def _is_too_deep(values: list[Any]) -> bool:
    level: list[Any] = values
    for _ in range(_MAX_NESTING + 1):
        inner = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, (dict, list))]
        level = [item for items in inner for item in items]
        if not level:
            return False
    return True


def _fails(pattern: str, reason: str) -> Answer:
    return _problem(f"pattern `{pattern}` fails: {reason}")


def _problem(reason: str) -> Answer:
    return {"problem": reason}


def _first_line(error: Exception) -> str:
    return _cut(str(error))


def _cut(message: str) -> str:
    return message.strip().partition("\n")[0].removeprefix("jq: error: ")[:_SHOWN_CHARACTERS]
