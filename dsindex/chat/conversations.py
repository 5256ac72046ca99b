"""Read conversations: a table of the shapes in which records come, and a table of the keys that say what is learnt.

The result is what transformers would pass to a chat template: messages of `role` and `content`, without keys that have
no value. In a role or a key that steers what is learnt, what cannot be read is a bad record.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from dsindex.errors import RecordProblem
from dsindex.text.fields import MAX_NESTING, is_too_deep, type_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Message = dict[str, Any]
Learn = Literal["all", "last_turn"]
Reasoning = Literal["learn", "mask", "drop"]
CharacterSpan = tuple[int, int]
"""First character, and one past the last."""

TURN_KEYS = ("messages", "conversations", "conversation")
"""Keys of a record for a list of turns."""
PAIR_KEYS = (
    ("prompt", "completion", ""),
    ("prompt", "response", ""),
    ("query", "response", ""),
    ("question", "answer", ""),
    ("instruction", "output", "input"),
    ("instruction", "response", "context"),
    ("input", "output", ""),
    ("human", "assistant", ""),
)
"""Keys for a question, its answer, and what is added to the question; of a record or of a turn."""
ROLE_KEYS = ("role", "from")
TEXT_KEYS = ("content", "value")
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""In transformers' order of precedence; passed under all three names, as templates read any."""
CALL_ROLES = frozenset({"function_call", "tool_call"})
"""Roles of turns whose text is one or more calls of tools."""
DEFAULT_ROLES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("user", "human"), "user"),
        **dict.fromkeys(("assistant", "gpt", "model", *CALL_ROLES), "assistant"),
        **dict.fromkeys(("tool", "observation", "tool_response"), "tool"),
        **{role: role for role in ("system", "developer", "function", "ipython")},
    }
)
"""A record's role -> the role of chat templates. Capitals do not matter."""
TOOL_ROLES = frozenset({"tool", "function", "ipython"})
"""Roles of messages that do not end a turn: the model goes on after them."""

LEARN_KEYS: Mapping[str, bool] = MappingProxyType(
    {
        **dict.fromkeys(("weight", "train", "training", "trainable", "loss", "loss_weight", "loss_scale"), True),
        **dict.fromkeys(("loss_mask", "train_on_turn", "learn"), True),
        **dict.fromkeys(("masked", "skip_loss", "ignore_loss", "no_loss"), False),
    }
)
"""Keys of a turn or a record with true, false, 1 or 0 -> the value with which it is learnt; never passed to templates.
If several are given, all must agree that it is learnt."""
SPAN_KEYS = ("train_detail", "training_detail", "loss_masking_spans")
"""Keys of a turn with spans of its text: axolotl's objects of `begin_offset`, `end_offset` (the last character) and
`train`; or Fast-LLM's pairs of first and last character, which are not learnt."""
MASKED_ROLE_KEY = "mask"
"""Key of a record that names a role whose turns are not learnt, as in NeMo's chat data."""
MEDIA_KEYS = ("images", "image", "videos", "video", "audios", "audio")
RESERVED_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")
"""Variables of templates that neither a configuration nor `chat_template_kwargs` may set."""

_NEVER_LEARNT = frozenset({"user", "system", "developer", *TOOL_ROLES})
_SURROGATE = re.compile(rb"\\u[dD]")
"""The escapes that may spell a lone surrogate."""
_THOUGHT = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)
_TAGGED_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_QUOTED_ARGUMENTS = re.compile(r"""("(?:arguments|parameters)"\s*:\s*)'(\{.*?\})'(?=\s*\})""", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A record as a chat template gets it."""

    messages: list[Message]
    """At least one."""
    variables: dict[str, Any]
    """The record's own variables: `tools`, `documents`, `chat_template_kwargs`."""
    learnt: frozenset[int] | None = None
    """Positions of the replies that are learnt; None for all."""
    hidden: Mapping[int, Sequence[CharacterSpan]] = field(default_factory=dict)
    """Position of a message -> spans of its content that are not learnt."""
    notes: tuple[str, ...] = ()
    """What was left out of it, for the counts at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationReader:
    """Reads conversations as one configuration says."""

    roles: Mapping[str, str] = field(default_factory=lambda: DEFAULT_ROLES)
    """The record's role -> the message's role."""
    assistant_role: str = "assistant"
    """Role of replies, after mapping."""
    learn: Learn = "all"
    """`last_turn` for only the replies after the last message that is neither a reply nor a tool's answer."""
    reasoning: Reasoning = "learn"
    """`drop` leaves reasoning out of the messages."""
    turns_key: str | None = None
    """Key of a record for its list of turns; None for the table of shapes."""

    def read_line(self, line: bytes) -> Conversation:
        """Return the conversation of a record as stored in a file.

        Raises:
            RecordProblem: As `parse_record` and `read`; or if a text has a lone surrogate.
        """
        conversation = self.read(parse_record(line))
        if _SURROGATE.search(line):
            for text in strings_in([conversation.variables, conversation.messages]):
                check_text(text)
        return conversation

    def read(self, record: Mapping[str, Any]) -> Conversation:
        """Return a record's conversation with the variables for its template and the replies that are learnt.

        Further keys of a message (`name`, `tool_call_id`, ...) are kept.

        Raises:
            RecordProblem: If there is no conversation, a role is unknown, or a field is missing or of a wrong shape.

        >>> ConversationReader().read({"conversations": [{"from": "human", "value": "Hi"}]}).messages
        [{'role': 'user', 'content': 'Hi'}]
        """
        for key in MEDIA_KEYS:
            if record.get(key):
                raise RecordProblem("bad-field", f"expected a record of texts, got `{key}`; only text is encoded")
        turns = self._find_turns(record)
        messages: list[Message] = []
        flags: list[bool | None] = []
        hidden: dict[int, Sequence[CharacterSpan]] = {}
        for number, turn in enumerate(turns, 1):
            message, is_call = self._read_message(turn, number)
            flag = read_flag(turn, f"message {number}: ") if len(turn) > 2 else None
            if is_call and messages and messages[-1]["role"] == self.assistant_role:
                # One step of the model, which ends once; the first turn says whether it is learnt.
                messages[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
                continue
            if spans := message_spans(turn, _text_of(message), number):
                hidden[len(messages)] = spans
            messages.append(message)
            flags.append(flag)
        if (flag := read_flag(record, "")) is False:
            raise RecordProblem("nothing-learnt", "expected a record to learn, and a key of it says that it is not")
        learnt, notes = self._find_learnt(record, messages, flags)
        return Conversation(
            messages=messages, variables=_read_variables(record), learnt=learnt, hidden=hidden, notes=notes
        )

    def _find_turns(self, record: Mapping[str, Any]) -> list[Any]:
        """Return at least one turn, by the first shape of the table that the record has."""
        keys = TURN_KEYS if self.turns_key is None else (self.turns_key,)
        key = next((key for key in keys if record.get(key) is not None), None)
        pair = None if key is not None or self.turns_key is not None else find_pair(record)
        if key is not None:
            turns = _read_turns(record[key], key)
        elif pair is not None:
            turns = _read_pair(record, pair)
        else:
            shapes = [*keys, *(() if self.turns_key else (f"{asked} and {answer}" for asked, answer, _ in PAIR_KEYS))]
            found = ", ".join(list(record)[:8]) or "none"
            raise RecordProblem("missing-field", f"expected the keys {', '.join(shapes)}; the record has: {found}")
        if not turns:
            raise RecordProblem("no-turns", "expected a conversation with at least one message, got an empty list")
        system = record.get("system") if record.get("system") is not None else record.get("system_prompt")
        if system is not None and not isinstance(system, str):
            raise RecordProblem("bad-field", f"expected `system` to be a text, got {type_name(system)}")
        begins = isinstance(turns[0], dict) and any(turns[0].get(key) == "system" for key in ROLE_KEYS)
        return [{"role": "system", "content": system}, *turns] if system and not begins else turns

    def _read_message(self, turn: object, number: int) -> tuple[Message, bool]:
        """Return the `number`-th message (from 1) as templates expect it, and whether its role is that of a call."""
        if not isinstance(turn, dict):
            raise RecordProblem("bad-field", f"message {number}: expected an object, got {type_name(turn)}")
        name = message_role(turn, number)
        role = map_role(name, self.roles, number)
        is_call = name.lower() in CALL_ROLES
        message: Message = {"role": role}
        for key, value in turn.items():
            if key in TEXT_KEYS:
                if value is not None:
                    message["content"] = _read_content(key, value, number)
            elif value is not None and key not in ROLE_KEYS and key not in LEARN_KEYS and key not in SPAN_KEYS:
                message[key] = value
        if len(message) == 2 and not is_call and role != self.assistant_role and "content" in message:
            return message, False
        self._read_calls(message, number, is_call=is_call)
        self._read_reasoning(message, number)
        if "content" not in message and not any(message.get(key) for key in ("tool_calls", *REASONING_KEYS)):
            missing = "expected a text under `content` or `value`, got none"
            raise RecordProblem(
                "missing-field",
                f"message {number}: {missing}; only a message with `tool_calls` or reasoning may lack it",
            )
        return message, is_call

    def _read_calls(self, message: Message, number: int, *, is_call: bool) -> None:
        if is_call:
            text = message.pop("content", "")
            before, message["tool_calls"] = _parse_calls(text if isinstance(text, str) else _join(text), number)
            if before:
                message["content"] = before
        elif "tool_calls" in message:
            message["tool_calls"] = read_objects(message["tool_calls"], f"message {number}: `tool_calls`")
            if not message["tool_calls"]:
                del message["tool_calls"]
        if "function_call" in message and "tool_calls" not in message:  # OpenAI's former key
            call = parse_json(message.pop("function_call"))
            message["tool_calls"] = [_read_call(call, f"message {number}: `function_call`")]

    def _read_reasoning(self, message: Message, number: int) -> None:
        given = [key for key in REASONING_KEYS if key in message]
        for key in given:
            if not isinstance(message[key], str):
                found = type_name(message[key])
                raise RecordProblem("bad-field", f"message {number}: expected `{key}` to be a text, got {found}")
        if self.reasoning == "drop":
            for key in given:
                del message[key]
            if message["role"] == self.assistant_role and isinstance(message.get("content"), str):
                message["content"] = _THOUGHT.sub("", message["content"])
        elif given:
            for key in REASONING_KEYS:
                message.setdefault(key, message[given[0]])

    def _find_learnt(
        self, record: Mapping[str, Any], messages: Sequence[Message], flags: Sequence[bool | None]
    ) -> tuple[frozenset[int] | None, tuple[str, ...]]:
        """Return the positions of the replies that are learnt, None for all; and notes."""
        assistant = self.assistant_role
        roles = [message["role"] for message in messages]
        notes = []
        for number, (role, flag) in enumerate(zip(roles, flags, strict=True), 1):
            if flag is False and role != assistant and role not in _NEVER_LEARNT:
                raise RecordProblem(
                    "bad-field",
                    f"message {number}: expected a reply where a key says that it is not learnt, got the role "
                    f"{role!r}; name the role of replies with `assistant_role`",
                )
            if flag is True and role == "user":
                notes = [LEARNT_QUESTION]
        masked = self._masked_role(record)
        first = last_turn(roles, assistant) if self.learn == "last_turn" else 0
        if (completion := record.get("completion")) is not None and isinstance(parse_json(completion), list):
            first = max(first, len(messages) - len(parse_json(completion)))
        replies = [number for number, role in enumerate(roles) if role == assistant]
        learnt = [
            number for number in replies if flags[number] is not False and number >= first and roles[number] != masked
        ]
        if self.learn == "last_turn" and not learnt:
            raise RecordProblem(
                "nothing-learnt",
                "expected a reply to learn in the last turn, and none of its messages has the role "
                f"{assistant!r}; `assistant_role` names the role of replies",
            )
        return None if len(learnt) == len(replies) else frozenset(learnt), tuple(notes)

    def _masked_role(self, record: Mapping[str, Any]) -> str | None:
        masked = record.get(MASKED_ROLE_KEY)
        if masked is None:
            return None
        if not isinstance(masked, str):
            shown = f"expected `{MASKED_ROLE_KEY}` to be a role that is not learnt, got {type_name(masked)}"
            raise RecordProblem("bad-field", shown)
        return map_role(masked, self.roles, 0)


# Notes of a conversation.
LEARNT_QUESTION = "a user's turn that says it is learnt"
UNLEARNT_END = "an end of its last reply that is not learnt"
"""Its template leaves the token that ends a reply outside of `{% generation %}`."""


def last_turn(roles: Sequence[str | None], assistant_role: str) -> int:
    """Return the position at which the last turn's replies begin: after the last message to the model.

    >>> last_turn(["system", "user", "assistant", "user", "assistant", "tool", "assistant"], "assistant")
    4
    """
    own = {assistant_role, *TOOL_ROLES}
    return max((number + 1 for number, role in enumerate(roles) if role not in own), default=0)


def find_pair(record: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return the first pair of keys with values that a record or a turn has."""
    return next(
        (keys for keys in PAIR_KEYS if record.get(keys[0]) is not None and record.get(keys[1]) is not None), None
    )


def read_flag(turn: Mapping[str, Any], where: str) -> bool | None:
    """Return whether a turn or a record says that it is learnt; None if it says nothing.

    Raises:
        RecordProblem: If the value is not true, false, 1 or 0.

    >>> read_flag({"weight": 1, "masked": True}, ""), read_flag({"role": "user", "loss": None}, "")
    (False, None)
    """
    found: bool | None = None
    if where and MASKED_ROLE_KEY in turn:
        raise RecordProblem("bad-field", f"{where}expected `loss_mask` or `masked`, got `mask`, which may mean either")
    for key in turn.keys() & LEARN_KEYS.keys():
        value = turn[key]
        if value is None:
            continue
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):
            shown = repr(value) if isinstance(value, (int, float)) else type_name(value)
            raise RecordProblem("bad-field", f"{where}expected `{key}` to be true or false, 1 or 0, got {shown}")
        says = bool(value) is LEARN_KEYS[key]
        found = says if found is None else found and says
    return found


def message_role(message: Mapping[str, Any], number: int) -> str:
    """Return the value of `role` or `from` of the `number`-th message (from 1), unmapped.

    Raises:
        RecordProblem: If it has neither, or it is not a text.
    """
    for key in ROLE_KEYS:
        value = message.get(key)
        if isinstance(value, str):
            return value
        if value is not None:
            raise RecordProblem("bad-field", f"message {number}: expected `{key}` to be a text, got {type_name(value)}")
    raise RecordProblem("missing-field", f"message {number}: expected a key `role` or `from`, got neither")


def message_text(message: Mapping[str, Any], number: int) -> str:
    """Return the text of `content` or `value` of the `number`-th message (from 1), its parts joined.

    Raises:
        RecordProblem: If it has neither, or it is neither a text nor a list of parts of type `text`.
    """
    for key in TEXT_KEYS:
        if message.get(key) is not None:
            content = _read_content(key, message[key], number)
            return content if isinstance(content, str) else _join(content)
    raise RecordProblem("missing-field", f"message {number}: expected a text under `content` or `value`, got none")


def map_role(role: str, roles: Mapping[str, str], number: int) -> str:
    """Map the role of the `number`-th message (from 1).

    Raises:
        RecordProblem: If the role is not one of `roles`.
    """
    found = roles.get(role) or roles.get(role.lower())
    if found is None:
        known = ", ".join(sorted(roles))
        raise RecordProblem(
            "unknown-role", f"message {number}: expected a role among {known}, got {role!r}; add it to `role_mapping`"
        )
    return found


def parse_json(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a text that is JSON, as Arrow's tables need it; everything else, and other texts, unchanged.

    >>> parse_json('[{"name": "f"}]'), parse_json("f"), parse_json(3)
    ([{'name': 'f'}], 'f', 3)
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def read_objects(value: object, name: str) -> list[dict[str, Any]]:
    """Return a list of objects; it, and each of them, may be JSON in a text.

    Raises:
        RecordProblem: If it is anything else.

    >>> read_objects(['{"name": "f"}'], "`tools`")
    [{'name': 'f'}]
    """
    decoded = parse_json(value)
    if isinstance(decoded, str) and not decoded.strip():
        return []
    if not isinstance(decoded, list):
        raise RecordProblem("bad-field", f"{name}: expected a list of objects, got {type_name(decoded)}")
    items = [parse_json(item) for item in decoded]
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise RecordProblem("bad-field", f"{name}: expected item {number} to be an object, got {type_name(item)}")
    return items


def _read_turns(value: object, key: str) -> list[Any]:
    """Return turns from a list of them, or of pairs; an object of lists, as old tables have it; or JSON of them."""
    value = parse_json(value)
    if isinstance(value, dict) and value and all(isinstance(column, list) for column in value.values()):
        rows = zip(*value.values(), strict=len({len(column) for column in value.values()}) == 1)
        value = [dict(zip(value, row, strict=True)) for row in rows]
    if not isinstance(value, list):
        raise RecordProblem("bad-field", f"expected `{key}` to be a list of messages, got {type_name(value)}")
    turns: list[Any] = []
    for turn in map(parse_json, value):
        pair = find_pair(turn) if isinstance(turn, dict) and not any(role in turn for role in ROLE_KEYS) else None
        if pair is None:
            turns.append(turn)
        else:
            turns += [{"role": "system", "content": turn["system"]}] if turn.get("system") and not turns else []
            turns += _read_pair(turn, pair)
    return turns


def _read_pair(record: Mapping[str, Any], keys: tuple[str, str, str]) -> list[Any]:
    """Return the turns of a question and its answer, which may be lists of messages, after those of `history`."""
    asked, answered, added = keys
    turns: list[Any] = []
    for number, earlier in enumerate(parse_json(record.get("history")) or [], 1):
        if not isinstance(earlier, list) or len(earlier) != 2:
            raise RecordProblem("bad-field", f"`history`, round {number}: expected a question and an answer")
        turns += [{"role": "user", "content": earlier[0]}, {"role": "assistant", "content": earlier[1]}]
    for key, role in ((asked, "user"), (answered, "assistant")):
        value = parse_json(record[key]) if key in ("prompt", "completion") else record[key]
        if isinstance(value, list):
            turns += map(parse_json, value)
            continue
        if not isinstance(value, str):
            raise RecordProblem("bad-field", f"expected `{key}` to be a text, got {type_name(value)}")
        more = record.get(added) if added and role == "user" else None
        if more is not None and not isinstance(more, str):
            raise RecordProblem("bad-field", f"expected `{added}` to be a text, got {type_name(more)}")
        turns.append({"role": role, "content": f"{value}\n\n{more}" if more else value})
    flags = {key: record[key] for key in LEARN_KEYS if key in record}
    return [*turns[:-1], {**turns[-1], **flags}] if flags and isinstance(turns[-1], dict) else turns


def _read_content(key: str, value: object, number: int) -> str | list[dict[str, str]]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        expected = f"expected `{key}` to be a text or a list of parts of type 'text'"
        raise RecordProblem("bad-field", f"message {number}: {expected}, got {type_name(value)}")
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


def _text_of(message: Message) -> str:
    content = message.get("content", "")
    return content if isinstance(content, str) else _join(content)


def _join(parts: Sequence[Mapping[str, str]]) -> str:
    return "".join(part["text"] for part in parts)


def _parse_calls(text: str, number: int) -> tuple[str, list[dict[str, Any]]]:
    """Return the text before the calls that a turn is made of, such as a thought, and the calls.

    They are one or more objects, or a list of them, also in Hermes' `<tool_call>` tags; glaive's data quotes arguments
    with single quotes.
    """
    thought = _THOUGHT.match(text)
    before, rest = (text[: thought.end()].strip(), text[thought.end() :]) if thought else ("", text)
    if tagged := _TAGGED_CALL.findall(rest):
        before = "\n\n".join(filter(None, [before, rest[: rest.index("<tool_call>")].strip()]))
        rest = "\n".join(tagged)
    rest = _QUOTED_ARGUMENTS.sub(lambda match: match[1] + json.dumps(match[2]), rest).strip()
    decoder, position, calls = json.JSONDecoder(), 0, []
    try:
        while position < len(rest):
            value, position = decoder.raw_decode(rest, position)
            calls += value if isinstance(value, list) else [value]
            position += len(rest[position:]) - len(rest[position:].lstrip(" \t\r\n,;"))
    except (ValueError, RecursionError):
        calls = []
    if not calls:
        raise RecordProblem("bad-call", f"message {number}: expected calls of tools in JSON, got {text[:60]!r}")
    return before, [_read_call(call, f"message {number}") for call in calls]


def _read_call(call: object, name: str) -> dict[str, Any]:
    """Return a call in OpenAI's form, with its arguments as an object if they are one in a text."""
    whole: dict[str, Any] = call if isinstance(call, dict) else {}
    own: dict[str, Any] = whole["function"] if isinstance(whole.get("function"), dict) else whole
    if not isinstance(own.get("name"), str):
        raise RecordProblem("bad-call", f"{name}: expected a call with a `name`, got {str(call)[:60]}")
    arguments = own["arguments"] if own.get("arguments") is not None else own.get("parameters")
    extra = {key: value for key, value in whole.items() if key in ("id", "index")}
    described = {"name": own["name"], "arguments": {} if arguments is None else parse_json(arguments)}
    return {**extra, "type": "function", "function": described}


def message_spans(turn: Mapping[str, Any], text: str, number: int) -> list[CharacterSpan]:
    """Return the spans of a turn's text that it, or a part of its content, says are not learnt.

    Raises:
        RecordProblem: If there are spans that are none of the text.
    """
    if len(turn) == 2 and isinstance(turn.get("content", turn.get("value")), str):
        return []
    spans: list[CharacterSpan] = []
    for key in SPAN_KEYS:
        spans += hidden_spans(turn.get(key), text, f"message {number}: `{key}`")
    position = 0
    for part in next((turn[key] for key in TEXT_KEYS if isinstance(turn.get(key), list)), []):
        if read_flag(part, f"message {number}: ") is False:  # axolotl's flags of parts
            spans.append((position, position + len(part["text"])))
        position += len(part["text"])
    return spans


def hidden_spans(given: object, text: str, name: str) -> list[CharacterSpan]:
    """Return spans of a text that are not learnt, as axolotl or Fast-LLM write them.

    Raises:
        RecordProblem: If they are none of the text.

    >>> hidden_spans([[0, 1], {"begin_offset": 2, "end_offset": 2, "train": True}], "abc", "spans")
    [(0, 2)]
    """
    parsed = parse_json(given)
    items = parsed if isinstance(parsed, list) else [] if parsed is None else [parsed]
    spans = [_read_span(item) for item in items]
    for item, span in zip(items, spans, strict=True):
        if span is None or not 0 <= span[0] <= span[1] <= len(text):
            expected = "expected spans of the text, as pairs or as `begin_offset`, `end_offset` and `train`"
            raise RecordProblem("bad-field", f"{name}: {expected}, got {str(item)[:60]}")
    return [(span[0], span[1]) for span in spans if span is not None and not span[2]]


def _read_span(item: object) -> tuple[int, int, bool] | None:
    if isinstance(item, dict):
        begin, last, learnt = (item.get(key) for key in ("begin_offset", "end_offset", "train"))
    elif isinstance(item, (list, tuple)) and len(item) == 2:
        (begin, last), learnt = item, False
    else:
        return None
    if isinstance(begin, int) and isinstance(last, int) and isinstance(learnt, bool):
        return begin, last + 1, learnt
    return None


def _read_variables(record: Mapping[str, Any]) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    for key in ("tools", "documents"):
        value = record.get(key)
        # "" for none: Arrow's tables cannot hold differing objects, so many datasets have tools as JSON.
        if value is not None and not (isinstance(value, str) and not value.strip()):
            variables[key] = read_objects(value, f"`{key}`")
    if "tools" not in variables and record.get("functions"):  # OpenAI's former key
        functions = read_objects(record["functions"], "`functions`")
        variables["tools"] = [{"type": "function", "function": function} for function in functions]
    given = parse_json(record.get("chat_template_kwargs"))
    if given is None or (isinstance(given, str) and not given.strip()):
        return variables
    if not isinstance(given, dict):
        raise RecordProblem("bad-field", f"expected `chat_template_kwargs` to be an object, got {type_name(given)}")
    for name in RESERVED_VARIABLES:
        if given.get(name) is not None:
            raise RecordProblem("bad-field", f"`chat_template_kwargs` cannot set {name!r}; make it a key of the record")
    return {**{name: value for name, value in given.items() if value is not None}, **variables}


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
        raise RecordProblem("bad-json", _describe_bad_json(line, error)) from error
    if not isinstance(record, dict):
        hint = "; write each record on a line of its own (`jq -c '.[]'` does)" if isinstance(record, list) else ""
        raise RecordProblem("bad-json", f"expected a JSON object, got {type_name(record)}{hint}")
    return record


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


def check_text(text: str) -> bytes:
    """Return a text in UTF-8.

    Raises:
        RecordProblem: If it contains a lone surrogate, which `json.loads` makes of an unpaired escape.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        found = f"U+{ord(text[error.start]):04X} at character {error.start}"
        raise RecordProblem("bad-text", f"expected Unicode text, got a lone surrogate ({found})") from None


def _describe_bad_json(line: bytes, error: Exception) -> str:
    begins = line.strip()[:1] in (b"{", b"[")
    if isinstance(error, json.JSONDecodeError) and begins and error.pos >= len(error.doc.rstrip()):
        return (
            f"expected a JSON object on one line, and it does not end on this line ({error.msg}); in JSON Lines, each "
            "record stands on a line of its own, and `jq -c . FILE` (or `jq -c '.[]' FILE` for a list) writes a "
            "pretty-printed file so"
        )
    return f"expected JSON in UTF-8, got an error: {error}"
