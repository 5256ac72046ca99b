"""One message of a conversation, brought into the form in which transformers passes it to a chat template.

Keys without a value are dropped, as `apply_chat_template` does: many templates would write `None`. Reasoning has three
names among templates (`reasoning_content`, `reasoning`, `thinking`), and is passed under all of them. A content is a
text or a list of parts of type `text`; which of the two a template reads is found in `content_forms.py`.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dsindex.errors import RecordProblem
from dsindex.text.fields import type_name

if TYPE_CHECKING:
    from collections.abc import Mapping

Message = dict[str, Any]

DEFAULT_ROLES: Mapping[str, str] = MappingProxyType(
    {
        "human": "user",
        "user": "user",
        "gpt": "assistant",
        "assistant": "assistant",
        "model": "assistant",
        "function_call": "assistant",
        "system": "system",
        "developer": "developer",
        "tool": "tool",
        "observation": "tool",
        "function": "function",
        "ipython": "ipython",
    }
)
"""A record's role name -> the role name of chat templates."""

TOOL_ROLES = frozenset({"tool", "function", "ipython"})
"""Roles of messages that do not end a turn: the model goes on after them."""
ROLE_KEYS = ("role", "from")
TEXT_KEYS = ("content", "value")
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""In transformers' order of precedence."""
WEIGHT_KEYS = ("weight", "train")
"""They say whether a message is learnt, and are not passed to templates."""
_INSTEAD_OF_CONTENT = ("tool_calls", "tool_responses", "function_call", *REASONING_KEYS)
"""A message with one of them may lack a content."""


def read_message(turn: object, number: int, roles: Mapping[str, str]) -> Message:
    """Return the `number`-th message (from 1) as templates expect it.

    Args:
        turn: An object with `role` or `from`, and `content` or `value`.
        number: For error messages.
        roles: The record's role name -> the message's role.

    Returns:
        `role`, `content` (unless only tools are called, or the model only reasons), and the further keys in their
        order, without those that have no value.

    Raises:
        RecordProblem: If the role is unknown, or a field is missing or wrong.

    >>> read_message({"from": "gpt", "value": "4", "thinking": "2 + 2", "tool_calls": None}, 1, DEFAULT_ROLES)
    {'role': 'assistant', 'content': '4', 'thinking': '2 + 2', 'reasoning_content': '2 + 2', 'reasoning': '2 + 2'}
    """
    usual = read_usual(turn, roles)
    if usual is not None:
        return usual
    given = split_message(turn, number)
    name = given["role"]
    message = {key: value for key, value in given.items() if key not in WEIGHT_KEYS}
    message["role"] = map_role(name, roles, number)
    if "tool_calls" in message:
        message["tool_calls"] = read_objects(message["tool_calls"], f"message {number}: `tool_calls`")
    if name == "function_call" and (calls := _parse_calls(message.get("content"))):
        del message["content"]
        message["tool_calls"] = calls
    if "content" not in message and "tool_calls" not in message and "function_call" in message:
        message["tool_calls"] = [_read_former_call(message["function_call"], number)]
    _check_reasoning(message, number)
    reasoning = next((message[key] for key in REASONING_KEYS if key in message), None)
    if reasoning is not None:
        message["reasoning_content"] = reasoning
        for key in REASONING_KEYS:
            message.setdefault(key, reasoning)
    return message


def split_message(turn: object, number: int) -> Message:
    """Return a turn with the keys `role` and `content`, its role unmapped, without keys that have no value.

    Raises:
        RecordProblem: If it is no object, or its role or content is missing or wrong.
    """
    if not isinstance(turn, dict):
        raise RecordProblem("bad-field", f"message {number}: expected an object, got {type_name(turn)}")
    role, content = message_role(turn, number), _content_of(turn, number)
    message: Message = {}
    for key, value in turn.items():
        if key in ROLE_KEYS:
            message["role"] = role
        elif key in TEXT_KEYS:
            if content is not None:
                message["content"] = content
        elif value is not None:
            message[key] = value
    return message


def is_learnable(turn: Mapping[str, Any], number: int) -> bool:
    """Return False if the `number`-th message (from 1) says `weight: 0` or `train: false`.

    Raises:
        RecordProblem: If `weight` is neither 0 nor 1, or `train` neither true nor false.
    """
    if "weight" not in turn and "train" not in turn:
        return True
    weight, train = (turn.get(key) for key in WEIGHT_KEYS)
    if weight is not None and (isinstance(weight, (str, list, dict)) or weight not in (0, 1)):
        shown = repr(weight) if isinstance(weight, (int, float)) else type_name(weight)
        raise RecordProblem(
            "bad-field",
            f"message {number}: expected `weight` to be 0 or 1, got {shown}",
        )
    if train is not None and not isinstance(train, bool):
        raise RecordProblem(
            "bad-field", f"message {number}: expected `train` to be true or false, got {type_name(train)}"
        )
    return weight != 0 and train is not False


def message_role(message: Mapping[str, Any], number: int) -> str:
    """Return the value of `role` or `from` of the `number`-th message (from 1), unmapped.

    Raises:
        RecordProblem: If it has neither, or it is not a text.
    """
    key, value = _first_of(message, ROLE_KEYS, number)
    if not isinstance(value, str):
        raise RecordProblem("bad-field", f"message {number}: expected `{key}` to be a text, got {type_name(value)}")
    return value


def message_text(message: Mapping[str, Any], number: int) -> str:
    """Return the text of `content` or `value` of the `number`-th message (from 1), its parts joined.

    Raises:
        RecordProblem: If it has neither, or it is neither a text nor a list of parts of type `text`.
    """
    key, value = _first_of(message, TEXT_KEYS, number)
    content = _check_content(key, value, number)
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def map_role(role: str, roles: Mapping[str, str], number: int) -> str:
    """Map the role of the `number`-th message (from 1).

    Raises:
        RecordProblem: If the role is not one of `roles`.
    """
    try:
        return roles[role]
    except KeyError:
        known = ", ".join(sorted(roles))
        raise RecordProblem(
            "unknown-role", f"message {number}: expected a role among {known}, got {role!r}; add it to `role_mapping`"
        ) from None


def read_objects(value: object, name: str) -> list[dict[str, Any]]:
    """Return a list of objects, which may be given as JSON in a text, as datasets in Arrow's format need it.

    Raises:
        RecordProblem: If it is anything else.

    >>> read_objects('[{"name": "f"}]', "`tools`")
    [{'name': 'f'}]
    """
    decoded = value
    if isinstance(value, str):
        try:
            decoded = json.loads(value) if value.strip() else []
        except ValueError as error:
            raise RecordProblem(
                "bad-field", f"{name}: expected a list of objects, got a text that is not JSON: {error}"
            ) from None
    if not isinstance(decoded, list):
        found = f"{type_name(decoded)}{' in a text' if decoded is not value else ''}"
        raise RecordProblem("bad-field", f"{name}: expected a list of objects, got {found}")
    for number, item in enumerate(decoded, 1):
        if not isinstance(item, dict):
            raise RecordProblem("bad-field", f"{name}: expected item {number} to be an object, got {type_name(item)}")
    return decoded


def read_usual(turn: object, roles: Mapping[str, str]) -> Message | None:
    """Return a message of a role and a text alone, fast; None for all others."""
    if not isinstance(turn, dict) or len(turn) != 2:
        return None
    (first, one), (second, other) = turn.items()
    if not isinstance(one, str) or not isinstance(other, str):
        return None
    if first in ROLE_KEYS and second in TEXT_KEYS and one != "function_call" and one in roles:
        return {"role": roles[one], "content": other}
    if first in TEXT_KEYS and second in ROLE_KEYS and other != "function_call" and other in roles:
        return {"content": one, "role": roles[other]}
    return None


def _content_of(turn: Mapping[str, Any], number: int) -> str | list[dict[str, str]] | None:
    if all(turn.get(key) is None for key in TEXT_KEYS) and any(turn.get(key) for key in _INSTEAD_OF_CONTENT):
        return None
    return _check_content(*_first_of(turn, TEXT_KEYS, number), number)


def _first_of(message: Mapping[str, Any], keys: tuple[str, str], number: int) -> tuple[str, object]:
    """Return the first key with a value, and the value."""
    for key in keys:
        if message.get(key) is not None:
            return key, message[key]
    for key in keys:
        if key in message:
            hint = "; only a message with `tool_calls` or reasoning may lack it" if keys == TEXT_KEYS else ""
            raise RecordProblem("bad-field", f"message {number}: expected `{key}` to be a text, got null{hint}")
    raise RecordProblem("missing-field", f"message {number}: expected a key `{keys[0]}` or `{keys[1]}`, got neither")


def _check_content(key: str, value: object, number: int) -> str | list[dict[str, str]]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise RecordProblem(
            "bad-field",
            f"message {number}: expected `{key}` to be a text or a list of parts of type 'text', got "
            f"{type_name(value)}",
        )
    return [_read_part(part, f"message {number}, part {place}") for place, part in enumerate(value, 1)]


def _read_part(part: object, name: str) -> dict[str, str]:
    if not isinstance(part, dict):
        raise RecordProblem("bad-field", f"{name}: expected an object with `type` and `text`, got {type_name(part)}")
    kind, text = part.get("type"), part.get("text")
    if kind != "text":
        shown = repr(kind) if isinstance(kind, str) else type_name(kind) if "type" in part else "no type"
        raise RecordProblem("bad-field", f"{name}: expected a part of type 'text', got {shown}; only text is encoded")
    if not isinstance(text, str):
        raise RecordProblem("bad-field", f"{name}: expected `text` to be a text, got {type_name(text)}")
    # Without other keys, which a template may take for an image.
    return {"type": "text", "text": text}


def _check_reasoning(message: Message, number: int) -> None:
    for key in REASONING_KEYS:
        if key in message and not isinstance(message[key], str):
            found = type_name(message[key])
            raise RecordProblem("bad-field", f"message {number}: expected `{key}` to be a text, got {found}")


def _parse_calls(content: object) -> list[dict[str, Any]] | None:
    """Return the tool calls that a ShareGPT turn of the role `function_call` has as JSON; None if it has other text."""
    if not isinstance(content, str):
        return None
    try:
        calls = json.loads(content)
    except (ValueError, RecursionError):
        return None
    calls = calls if isinstance(calls, list) else [calls]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) and "arguments" in call for call in calls):
        return None
    return [{"type": "function", "function": call} for call in calls]


def _read_former_call(call: object, number: int) -> dict[str, Any]:
    """Return OpenAI's former `function_call` as a tool call; most templates read nothing else."""
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        found = "none" if isinstance(call, dict) else type_name(call)
        raise RecordProblem(
            "bad-field", f"message {number}: expected `function_call` to be an object with a `name`, got {found}"
        )
    return {"type": "function", "function": call}
