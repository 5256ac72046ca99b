"""Read conversations from records of several formats.

The result is a list of messages, each a dict with `role` and `content` (`messages.py`). The formats are ShareGPT
(`conversations` with `from` and `value`), `messages` (with `role` and `content`) and Alpaca (`instruction`, `input`,
`output`). Beside its messages, a record may have `tools`, `documents` and `chat_template_kwargs`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import orjson

from dsindex.errors import RecordProblem
from dsindex.instruction.messages import (
    DEFAULT_ROLES,
    ROLE_KEYS,
    TOOL_ROLES,
    Message,
    is_learnable,
    read_message,
    read_objects,
    split_message,
)
from dsindex.text.fields import MAX_NESTING, is_too_deep, type_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

RESERVED_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")
"""Variables of templates that neither a configuration nor `chat_template_kwargs` may set."""
_NEVER_LEARNT = frozenset({"user", "system", "developer", *TOOL_ROLES})

Learn = Literal["all", "last_turn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A record as a chat template gets it."""

    messages: list[Message]
    """At least one."""
    variables: dict[str, Any]
    """The record's own variables: `tools`, `documents`, `chat_template_kwargs`."""
    learnt: tuple[int, ...] | None
    """Positions of the replies that are learnt; None for all."""


def parse_record(line: bytes) -> dict[str, Any]:
    """Parse one line of JSONL as strictly as `dsindex.text`, but keep integers, which templates may write.

    Raises:
        RecordProblem: If it is not UTF-8, not JSON, not an object, or nested too deeply.

    >>> parse_record(b'{"id": 1}')
    {'id': 1}
    """
    if is_too_deep(line):
        raise RecordProblem("bad-json", f"expected at most {MAX_NESTING} objects and lists inside each other, got more")
    usual = _parse_usual(line)
    if usual is not None:
        return usual
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError) as error:  # includes invalid UTF-8 and integers of more than 4,300 digits
        raise RecordProblem("bad-json", _describe_bad_json(line, error)) from error
    if not isinstance(record, dict):
        hint = "; write each record on a line of its own (`jq -c '.[]'` does)" if isinstance(record, list) else ""
        raise RecordProblem("bad-json", f"expected a JSON object, got {type_name(record)}{hint}")
    return record


def read_conversation(
    record: Mapping[str, Any],
    *,
    record_format: str = "auto",
    roles: Mapping[str, str] = DEFAULT_ROLES,
    learn: Learn = "all",
    assistant_role: str = "assistant",
) -> Conversation:
    """Return a record's conversation with the variables for its template and the replies that are learnt.

    Args:
        record: One JSON object.
        record_format: As for `read_messages`.
        roles: As for `read_messages`.
        learn: `last_turn` for only the replies after the last message that is neither a reply nor a tool's answer.
        assistant_role: Role of replies, after mapping.

    Raises:
        RecordProblem: As `read_messages`; also if `tools`, `documents`, `chat_template_kwargs` or a message's `weight`
            or `train` is of a wrong shape.
    """
    turns = _read_turns(record, record_format)
    messages = [read_message(turn, number, roles) for number, turn in enumerate(turns, 1)]
    roles_given = [message["role"] for message in messages]
    replies = [number for number, role in enumerate(roles_given) if role == assistant_role]
    learnable = [is_learnable(turn, number) for number, turn in enumerate(turns, 1)]
    for number, (role, is_learnt) in enumerate(zip(roles_given, learnable, strict=True), 1):
        if not is_learnt and role not in {assistant_role, *_NEVER_LEARNT}:
            raise RecordProblem(
                "bad-field",
                f"message {number}: expected a reply where `weight` or `train` says that it is not learnt, got the "
                f"role {role!r}; name the role of replies with `assistant_role`",
            )
    first = last_turn(roles_given, assistant_role) if learn == "last_turn" else 0
    learnt = tuple(number for number in replies if learnable[number] and number >= first)
    if learn == "last_turn" and not learnt:
        raise RecordProblem(
            "nothing-learnt",
            f"expected a reply to learn in the last turn, and none of its messages has the role {assistant_role!r}; "
            "`assistant_role` names the role of replies",
        )
    return Conversation(
        messages=messages, variables=_read_variables(record), learnt=None if len(learnt) == len(replies) else learnt
    )


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
    return [read_message(turn, number, roles) for number, turn in enumerate(_read_turns(record, record_format), 1)]


def last_turn(roles: Sequence[str | None], assistant_role: str) -> int:
    """Return the position at which the last turn's replies begin: after the last message to the model.

    >>> last_turn(["system", "user", "assistant", "user", "assistant", "tool", "assistant"], "assistant")
    4
    """
    own = {assistant_role, *TOOL_ROLES}
    return max((number + 1 for number, role in enumerate(roles) if role not in own), default=0)


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
    messages = [split_message(turn, number) for number, turn in enumerate(turns, 1)]
    return [*_system_message(record), *messages]


def alpaca_to_messages(record: Mapping[str, Any]) -> list[Message]:
    r"""Convert an Alpaca record: the user turn is the instruction, a blank line and the input, the reply the output.

    Raises:
        RecordProblem: If `instruction` or `output` is missing, or one of the fields is not a text.

    >>> alpaca_to_messages({"instruction": "Add.", "input": "1 + 1", "output": "2"})
    [{'role': 'user', 'content': 'Add.\n\n1 + 1'}, {'role': 'assistant', 'content': '2'}]
    """
    system, context = _system_message(record), record.get("input")
    if isinstance(record.get("history"), list) and record["history"]:
        raise RecordProblem(
            "bad-field",
            "expected an Alpaca record of one round, got earlier rounds in `history`; write the record as `messages`",
        )
    texts = {"instruction": _field(record, "instruction"), "output": _field(record, "output")}
    for name, value in {**texts, "input": context or ""}.items():
        if not isinstance(value, str):
            raise RecordProblem("bad-field", f"expected `{name}` to be a text, got {type_name(value)}")
    question = f"{texts['instruction']}\n\n{context}" if context else texts["instruction"]
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": texts["output"]}]
    return [*system, *messages]


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


def too_deep() -> RecordProblem:
    """Return the problem of a record that nests too deeply for Python."""
    return RecordProblem("bad-field", "expected a record of usual depth, got one nested too deep")


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


def _read_turns(record: Mapping[str, Any], record_format: str) -> Sequence[Any]:
    """Return at least one turn, as a record of its format has it."""
    if record_format == "auto":
        record_format = _recognise(record)
    if record_format == "alpaca":
        turns: Any = alpaca_to_messages(record)
    elif record_format == "sharegpt":
        turns = sharegpt_to_messages(record)
    else:
        turns = _field(record, "messages")
        if isinstance(turns, list) and turns and not _begins_with_system(turns):
            turns = [*_system_message(record), *turns]
    if not isinstance(turns, list):
        raise RecordProblem("bad-field", f"expected the conversation to be a list of messages, got {type_name(turns)}")
    if not turns:
        raise RecordProblem("no-turns", "expected a conversation with at least one message, got an empty list")
    return turns


def _system_message(record: Mapping[str, Any]) -> list[Message]:
    """Return the message that a record's own `system` is; none if it has no text there."""
    system = record.get("system")
    if system is not None and not isinstance(system, str):
        raise RecordProblem("bad-field", f"expected `system` to be a text, got {type_name(system)}")
    return [{"role": "system", "content": system}] if system else []


def _begins_with_system(turns: Sequence[Any]) -> bool:
    first = turns[0]
    return isinstance(first, dict) and any(first.get(key) == "system" for key in ROLE_KEYS)


def _read_variables(record: Mapping[str, Any]) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    for key in ("tools", "documents"):
        value = record.get(key)
        # Arrow's tables cannot hold differing objects, so many datasets have tools as JSON, and "" for none.
        if value is not None and not (isinstance(value, str) and not value.strip()):
            variables[key] = read_objects(value, f"`{key}`")
    given = record.get("chat_template_kwargs")
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else None
        except ValueError as error:
            reason = f"`chat_template_kwargs`: expected an object, got a text that is not JSON: {error}"
            raise RecordProblem("bad-field", reason) from None
    if given is None:
        return variables
    if not isinstance(given, dict):
        raise RecordProblem("bad-field", f"expected `chat_template_kwargs` to be an object, got {type_name(given)}")
    for name in RESERVED_VARIABLES:
        if given.get(name) is not None:
            raise RecordProblem("bad-field", f"`chat_template_kwargs` cannot set {name!r}; make it a key of the record")
    return {**{name: value for name, value in given.items() if value is not None}, **variables}


def _parse_usual(line: bytes) -> dict[str, Any] | None:
    """Return an object that orjson reads as Python's parser does; None for all else.

    Whatever orjson accepts, Python's parser accepts as well. They differ only in integers beyond 64 bits, which orjson
    reads as floats.
    """
    try:
        record = orjson.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and not _has_float(record) else None


def _has_float(value: object) -> bool:
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is dict:
            stack += item.values()
        elif kind is list:
            stack += item
        elif kind is float:
            return True
    return False


def _describe_bad_json(line: bytes, error: Exception) -> str:
    reason = f"expected JSON in UTF-8, got an error: {error}"
    begins = line.strip()[:1] in (b"{", b"[")
    if isinstance(error, json.JSONDecodeError) and begins and error.pos >= len(error.doc.rstrip()):
        return (
            f"expected a JSON object on one line, and it does not end on this line ({error.msg}); in JSON Lines, each "
            "record stands on a line of its own, and `jq -c . FILE` (or `jq -c '.[]' FILE` for a list) writes a "
            "pretty-printed file so"
        )
    return reason


def _recognise(record: Mapping[str, Any]) -> str:
    for key, name in (("messages", "messages"), ("conversations", "sharegpt"), ("instruction", "alpaca")):
        if record.get(key) is not None:
            return name
    keys = ", ".join(list(record)[:8]) or "none"
    raise RecordProblem(
        "missing-field", f"expected one of the keys messages, conversations, instruction; the record has: {keys}"
    )


def _field(record: Mapping[str, Any], key: str) -> object:
    if key not in record:
        raise RecordProblem("missing-field", f"expected the key `{key}`, and the record does not have it")
    return record[key]
