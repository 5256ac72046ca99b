"""Read conversations from records of several formats.

The result is a list of messages, each a dict with `role` and `content`. The formats are ShareGPT (`conversations` with
`from` and `value`), `messages` (with `role` and `content`) and Alpaca (`instruction`, `input`, `output`).
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dsindex.errors import RecordProblem
from dsindex.text.fields import MAX_NESTING, is_too_deep, type_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Message = dict[str, Any]

DEFAULT_ROLES: Mapping[str, str] = MappingProxyType(
    {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system", "tool": "tool"}
)
"""A record's role name -> the role name of chat templates."""

ROLE_KEYS = ("role", "from")
TEXT_KEYS = ("content", "value")


def parse_record(line: bytes) -> dict[str, Any]:
    """Parse one line of JSONL as strictly as `dsindex.text`, but keep integers, which templates may write.

    Raises:
        RecordProblem: If it is not UTF-8, not JSON, not an object, or nested too deeply.

    >>> parse_record(b'{"id": 1}')
    {'id': 1}
    """
    if is_too_deep(line):
        raise RecordProblem("bad-json", f"expected at most {MAX_NESTING} objects and lists inside each other, got more")
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError) as error:  # includes invalid UTF-8 and integers of more than 4,300 digits
        raise RecordProblem("bad-json", f"expected JSON in UTF-8, got an error: {error}") from error
    if not isinstance(record, dict):
        raise RecordProblem("bad-json", f"expected a JSON object, got {type_name(record)}")
    return record


def read_messages(
    record: Mapping[str, Any],
    *,
    record_format: str = "auto",
    roles: Mapping[str, str] = DEFAULT_ROLES,
) -> list[Message]:
    """Return a record's conversation as messages with `role` and `content`, in the record's order.

    Args:
        record: One JSON object.
        record_format: `messages`, `sharegpt`, `alpaca`, or `auto`: the first of `messages`, `conversations`,
            `instruction` that the record has.
        roles: The record's role name -> the message's role.

    Returns:
        At least one message; further keys of a message (`name`, `tool_calls`, ...) are kept.

    Raises:
        RecordProblem: If there is no conversation, it has no turns, a role is unknown, or a field is missing or wrong.

    >>> read_messages({"conversations": [{"from": "human", "value": "Hi"}]})
    [{'role': 'user', 'content': 'Hi'}]
    """
    if record_format == "auto":
        record_format = _recognise(record)
    if record_format == "alpaca":
        turns: Any = alpaca_to_messages(record)
    elif record_format == "sharegpt":
        turns = sharegpt_to_messages(record)
    else:
        turns = _field(record, "messages")
    if not isinstance(turns, list):
        raise RecordProblem("bad-field", f"expected the conversation to be a list of messages, got {type_name(turns)}")
    if not turns:
        raise RecordProblem("no-turns", "expected a conversation with at least one message, got an empty list")
    return [_map_message(turn, number, roles) for number, turn in enumerate(turns, 1)]


def sharegpt_to_messages(record: Mapping[str, Any]) -> list[Message]:
    """Convert a ShareGPT record: `conversations` of `from` and `value`, with an optional `system` text.

    Role names are kept; `read_messages` maps them.

    Raises:
        RecordProblem: If `conversations` is missing or not a list of objects with `from` and `value`.

    >>> sharegpt_to_messages({"system": "Be brief.", "conversations": [{"from": "human", "value": "Hi"}]})
    [{'role': 'system', 'content': 'Be brief.'}, {'role': 'human', 'content': 'Hi'}]
    """
    turns = _field(record, "conversations")
    if not isinstance(turns, list):
        raise RecordProblem("bad-field", f"expected `conversations` to be a list, got {type_name(turns)}")
    messages = [_split_message(turn, number) for number, turn in enumerate(turns, 1)]
    system = record.get("system")
    if isinstance(system, str) and system:
        messages.insert(0, {"role": "system", "content": system})
    return messages


def alpaca_to_messages(record: Mapping[str, Any]) -> list[Message]:
    r"""Convert an Alpaca record: the user turn is the instruction, a blank line and the input, the reply the output.

    Raises:
        RecordProblem: If `instruction` or `output` is missing, or one of the fields is not a text.

    >>> alpaca_to_messages({"instruction": "Add.", "input": "1 + 1", "output": "2"})
    [{'role': 'user', 'content': 'Add.\n\n1 + 1'}, {'role': 'assistant', 'content': '2'}]
    """
    system, context = record.get("system"), record.get("input")
    texts = {"instruction": _field(record, "instruction"), "output": _field(record, "output")}
    for name, value in {**texts, "input": context or "", "system": system or ""}.items():
        if not isinstance(value, str):
            raise RecordProblem("bad-field", f"expected `{name}` to be a text, got {type_name(value)}")
    question = f"{texts['instruction']}\n\n{context}" if context else texts["instruction"]
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": texts["output"]}]
    return [{"role": "system", "content": system}, *messages] if system else messages


def message_role(message: Mapping[str, Any], number: int) -> str:
    """Return the value of `role` or `from` of the `number`-th message (from 1), unmapped.

    Raises:
        RecordProblem: If it has neither, or it is not a text.
    """
    return _text_of(message, ROLE_KEYS, number)


def message_text(message: Mapping[str, Any], number: int) -> str:
    """Return the value of `content` or `value` of the `number`-th message (from 1).

    Raises:
        RecordProblem: If it has neither, or it is not a text.
    """
    return _text_of(message, TEXT_KEYS, number)


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


def strings_in(value: object) -> Iterator[str]:
    """Yield every string in JSON data of any depth, including keys, in unspecified order."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def check_text(text: str) -> None:
    """Refuse a text that cannot be encoded as UTF-8.

    Raises:
        RecordProblem: If it contains a lone surrogate, which `json.loads` makes of an unpaired escape.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"U+{ord(text[error.start]):04X} at character {error.start}"
        raise RecordProblem("bad-text", f"expected Unicode text, got a lone surrogate ({found})") from None


def _recognise(record: Mapping[str, Any]) -> str:
    for key, name in (("messages", "messages"), ("conversations", "sharegpt"), ("instruction", "alpaca")):
        if key in record:
            return name
    keys = ", ".join(list(record)[:8]) or "none"
    raise RecordProblem(
        "missing-field", f"expected one of the keys messages, conversations, instruction; the record has: {keys}"
    )


def _map_message(turn: object, number: int, roles: Mapping[str, str]) -> Message:
    message = _split_message(turn, number)
    message["role"] = map_role(message["role"], roles, number)
    return message


def _split_message(turn: object, number: int) -> Message:
    if not isinstance(turn, dict):
        raise RecordProblem("bad-field", f"message {number}: expected an object, got {type_name(turn)}")
    rest = {key: value for key, value in turn.items() if key not in {*ROLE_KEYS, *TEXT_KEYS}}
    role = message_role(turn, number)
    # A turn that only calls tools has no text.
    calls_only = turn.get("tool_calls") and turn.get("content") is None and "value" not in turn
    return {"role": role, "content": None if calls_only else message_text(turn, number), **rest}


def _text_of(message: Mapping[str, Any], keys: tuple[str, ...], number: int) -> str:
    for key in keys:
        if key in message:
            value = message[key]
            if isinstance(value, str):
                return value
            raise RecordProblem("bad-field", f"message {number}: expected `{key}` to be a text, got {type_name(value)}")
    raise RecordProblem("missing-field", f"message {number}: expected a key `{keys[0]}` or `{keys[1]}`, got neither")


def _field(record: Mapping[str, Any], key: str) -> object:
    if key not in record:
        raise RecordProblem("missing-field", f"expected the key `{key}`, and the record does not have it")
    return record[key]
