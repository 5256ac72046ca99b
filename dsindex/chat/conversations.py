"""Read a record as a conversation: its turns in OpenAI's form, and which replies are trained on.

The result is what transformers would pass to a chat template: messages with `role` and `content`, without keys that
have no value. A role, or a key that decides what is trained on, makes a bad record if it cannot be read.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from dsindex.chat.thoughts import (
    THINK,
    CharacterSpan,
    TagPair,
    drop_thoughts,
    find_thoughts,
    has_other_tags,
    skip_blanks,
)
from dsindex.errors import RecordProblem
from dsindex.messages import show_value
from dsindex.text.fields import parse_record, type_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Message = dict[str, Any]
Learn = Literal["all", "last_turn"]
Reasoning = Literal["learn", "mask", "drop"]

TURN_KEYS = ("messages", "conversations", "conversation")
"""Keys of a record for its list of turns."""
CALLS_KEY = "answers"
"""The answer that is a list of tool calls, as in xLAM's data."""
QUESTION_KEYS = ("prompt", "query", "question", "problem", "instruction", "input", "inputs", "human", "user")
ANSWER_KEYS = (
    *("completion", "response", "output", "generated_solution", "solution", "answer", "targets", "assistant"),
    CALLS_KEY,
)
"""Keys of a question and of its answer, in a record or a turn; the first of each that has a value counts."""
CONTEXT_KEYS = ("input", "context")
"""Keys of texts that follow an `instruction`, as in Alpaca and Dolly."""
IGNORED_KEYS = ("chosen", "rejected", "rejected_response", "rejected_messages", "tool_choice", "parallel_tool_calls")
"""Keys of a record that other trainers read; the counts of notes name those that a record has."""
ROLE_KEYS = ("role", "from")
TEXT_KEYS = ("content", "value")
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""In transformers' order of precedence; passed under all three names, since templates read any of them."""
CALL_ROLES = frozenset({"function_call", "tool_call"})
"""Roles of turns whose text is one or more tool calls."""
ARGUMENT_KEYS = ("arguments", "parameters")
DEFAULT_ROLES: Mapping[str, str] = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", *CALL_ROLES), "assistant"),
    **dict.fromkeys(("tool", "observation", "tool_response"), "tool"),
    **{role: role for role in ("system", "developer", "function", "ipython")},
}
"""A record's role -> the role in chat templates. Case does not matter."""
TOOL_ROLES = frozenset({"tool", "function", "ipython"})
"""Roles of messages that do not end a turn: the model continues after them."""

MESSAGE_KEYS = ("tools", "functions", "function_calls", "documents", "reasoning_details", "refusal")
"""Keys of a message that few templates write; the counts of notes name those that a template does not mention."""

LEARN_KEYS: Mapping[str, bool] = {
    **dict.fromkeys(("weight", "train", "training", "trainable", "loss", "loss_weight", "loss_scale"), True),
    **dict.fromkeys(("loss_mask", "train_on_turn", "learn"), True),
    **dict.fromkeys(("masked", "skip_loss", "ignore_loss", "no_loss"), False),
}
"""Keys of a turn or a record with true, false, 1 or 0 -> the value for which it is trained on; never passed to
templates. If there are several, it is trained on only if all agree."""
UNWANTED_KEYS = ("label", "kto_tag")
"""Keys of a record that are false for an answer to avoid, in the data of KTO."""
SPAN_KEYS = ("train_detail", "training_detail", "loss_masking_spans")
"""Keys of a turn with spans of its text: axolotl's objects of `begin_offset`, `end_offset` (the last character) and
`train`; or Fast-LLM's pairs of first and last character, which are not trained on."""
MASKED_ROLE_KEY = "mask"
"""Key of a record that names a role whose turns are not trained on, as in NeMo's chat data."""
MEDIA_KEYS = frozenset({"images", "image", "videos", "video", "audios", "audio", "image_url"})
VARIABLE_KEYS: Mapping[str, type] = {"enable_thinking": bool, "reasoning_effort": str}
"""Keys of a record that are variables of templates, as in verl's data -> their types."""
RESERVED_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")
"""Variables of templates that neither a configuration nor `chat_template_kwargs` may set."""

# Notes of a conversation; other notes are names of keys that the template does not use.
TRAINED_QUESTION = "a user turn marked for training"
UNTRAINED_END = "an untrained end of the last reply"
"""The template writes the token that ends a reply outside of `{% generation %}`."""
REORDERED_REPLY = "text or a thought after a tool call"
OTHER_THOUGHTS = "a thought in unknown tags"
QUOTED_ARGUMENTS = "arguments of a tool call as a quoted string"

_T = TypeVar("_T")
_KINDS: dict[type, str] = {str: "a text", list: "a list", dict: "an object", bool: "true or false"}
_NEVER_TRAINED = frozenset({"user", "system", "developer", *TOOL_ROLES})
_UNPASSED_KEYS = frozenset({*ROLE_KEYS, *LEARN_KEYS, *SPAN_KEYS, *MEDIA_KEYS})
"""Keys of a turn that templates do not get."""
_NO_CALL = frozenset({"auto", "none"})
"""Texts under OpenAI's `function_call` that are no call."""
_SURROGATE = re.compile(rb"\\u[dD]")
"""Escapes that may be a lone surrogate."""
_QUOTE_OPENS = re.compile(r"""("(?:arguments|parameters)"\s*:\s*)'(?=\{)""")
_QUOTE_CLOSES = re.compile(r"""\}'(?=\s*\})""")
_BETWEEN_CALLS = re.compile(r"[\s,;]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A record as a chat template gets it."""

    messages: list[Message]
    """At least one."""
    variables: dict[str, Any]
    """The record's own variables: `tools`, `documents`, VARIABLE_KEYS, `chat_template_kwargs`."""
    trained: frozenset[int] | None = None
    """Positions of the replies that are trained on; None for all."""
    masked_spans: Mapping[int, Sequence[CharacterSpan]] = field(default_factory=dict)
    """Position of a message -> spans of its content that are not trained on."""
    notes: tuple[str, ...] = ()
    """What was changed or left out, to be counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationReader:
    """Reads conversations as one configuration says."""

    roles: Mapping[str, str] = field(default_factory=lambda: DEFAULT_ROLES)
    """The record's role -> the message's role."""
    assistant_role: str = "assistant"
    """Role of replies, after mapping."""
    learn: Learn = "all"
    """`last_turn` trains only on the replies after the last message that is neither a reply nor a tool's result."""
    reasoning: Reasoning = "learn"
    """`drop` removes reasoning from the messages."""
    turns_key: str | None = None
    """Key of a record for its list of turns; None for the usual keys."""
    tag_pairs: tuple[TagPair, ...] = (THINK,)
    """Tags around thoughts in the template in use."""

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
        """Return a record's conversation with the variables for its template and the replies that are trained on.

        Further keys of a message (`name`, `tool_call_id`, ...) are kept.

        Raises:
            RecordProblem: If there is no conversation, a role is unknown, or a field is missing or has a wrong shape.

        >>> ConversationReader().read({"conversations": [{"from": "human", "value": "Hi"}]}).messages
        [{'role': 'user', 'content': 'Hi'}]
        """
        _refuse_media(record, "the record")
        notes: set[str] = set()
        turns, num_prompt_turns = self._find_turns(record, notes)
        if (masked_role := record.get(MASKED_ROLE_KEY)) is not None:
            masked_role = map_role(require(masked_role, str, "`mask`"), self.roles, "`mask`")
        messages: list[Message] = []
        trained: set[int] = set()
        spans_by_position: dict[int, Sequence[CharacterSpan]] = {}
        calls: defaultdict[int, list[Message]] = defaultdict(list)
        for number, turn in enumerate(turns, 1):
            message, is_call = self._read_message(turn, number, notes)
            role, position = message["role"], len(messages)
            is_wanted = len(turn) == 2 or self._is_wanted(turn, role, number, notes)
            is_wanted = is_wanted and role != masked_role and number > num_prompt_turns
            spans = message_spans(turn, number, message)
            if is_call and messages and messages[-1]["role"] == role:
                # The model writes both in one step, which ends once.
                if is_wanted != (position - 1 in trained):
                    what = "a tool call and the reply before it are one message, but only one of them is trained on"
                    raise RecordProblem("bad-field", f"message {number}: {what}")
                calls[position - 1].append(message)
                continue
            messages.append(message)
            if spans:
                spans_by_position[position] = spans
            if role == self.assistant_role and is_wanted:
                trained.add(position)
        if read_flag(record, "") is False or any(record.get(key) is False for key in UNWANTED_KEYS):
            raise RecordProblem("no-trained-tokens", "a key of the record says that it is not to be trained on")
        for position, added in calls.items():
            _add_calls(messages[position], added, notes)
        trained = self._keep_wanted(messages, trained)
        num_replies = [message["role"] for message in messages].count(self.assistant_role)
        return Conversation(
            messages=messages,
            variables=_read_variables(record),
            trained=None if len(trained) == num_replies else frozenset(trained),
            masked_spans=spans_by_position,
            notes=tuple(sorted(notes)),
        )

    def _is_wanted(self, turn: Mapping[str, Any], role: str, number: int, notes: set[str]) -> bool:
        """Return whether no key of a turn says that it is not trained on."""
        flag = read_flag(turn, f"message {number}: ")
        if flag is False and role not in {self.assistant_role, *_NEVER_TRAINED}:
            what = f"its role {role!r} is not the role of replies, {self.assistant_role!r}; set `assistant_role`"
            raise RecordProblem("bad-field", f"message {number}: a key says that it is not trained on, but {what}")
        if flag is True and role == "user":
            notes.add(TRAINED_QUESTION)
        return flag is not False

    def _keep_wanted(self, messages: Sequence[Message], trained: set[int]) -> set[int]:
        """Return the replies that are trained on with `learn` and `reasoning`."""
        if self.learn == "last_turn":
            first = last_turn([message["role"] for message in messages], self.assistant_role)
            trained = {number for number in trained if number >= first}
            if not trained:
                what = f"no message of the last turn has the role of replies, {self.assistant_role!r}"
                raise RecordProblem("no-trained-tokens", f"nothing is trained on: {what}; set `assistant_role`")
        if self.reasoning == "drop":  # an empty reply is what a dropped thought leaves
            trained = {n for n in trained if "tool_calls" in messages[n] or content_text(messages[n]).strip()}
        return trained

    def _find_turns(self, record: Mapping[str, Any], notes: set[str]) -> tuple[list[Any], int]:
        """Return at least one turn, and how many of them are the prompt."""
        keys = TURN_KEYS if self.turns_key is None else (self.turns_key,)
        key = next((key for key in keys if record.get(key) is not None), None)
        pair = None if key is not None or self.turns_key is not None else find_pair(record)
        ignored = {*IGNORED_KEYS}
        if key is not None:
            turns, num_prompt_turns = _read_turns(record[key], key), 0
        elif pair is not None:
            turns, num_prompt_turns = _read_pair(record, pair)
            contexts = CONTEXT_KEYS if pair[0] == "instruction" else ()
            ignored |= {*QUESTION_KEYS, *ANSWER_KEYS, *CONTEXT_KEYS, *REASONING_KEYS}.difference(pair, contexts)
        else:
            pairs = f", or a question ({', '.join(QUESTION_KEYS)}) and its answer ({', '.join(ANSWER_KEYS)})"
            needed, found = " or ".join(keys) + ("" if self.turns_key else pairs), show_value(", ".join([*record][:8]))
            raise RecordProblem("missing-field", f"no conversation: it needs the key {needed}; its keys are {found}")
        if not turns:
            raise RecordProblem("no-turns", "the conversation has no messages")
        notes.update(key for key in ignored.intersection(record) if not _is_empty(record[key]))
        system = record.get("system") if record.get("system") is not None else record.get("system_prompt")
        if system is None or not require(system, str, "`system`"):
            return turns, num_prompt_turns
        first = turns[0] if isinstance(turns[0], dict) else {}
        if any(str(first.get(key)).lower() == "system" for key in ROLE_KEYS):
            if all(first.get(key) != system for key in TEXT_KEYS):
                notes.add("system")
            return turns, num_prompt_turns
        return [{"role": "system", "content": system}, *turns], num_prompt_turns + (num_prompt_turns > 0)

    def _read_message(self, turn: object, number: int, notes: set[str]) -> tuple[Message, bool]:
        """Return the `number`-th message (from 1) as templates expect it, and whether its role is a tool call's."""
        turn = require(turn, dict, where := f"message {number}")
        name = message_role(turn, number)
        is_call = name.lower() in CALL_ROLES
        role = self.assistant_role if is_call else map_role(name, self.roles, where)
        text = turn.get("content", turn.get("value"))
        if len(turn) == 2 and isinstance(text, str) and not is_call and self.reasoning != "drop":
            return {"role": role, "content": text}, False
        message: Message = {"role": role}
        for key, value in turn.items():
            if value is None or key in _UNPASSED_KEYS:
                continue
            if key in TEXT_KEYS:
                is_call_object = is_call and isinstance(value, dict)
                content = json.dumps(value) if is_call_object else _read_content(key, value, number)
                if message.setdefault("content", content) != content:
                    raise RecordProblem("bad-field", f"{where}: `content` and `value` have different texts")
            else:
                message[key] = value
        _refuse_media(turn, where)
        self._read_calls(message, number, notes, is_call=is_call)
        self._read_reasoning(message, number, notes)
        if "content" not in message and not any(message.get(key) for key in ("tool_calls", *REASONING_KEYS)):
            missing = "no text under `content` or `value`, no `tool_calls` and no reasoning"
            raise RecordProblem("missing-field", f"{where} has {missing}")
        return message, is_call

    def _read_calls(self, message: Message, number: int, notes: set[str], *, is_call: bool) -> None:
        where = f"message {number}"
        given = parse_json(message.get("tool_calls"))
        if _is_empty(given):
            message.pop("tool_calls", None)
        if "tool_calls" in message:
            message["tool_calls"] = read_objects(given, f"{where}: `tool_calls`")
        elif is_call and (text := content_text(message)).strip():
            before, message["tool_calls"], is_reordered = _parse_calls(text, where, self.tag_pairs)
            notes.update([REORDERED_REPLY] if is_reordered else [])
            del message["content"]
            if before:
                message["content"] = before
        elif (is_call or message["role"] == self.assistant_role) and any(key in message for key in ARGUMENT_KEYS):
            call = {key: message.pop(key) for key in ("name", *ARGUMENT_KEYS) if key in message}
            message["tool_calls"] = [_read_call(call, where)]
        given = parse_json(message.get("function_call"))  # OpenAI's former key
        if _is_empty(given) or (isinstance(given, str) and given.strip().lower() in _NO_CALL):
            message.pop("function_call", None)
        elif "tool_calls" not in message:
            del message["function_call"]
            message["tool_calls"] = [_read_call(given, f"{where}: `function_call`")]
        if is_call and "tool_calls" not in message:
            places = "neither JSON in `content` or `value`, nor keys `name` and `arguments`"
            raise RecordProblem("bad-call", f"{where} has no tool call: {places}")

    def _read_reasoning(self, message: Message, number: int, notes: set[str]) -> None:
        given = [key for key in REASONING_KEYS if key in message]
        for key in given:
            require(message[key], str, f"message {number}: `{key}`")
        if self.reasoning != "drop":
            for key in REASONING_KEYS if given else ():
                message.setdefault(key, message[given[0]])
            return
        for key in given:
            del message[key]
        if message["role"] == self.assistant_role and ("content" in message or given):
            text = content_text(message)
            kept = drop_thoughts(text, self.tag_pairs)
            notes.update([OTHER_THOUGHTS] if has_other_tags(kept) else [])
            if kept != text or "content" not in message:
                message["content"] = kept


def last_turn(roles: Sequence[str | None], assistant_role: str) -> int:
    """Return the position at which the last turn's replies begin: after the last message to the model.

    >>> last_turn(["system", "user", "assistant", "user", "assistant", "tool", "assistant"], "assistant")
    4
    """
    own = {assistant_role, *TOOL_ROLES}
    return max((number + 1 for number, role in enumerate(roles) if role not in own), default=0)


def find_pair(record: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the keys of the question and the answer that a record or a turn has."""
    asked = next((key for key in QUESTION_KEYS if record.get(key) is not None), None)
    answered = next((key for key in ANSWER_KEYS if record.get(key) is not None), None)
    return None if asked is None or answered is None else (asked, answered)


def read_flag(turn: Mapping[str, Any], where: str) -> bool | None:
    """Return whether a turn or a record says that it is trained on; None if it does not say.

    Raises:
        RecordProblem: If the value is not true, false, 1 or 0.

    >>> read_flag({"weight": 1, "masked": True}, ""), read_flag({"role": "user", "loss": None}, "")
    (False, None)
    """
    flag: bool | None = None
    if where and MASKED_ROLE_KEY in turn:
        raise RecordProblem("bad-field", f"{where}`mask` may mean either; use `loss_mask` or `masked`")
    for key in turn.keys() & LEARN_KEYS.keys():
        value = turn[key]
        if value is None:
            continue
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):
            shown = show_value(value) if isinstance(value, (int, float)) else type_name(value)
            raise RecordProblem("bad-field", f"{where}`{key}` is {shown}, not true, false, 1 or 0")
        is_trained = bool(value) is LEARN_KEYS[key]
        flag = is_trained if flag is None else flag and is_trained
    return flag


def message_role(message: Mapping[str, Any], number: int) -> str:
    """Return the value of `role` or `from` of the `number`-th message (from 1), unmapped.

    Raises:
        RecordProblem: If it has neither, or it is not a text.
    """
    for key in ROLE_KEYS:
        value = message.get(key)
        if value is not None:
            return require(value, str, f"message {number}: `{key}`")
    raise RecordProblem("missing-field", f"message {number}: it has no key `role` or `from`")


def message_text(message: Mapping[str, Any], number: int) -> str:
    """Return the text of `content` or `value` of the `number`-th message (from 1), its parts joined.

    Raises:
        RecordProblem: If it has neither, or it is neither a text nor a list of parts of type `text`.
    """
    for key in TEXT_KEYS:
        if message.get(key) is not None:
            return content_text({"content": _read_content(key, message[key], number)})
    raise RecordProblem("missing-field", f"message {number}: it has no text under `content` or `value`")


def map_role(role: str, roles: Mapping[str, str], where: str) -> str:
    """Map a role.

    Raises:
        RecordProblem: If the role is not one of `roles`.
    """
    mapped = roles.get(role) or roles.get(role.lower())
    if mapped is None:
        known = ", ".join(sorted(roles))
        raise RecordProblem(
            "unknown-role", f"{where}: unknown role {show_value(role)}; add it to `role_mapping` (known: {known})"
        )
    return mapped


def parse_json(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a text that is a JSON list or object, as Arrow's tables need it; anything else unchanged.

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
    """Return a list of objects; the list, and each object, may be JSON in a text.

    Raises:
        RecordProblem: If it is anything else.

    >>> read_objects(['{"name": "f"}'], "`tools`")
    [{'name': 'f'}]
    """
    decoded = parse_json(value)
    if isinstance(decoded, str) and not decoded.strip():
        return []
    items = enumerate(require(decoded, list, name), 1)
    return [require(parse_json(item), dict, f"{name}: item {number}") for number, item in items]


def require(value: object, kind: type[_T], where: str) -> _T:
    """Return a value of a type.

    Raises:
        RecordProblem: If it has another type.
    """
    if not isinstance(value, kind):
        raise RecordProblem("bad-field", f"{where} is {type_name(value)}, not {_KINDS[kind]}")
    return value


def _is_empty(value: object) -> bool:
    """Tell whether a value is null, false, 0, blank or empty, or contains nothing else, as Arrow fills in keys."""
    items = list(value.values()) if isinstance(value, dict) else value
    if isinstance(items, list):
        return all(map(_is_empty, items))
    return not (items.strip() if isinstance(items, str) else items)


def _refuse_media(holder: Mapping[str, Any], where: str) -> None:
    for key in MEDIA_KEYS.intersection(holder):
        if not _is_empty(parse_json(holder[key])):
            raise RecordProblem("bad-field", f"{where} has `{key}`, but only text can be encoded")


def _read_turns(value: object, key: str) -> list[Any]:
    """Return turns from a list of turns or pairs, from an object of lists, as old tables have it, or from JSON."""
    value = parse_json(value)
    if isinstance(value, dict) and value and all(isinstance(column, list) for column in value.values()):
        if len({len(column) for column in value.values()}) > 1:
            raise RecordProblem("bad-field", f"`{key}`: its lists have different lengths")
        value = [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
    turns: list[Any] = []
    system = None
    for turn in map(parse_json, require(value, list, f"`{key}`")):
        pair = find_pair(turn) if isinstance(turn, dict) and turn.keys().isdisjoint(ROLE_KEYS) else None
        if pair is None:
            turns.append(turn)
            continue
        if turn.get("system") and turn["system"] != system:
            system = turn["system"]
            turns.append({"role": "system", "content": system})
        flags = {key: turn[key] for key in LEARN_KEYS if key in turn}
        turns += [{"role": "user", "content": turn[pair[0]]}, {"role": "assistant", "content": turn[pair[1]], **flags}]
    return turns


def _read_pair(record: Mapping[str, Any], pair: tuple[str, str]) -> tuple[list[Any], int]:
    """Return the turns of a question and its answer, and how many are the prompt if it has replies of its own.

    Both may be lists of messages. The replies of `history` are trained on, as in LlamaFactory and ms-swift.
    """
    asked, answered = pair
    turns: list[Any] = []
    history = parse_json(record.get("history")) or []
    for number, earlier in enumerate(history if isinstance(history, list) else [history], 1):
        if not isinstance(earlier, list) or len(earlier) != 2:
            raise RecordProblem("bad-field", f"`history`: round {number} is not a question and an answer")
        turns += [{"role": "user", "content": earlier[0]}, {"role": "assistant", "content": earlier[1]}]
    question, answer = _find_messages(record[asked]), _find_messages(record[answered])
    if isinstance(question, list):
        turns += question
    else:
        keys = (asked, *(key for key in CONTEXT_KEYS if asked == "instruction" and record.get(key)))
        turns.append({"role": "user", "content": "\n\n".join(require(record[key], str, f"`{key}`") for key in keys)})
    num_prompt_turns = len(turns) if isinstance(question, list) else 0
    if answered == CALLS_KEY:
        calls = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
        answer = [{"role": "tool_call", "content": calls}]
    elif not isinstance(answer, list):
        answer = [{"role": "assistant", "content": require(answer, str, f"`{answered}`")}]
    return turns + answer, num_prompt_turns


def _find_messages(value: object) -> object:
    """Return a list of messages, also from JSON; any other value unchanged, such as a text that is other JSON."""
    items = parse_json(value)
    messages = [*map(parse_json, items)] if isinstance(items, list) else []
    are_messages = [isinstance(item, dict) and any(key in item for key in ROLE_KEYS) for item in messages]
    return messages if isinstance(value, list) or (messages and all(are_messages)) else value


def _read_content(key: str, value: object, number: int) -> str | list[dict[str, str]]:
    if isinstance(value, str):
        return value
    parts = enumerate(require(value, list, f"message {number}: `{key}`"), 1)
    return [_read_part(part, f"message {number}, part {place}") for place, part in parts]


def _read_part(part: object, where: str) -> dict[str, str]:
    part = require(part, dict, where)
    kind = part.get("type")
    if kind != "text":
        shown = show_value(kind) if isinstance(kind, str) else type_name(kind) if "type" in part else "missing"
        raise RecordProblem("bad-field", f"{where}: its type is {shown}, but only parts of type 'text' can be encoded")
    _refuse_media(part, where)
    # Without the other keys: a template may take `image_url: null` for an image.
    return {"type": "text", "text": require(part.get("text"), str, f"{where}: `text`")}


def content_text(message: Message) -> str:
    """Return the text of a message's content, with its parts joined; empty if it has none."""
    content = message.get("content", "")
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def function_of(call: dict[str, Any]) -> dict[str, Any]:
    """Return the object with the name and arguments of a tool or a call: its `function`, or itself."""
    function = call.get("function")
    return function if isinstance(function, dict) else call


def _add_calls(reply: Message, calls: Sequence[Message], notes: set[str]) -> None:
    """Add the turns of tool calls that follow a reply to it, with their texts and thoughts."""
    before = content_text(reply)
    has_text = bool(before.strip())
    for call in calls:
        has_thought = any(key in call for key in REASONING_KEYS)
        if ("tool_calls" in reply and "content" in call) or (has_thought and (has_text or "tool_calls" in reply)):
            notes.add(REORDERED_REPLY)
        reply["tool_calls"] = tool_calls = reply.get("tool_calls", [])
        tool_calls += call["tool_calls"]
    for key in ("content", *REASONING_KEYS):
        texts = [content_text(call) if key == "content" else call.get(key) for call in calls]
        if any(texts):
            reply[key] = "\n\n".join(filter(None, [before if key == "content" else reply.get(key), *texts]))
    for call in calls:
        for key, value in call.items():
            reply.setdefault(key, value)


def _parse_calls(text: str, where: str, pairs: tuple[TagPair, ...]) -> tuple[str, list[dict[str, Any]], bool]:
    """Return the text around the tool calls of a turn, such as a thought, the calls, and whether text follows one.

    The calls are one or more objects, or lists of objects, in JSON; they may be in Hermes' `<tool_call>` tags with text
    around them, and a thought may come first. Glaive's data has the arguments in single quotes.
    """
    first, thought_end = next(find_thoughts(text, pairs), (0, 0))
    for candidate, begin in product((text, _unquote_arguments(text)), (0, thought_end if not first else 0)):
        try:
            texts, calls = _split_calls(candidate, begin)
        except (ValueError, RecursionError):
            continue
        if calls:
            texts[0] = "\n\n".join(filter(None, [candidate[:begin].strip(), texts[0]]))
            return "\n\n".join(filter(None, texts)), [_read_call(call, where) for call in calls], any(texts[1:])
    raise RecordProblem("bad-call", f"{where}: its text is not a tool call in JSON: {show_value(text)}")


def _split_calls(text: str, begin: int) -> tuple[list[str], list[Any]]:
    """Return the texts before, between and after the tool calls of a text, and the calls.

    Raises:
        ValueError: If the text is not made of calls, or a tag is not closed.
    """
    opening, closing = "<tool_call>", "</tool_call>"
    if text.startswith(("{", "["), skip_blanks(text, begin, len(text))) or opening not in text:
        text, begin = f"{opening}{text[begin:]}{closing}", 0
    texts: list[str] = []
    calls: list[Any] = []
    while (position := text.find(opening, begin)) >= 0:
        texts.append(text[begin:position].strip())
        decoded, begin = _decode_calls(text, position + len(opening))
        if not text.startswith(closing, begin):
            raise ValueError("a tag that is not closed")
        calls += decoded
        begin += len(closing)
    return [*texts, text[begin:].strip()], calls


def _decode_calls(text: str, begin: int) -> tuple[list[Any], int]:
    """Return the JSON objects in a text from a place on, also from lists, and the place after them."""
    decoder, objects = json.JSONDecoder(), []
    position = _BETWEEN_CALLS.match(text, begin).end()  # type: ignore[union-attr]  # it matches any text
    while text.startswith(("{", "["), position):
        value, position = decoder.raw_decode(text, position)
        objects += value if isinstance(value, list) else [value]
        position = _BETWEEN_CALLS.match(text, position).end()  # type: ignore[union-attr]
    return objects, position


def _unquote_arguments(text: str) -> str:
    """Return a text in which arguments in single quotes became JSON strings."""
    pieces, position = [], 0
    while (opens := _QUOTE_OPENS.search(text, position)) and (closes := _QUOTE_CLOSES.search(text, opens.end())):
        pieces += [text[position : opens.end() - 1], json.dumps(text[opens.end() : closes.start() + 1])]
        position = closes.end()
    return "".join([*pieces, text[position:]])


def _read_call(call: object, where: str) -> dict[str, Any]:
    """Return a call in OpenAI's form, with its arguments as an object if they are one in a text."""
    outer: dict[str, Any] = call if isinstance(call, dict) else {}
    function = function_of(outer)
    if not isinstance(function.get("name"), str):
        raise RecordProblem("bad-call", f"{where}: a tool call has no `name`: {show_value(call)}")
    arguments: object = next((function[key] for key in ARGUMENT_KEYS if function.get(key) is not None), {})
    extra = {key: value for key, value in outer.items() if key in ("id", "index")}
    described = {"name": function["name"], "arguments": parse_json(arguments)}
    return {**extra, "type": "function", "function": described}


def message_spans(turn: Mapping[str, Any], number: int, message: Message) -> list[CharacterSpan]:
    """Return the spans of a turn's text that it, or a part of its content, says are not trained on.

    Args:
        turn: The turn.
        number: Its number, from 1.
        message: What was read of it, without tool calls and dropped thoughts.

    Raises:
        RecordProblem: If a span is not within the text, or the text has changed.
    """
    if len(turn) == 2 and isinstance(turn.get("content", turn.get("value")), str):
        return []
    content = next((turn[key] for key in TEXT_KEYS if isinstance(turn.get(key), (str, list))), "")
    text = content_text({"content": content})
    spans: list[CharacterSpan] = []
    for key in SPAN_KEYS:
        spans += masked_spans(turn.get(key), text, f"message {number}: `{key}`")
    position = 0
    for part in content if isinstance(content, list) else []:
        end = position + len(part["text"])
        if read_flag(part, f"message {number}: ") is False and position < end:  # axolotl's flags of parts
            spans.append((position, end))
        position = end
    if spans and text != content_text(message):
        what = "spans cannot be masked in a text with tool calls or dropped thoughts"
        raise RecordProblem("bad-field", f"message {number}: {what}")
    return spans


def masked_spans(given: object, text: str, name: str) -> list[CharacterSpan]:
    """Return spans of a text that are not trained on, as axolotl or Fast-LLM write them.

    Raises:
        RecordProblem: If a span is not within the text.

    >>> masked_spans([[0, 1], {"begin_offset": 2, "end_offset": 2, "train": True}], "abc", "spans")
    [(0, 2)]
    """
    parsed = parse_json(given)
    spans = []
    for item in parsed if isinstance(parsed, list) else [] if parsed is None else [parsed]:
        keys = ("begin_offset", "end_offset", "train")
        values: list[Any] = [*item, False] if isinstance(item, list) else []
        values = [item.get(key) for key in keys] if isinstance(item, dict) else values
        if [*map(type, values)] != [int, int, bool] or not 0 <= values[0] <= values[1] + 1 <= len(text):
            form = "a pair, or an object of `begin_offset`, `end_offset` and `train`"
            raise RecordProblem("bad-field", f"{name}: {show_value(item)} is not a span of the text: {form}")
        spans += [(values[0], values[1] + 1)] if values[0] <= values[1] and not values[2] else []
    return spans


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
    given = require(parse_json(record.get("chat_template_kwargs")) or {}, dict, "`chat_template_kwargs`")
    for name in RESERVED_VARIABLES:
        if given.get(name) is not None:
            raise RecordProblem("bad-field", f"`chat_template_kwargs` cannot set {name!r}; make it a key of the record")
    given = {name: value for name, value in given.items() if value is not None}
    columns = {key: record[key] for key in VARIABLE_KEYS if record.get(key) is not None}
    columns = {key: require(value, VARIABLE_KEYS[key], f"`{key}`") for key, value in columns.items()}
    return {**columns, **given, **variables}


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
        raise RecordProblem("bad-text", f"a text has a lone surrogate ({found})") from None
