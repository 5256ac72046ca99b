"""Read conversations from records of several formats.

The result is a list of messages, each a dict with `role` and `content` (`messages.py`). The formats are ShareGPT
(`conversations` with `from` and `value`), `messages` (with `role` and `content`) and Alpaca (`instruction`, `input`,
`output`). Beside its messages, a record may have `tools`, `documents` and `chat_template_kwargs`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import orjson

from dsindex.errors import RecordProblem
from dsindex.text.fields import MAX_NESTING, is_too_deep, type_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


# One message of a conversation, brought into the form in which transformers passes it to a chat template.
#
# Keys without a value are dropped, as `apply_chat_template` does: many templates would write `None`. Reasoning has
# three names among templates (`reasoning_content`, `reasoning`, `thinking`), and is passed under all of them. A content
# is a text or a list of parts of type `text`; which of the two a template reads is found in `rendering.py`.

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


def last_turn(roles: Sequence[str | None], assistant_role: str) -> int:
    """Return the position at which the last turn's replies begin: after the last message to the model.

    >>> last_turn(["system", "user", "assistant", "user", "assistant", "tool", "assistant"], "assistant")
    4
    """
    own = {assistant_role, *TOOL_ROLES}
    return max((number + 1 for number, role in enumerate(roles) if role not in own), default=0)


def sharegpt_to_messages(record: Mapping[str, Any]) -> list[Message]:
    """Convert a ShareGPT record: `conversations` of `from` and `value`, with an optional `system` text.

    Role names are kept.

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


# Read conversations from lines of JSON: records of usual messages at once, all others by `records.py`.

_VARIABLES = ("tools", "documents", "chat_template_kwargs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationReader:
    """Reads conversations as one configuration says."""

    record_format: str = "auto"
    """`messages`, `sharegpt`, `alpaca`, or `auto`: by the first of `messages`, `conversations` and `instruction` that
    the record has."""
    roles: Mapping[str, str] = field(default_factory=lambda: DEFAULT_ROLES)
    """The record's role name -> the message's role."""
    learn: Learn = "all"
    """`last_turn` for only the replies after the last message that is neither a reply nor a tool's answer."""
    assistant_role: str = "assistant"
    """Role of replies, after mapping."""

    def read(self, record: Mapping[str, Any]) -> Conversation:
        """Return a record's conversation with the variables for its template and the replies that are learnt.

        Further keys of a message (`name`, `tool_calls`, ...) are kept.

        Raises:
            RecordProblem: If there is no conversation, it has no turns, a role is unknown, or a field is missing or of
                a wrong shape.

        >>> ConversationReader().read({"conversations": [{"from": "human", "value": "Hi"}]}).messages
        [{'role': 'user', 'content': 'Hi'}]
        """
        turns = _read_turns(record, self.record_format)
        messages = [read_message(turn, number, self.roles) for number, turn in enumerate(turns, 1)]
        roles_given = [message["role"] for message in messages]
        replies = [number for number, role in enumerate(roles_given) if role == self.assistant_role]
        learnable = [is_learnable(turn, number) for number, turn in enumerate(turns, 1)]
        for number, (role, is_learnt) in enumerate(zip(roles_given, learnable, strict=True), 1):
            if not is_learnt and role not in {self.assistant_role, *_NEVER_LEARNT}:
                raise RecordProblem(
                    "bad-field",
                    f"message {number}: expected a reply where `weight` or `train` says that it is not learnt, got the "
                    f"role {role!r}; name the role of replies with `assistant_role`",
                )
        first = last_turn(roles_given, self.assistant_role) if self.learn == "last_turn" else 0
        learnt = tuple(number for number in replies if learnable[number] and number >= first)
        if self.learn == "last_turn" and not learnt:
            raise RecordProblem(
                "nothing-learnt",
                "expected a reply to learn in the last turn, and none of its messages has the role "
                f"{self.assistant_role!r}; `assistant_role` names the role of replies",
            )
        return Conversation(
            messages=messages, variables=_read_variables(record), learnt=None if len(learnt) == len(replies) else learnt
        )

    def read_line(self, line: bytes) -> Conversation:
        """Return the conversation of a record as stored in a file.

        Raises:
            RecordProblem: As `parse_record` and `read`.
        """
        messages = self._read_usual(line)
        if messages is not None:
            return Conversation(messages=messages, variables={}, learnt=None)
        conversation = self.read(parse_record(line))
        for text in strings_in([conversation.variables, conversation.messages]):
            check_text(text)
        return conversation

    def _read_usual(self, line: bytes) -> list[Message] | None:
        """Return the messages of a record if they have a role and a text alone, and all of its replies are learnt."""
        if self.learn != "all":
            return None
        try:
            record = orjson.loads(line)
        except ValueError:
            return None
        if type(record) is not dict:
            return None
        key = self._usual_key(record)
        turns = record.pop(key, None)
        if type(turns) is not list or not turns or any(record.get(name) is not None for name in _VARIABLES):
            return None
        if record and is_too_deep(line):
            return None
        messages = []
        for turn in turns:
            message = read_usual(turn, self.roles)
            if message is None:
                return None
            messages.append(message)
        return messages

    def _usual_key(self, record: Mapping[str, Any]) -> str:
        if record.get("system") is not None:
            return ""
        if self.record_format in ("messages", "auto") and record.get("messages") is not None:
            return "messages"
        return "conversations" if self.record_format in ("sharegpt", "auto") else ""


ANY_CONVERSATION = ConversationReader()
"""Reads all formats with the usual roles."""
