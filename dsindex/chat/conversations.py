"""Read a record as a conversation: messages in OpenAI's format, and the replies to train on.

Messages have the form that transformers passes to a chat template: `role`, `content` and further keys, without keys
whose value is null. A record is bad if a role, or a key that decides what is trained on, cannot be read: a guess would
change the loss mask.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from dsindex.chat.config import CALL_ROLES, RESERVED_VARIABLES, InstructionConfig
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

TURN_KEYS = ("messages", "conversations", "conversation")
"""Keys under which a record may have its list of turns."""
CALLS_KEY = "answers"
"""Key of an answer that is a list of tool calls, as in xLAM's data."""
QUESTION_KEYS = ("instruction", "prompt", "query", "question", "problem", "input", "inputs", "human", "user")
ANSWER_KEYS = (
    *("completion", "response", "output", "generated_solution", "solution", "answer", "targets", "assistant"),
    CALLS_KEY,
)
"""Keys of a question and of its answer, in a record or a turn; the first key in each list that has a value is used.
`instruction` comes first, because some of Alpaca's variants have a `prompt` that includes the answer."""
CONTEXT_KEYS = ("input", "context")
"""Keys of texts that are appended to an `instruction`, as in Alpaca and Dolly."""
UNREAD_CONTEXT_KEYS = ("article", "choices", "options")
"""Keys of a question's context that are ignored; a record that has one gets a note."""
IGNORED_KEYS = (
    *("chosen", "rejected", "rejected_response", "rejected_messages", "tool_choice", "parallel_tool_calls"),
    *("instructions", "system_message", "unmask"),
)
"""Keys of a record that other trainers read and dsindex ignores; a record that has one gets a note."""
ROLE_KEYS = ("role", "from")
TEXT_KEYS = ("content", "value")
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""Keys of a message's reasoning, in transformers' order of precedence. A template may read any of them, so the
reasoning is passed under all three."""
SYSTEM_KEYS = ("system", "system_prompt")
ARGUMENT_KEYS = ("arguments", "parameters")
CALL_KEYS = (*ARGUMENT_KEYS, "args", "input")
"""Keys of a call's arguments; LangChain has `args`, Anthropic has `input`."""
TOOL_KEYS = ("tools", "available_tools")
"""Keys of a record's tools; mistral-finetune's data has the second."""
TOOL_ROLES = frozenset({"tool", "function", "ipython"})
"""Roles of tool results. They do not end a turn: the model continues after them."""

MESSAGE_KEYS = (
    *("tools", "functions", "function_calls", "documents", "label"),
    *("reasoning_details", "thinking_blocks", "refusal", "tool_plan", "tool_responses", "channel", "recipient"),
    *("thought", "thoughts", "context"),
)
"""Keys of a message that few templates write; a record gets a note if it has one that its template never mentions."""

LEARN_KEYS: Mapping[str, bool] = {
    **dict.fromkeys(("weight", "train", "training", "trainable", "loss", "loss_weight", "loss_scale"), True),
    **dict.fromkeys(("loss_mask", "train_on_turn", "learn", "output_with_loss"), True),
    **dict.fromkeys(("masked", "skip_loss", "ignore_loss", "no_loss"), False),
}
"""Flags (true, false, 1 or 0) of a turn or a record -> the value that means "train on it". A turn with several flags is
trained on only if all of them say so. Flags are never passed to templates."""
UNWANTED_KEYS = ("label", "kto_tag")
"""Keys of a record that are false or 0 if a model should avoid the answer, as in KTO's data."""
SPAN_KEYS = ("train_detail", "training_detail", "loss_masking_spans")
"""Keys of a turn with spans of its text: axolotl's objects of `begin_offset`, `end_offset` (the last character) and
`train`, or Fast-LLM's pairs of first and last character, which mask the text between them."""
MASKED_ROLE_KEY = "mask"
"""Key of a record that names the role whose turns are masked, as in NeMo's chat data."""
LAST_ONLY_KEY = "only_last"
"""Key of a record that is true if only its last message is trained on, as in mistral-finetune's data."""
MEDIA_KEYS = frozenset({
    *("image_url", "sound"),
    *(name for kind in ("image", "video", "audio") for name in (kind, f"{kind}s", f"{kind}_path", f"{kind}_paths")),
})  # fmt: skip
VARIABLE_KEYS: Mapping[str, type] = {"enable_thinking": bool, "reasoning_effort": str}
"""Keys of a record that are passed as template variables, as in verl's data -> their types."""

# Notes about a conversation. Any other note is the name of a key that the template does not use.
TRAINED_QUESTION = "a user turn marked for training"
UNTRAINED_END = "an untrained end of the last reply"
"""The template writes the token that ends a reply outside `{% generation %}`, so the token is masked."""
REORDERED_REPLY = "text or a thought after a tool call"
UNWRITTEN_THOUGHT = "a thought in the content"
OTHER_THOUGHTS = "a thought in unknown tags"
QUOTED_ARGUMENTS = "arguments of a tool call as a quoted string"

_T = TypeVar("_T")
_KINDS: dict[type, str] = {str: "a text", list: "a list", dict: "an object", bool: "true or false"}
_NEVER_TRAINED = frozenset({"user", "system", "developer", *TOOL_ROLES})
_UNPASSED_KEYS = frozenset({*ROLE_KEYS, *LEARN_KEYS, *SPAN_KEYS, *MEDIA_KEYS})
"""Keys of a turn that are not copied to the message."""
_IGNORED_KEYS = frozenset({*IGNORED_KEYS, *SYSTEM_KEYS})
_IGNORED_BESIDE_TURNS = _IGNORED_KEYS | {"history", *TURN_KEYS}
_VARIABLE_SOURCES = frozenset({"documents", *TOOL_KEYS, "functions", "chat_template_kwargs", *VARIABLE_KEYS})
_PART_KEYS = ("text", *TEXT_KEYS, "thinking")
_NO_CALL = frozenset({"auto", "none"})
"""Values of OpenAI's `function_call` that are settings, not calls."""
_SURROGATE = re.compile(rb"\\u[dD]")
"""Start of a JSON escape that may be a lone surrogate (U+D800 to U+DFFF)."""
_QUOTE_OPENS = re.compile(r"""("(?:arguments|parameters)"\s*:\s*)'(?=\{)""")
_QUOTE_CLOSES = re.compile(r"""\}'(?=\s*\})""")
_BETWEEN_CALLS = re.compile(r"[\s,;]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The messages and variables of a record for a chat template, and what to train on."""

    messages: list[Message]
    """At least one message."""
    variables: dict[str, Any]
    """Template variables from the record: `tools`, `documents`, VARIABLE_KEYS, `chat_template_kwargs`."""
    trained: frozenset[int] | None = None
    """Positions in `messages` of the replies to train on; None for all replies."""
    masked_spans: Mapping[int, Sequence[CharacterSpan]] = field(default_factory=dict)
    """Position in `messages` -> masked spans of the message's content."""
    notes: tuple[str, ...] = ()
    """Notes about what was changed or left out; the manifest counts them."""


class ConversationReader:
    """Reads conversations from records.

    Args:
        config: Roles, the key of the turns, and what to train on.
        tag_pairs: Tags that the template in use puts around thoughts.
    """

    def __init__(self, config: InstructionConfig | None = None, tag_pairs: tuple[TagPair, ...] = (THINK,)) -> None:
        self._config, self._tag_pairs = config or InstructionConfig(), tag_pairs
        self._roles, self._reply_role = self._config.roles, self._config.assistant_role
        self._drops_reasoning = self._config.reasoning == "drop"

    def read_line(self, line: bytes) -> Conversation:
        """Read a conversation from one line of JSON.

        Raises:
            RecordProblem: If the line is not a JSON object, `read` refuses the record, or a text has a lone surrogate.
        """
        conversation = self.read(parse_record(line))
        check_texts(line, [conversation.variables, conversation.messages])
        return conversation

    def read(self, record: Mapping[str, Any]) -> Conversation:
        """Read a conversation from a record.

        Further keys of a message (`name`, `tool_call_id`, ...) are kept, since templates may use them.

        Raises:
            RecordProblem: If there is no conversation, a role is unknown, a field is missing or has the wrong type, or
                nothing in the record is to be trained on.

        >>> ConversationReader().read({"conversations": [{"from": "human", "value": "Hi"}]}).messages
        [{'role': 'user', 'content': 'Hi'}]
        """
        _refuse_media(record, "the record")
        notes: set[str] = set()
        turns, num_prompt_turns = self._find_turns(record, notes)
        if (masked_role := record.get(MASKED_ROLE_KEY)) is not None:
            masked_role = map_role(require(masked_role, str, "`mask`"), self._roles, "`mask`")
        messages: list[Message] = []
        trained: set[int] = set()
        spans_by_position: dict[int, Sequence[CharacterSpan]] = {}
        calls: defaultdict[int, list[Message]] = defaultdict(list)
        for number, turn in enumerate(_sort_parts(turns, notes), 1):
            message, is_call = self._read_message(turn, number, notes)
            role, position = message["role"], len(messages)
            is_trained = len(turn) == 2 or self._is_trainable(turn, role, number, notes)
            is_trained = is_trained and role != masked_role and number > num_prompt_turns
            spans = message_spans(turn, number, message)
            if is_call and messages and messages[-1]["role"] == role:
                # The model writes the text and its calls in one step, with one end token: they are one message.
                if is_trained != (position - 1 in trained):
                    problem = "a tool call and the reply before it are one message, but only one of them is trained on"
                    raise RecordProblem("bad-field", f"message {number}: {problem}")
                calls[position - 1].append(message)
                continue
            messages.append(message)
            if spans:
                spans_by_position[position] = spans
            if role == self._reply_role and is_trained:
                trained.add(position)
        if read_flag(record, "") is False or any(record.get(key) == 0 for key in UNWANTED_KEYS):
            flags = ", ".join(f"`{key}`" for key in (*LEARN_KEYS, *UNWANTED_KEYS) if key in record)
            raise RecordProblem("no-trained-tokens", f"the record says that it is not to be trained on: {flags}")
        if messages[-1]["role"] in _NEVER_TRAINED:  # another trainer may add the answer
            notes.update(key for key in (*ANSWER_KEYS, "choices") if not _is_empty(record.get(key)))
        for position, call_messages in calls.items():
            _merge_calls(messages[position], call_messages, notes)
        trained = self._keep_trainable(record, messages, trained)
        num_replies = [message["role"] for message in messages].count(self._reply_role)
        return Conversation(
            messages=messages,
            variables=_read_variables(record),
            trained=None if len(trained) == num_replies else frozenset(trained),
            masked_spans=spans_by_position,
            notes=tuple(sorted(notes)),
        )

    def _is_trainable(self, turn: Mapping[str, Any], role: str, number: int, notes: set[str]) -> bool:
        """Return whether a turn may be trained on: true unless one of its flags forbids it."""
        flag = read_flag(turn, f"message {number}: ")
        if flag is False and role not in {self._reply_role, *_NEVER_TRAINED}:
            problem = f"its role {role!r} is not the role of replies, {self._reply_role!r}; set `assistant_role`"
            raise RecordProblem("bad-field", f"message {number}: a key says that it is not trained on, but {problem}")
        if flag is True and role == "user":
            notes.add(TRAINED_QUESTION)
        return flag is not False

    def _keep_trainable(self, record: Mapping[str, Any], messages: Sequence[Message], trained: set[int]) -> set[int]:
        """Remove the replies that the record or `learn` masks, or that are empty without their reasoning."""
        if require(record.get(LAST_ONLY_KEY) or False, bool, f"`{LAST_ONLY_KEY}`"):
            trained = trained & {len(messages) - 1}
        if self._config.learn == "last_turn":
            first = last_turn([message["role"] for message in messages], self._reply_role)
            trained = {number for number in trained if number >= first}
            if not trained:
                problem = f"no message of the last turn has the role of replies, {self._reply_role!r}"
                raise RecordProblem("no-trained-tokens", f"nothing is trained on: {problem}; set `assistant_role`")
        if self._drops_reasoning:  # a reply that was only a thought is empty now
            trained = {n for n in trained if "tool_calls" in messages[n] or content_text(messages[n]).strip()}
        return trained

    def _find_turns(self, record: Mapping[str, Any], notes: set[str]) -> tuple[list[Any], int]:
        """Return the turns of a record, at least one, and how many of them belong to the prompt."""
        turns_field = self._config.turns_field
        keys = TURN_KEYS if turns_field is None else (turns_field,)
        key = _find_key(record, keys)
        pair = None if turns_field is not None or (key is not None and record[key]) else find_pair(record)
        system_key = _find_key(record, SYSTEM_KEYS)
        ignored = _IGNORED_KEYS
        if pair is not None:
            turns, num_prompt_turns = _read_pair(record, pair)
            contexts = CONTEXT_KEYS if pair[0] == "instruction" else ()
            unread = {*QUESTION_KEYS, *ANSWER_KEYS, *CONTEXT_KEYS, *UNREAD_CONTEXT_KEYS, *REASONING_KEYS}
            ignored |= unread.difference(pair, contexts)
        elif key is not None:
            turns, num_prompt_turns = _read_turns(record[key], key), 0
            ignored = _IGNORED_BESIDE_TURNS
        else:
            pairs = f", or a question ({', '.join(QUESTION_KEYS)}) and its answer ({', '.join(ANSWER_KEYS)})"
            is_preference = isinstance(record.get("chosen"), list) and "prompt" not in record
            pairs += "; `turns_field: chosen` reads preferred conversations" if is_preference else ""
            choices, shown = " or ".join(keys) + ("" if turns_field else pairs), show_value(", ".join([*record][:8]))
            raise RecordProblem("missing-field", f"no conversation: it needs the key {choices}; its keys are {shown}")
        if not turns:
            raise RecordProblem("no-turns", "the conversation has no messages")
        ignored_keys = ignored.intersection(record).difference([key, system_key])
        notes.update(name for name in ignored_keys if not _is_empty(record[name]))
        system = "" if system_key is None else require(record[system_key], str, f"`{system_key}`")
        if not system:
            return turns, num_prompt_turns
        first = turns[0] if isinstance(turns[0], dict) else {}
        if any(str(first.get(key)).lower() == "system" for key in ROLE_KEYS):
            notes.update(["system"] if all(first.get(key) != system for key in TEXT_KEYS) else [])
            return turns, num_prompt_turns
        return [{"role": "system", "content": system}, *turns], num_prompt_turns + (num_prompt_turns > 0)

    def _read_message(self, turn: object, number: int, notes: set[str]) -> tuple[Message, bool]:
        """Convert the `number`-th turn (from 1) to a message; also return whether its role is one of CALL_ROLES."""
        turn = require(turn, dict, where := f"message {number}")
        name = message_role(turn, number)
        is_call = name.lower() in CALL_ROLES
        role = self._reply_role if is_call else map_role(name, self._roles, where)
        text = turn.get("content", turn.get("value"))
        if len(turn) == 2 and isinstance(text, str) and not is_call and not self._drops_reasoning:
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
        tool_calls = parse_json(message.get("tool_calls"))
        if _is_empty(tool_calls):
            message.pop("tool_calls", None)
        if "tool_calls" in message:
            calls = read_objects(tool_calls, f"{where}: `tool_calls`")
            message["tool_calls"] = [_complete_call(call, where) for call in calls]
        elif is_call and (text := content_text(message)).strip():
            surrounding_text, message["tool_calls"], is_reordered = _parse_calls(text, where, self._tag_pairs)
            notes.update([REORDERED_REPLY] if is_reordered else [])
            del message["content"]
            if surrounding_text:
                message["content"] = surrounding_text
        elif (is_call or message["role"] == self._reply_role) and any(key in message for key in ARGUMENT_KEYS):
            call = {key: message.pop(key) for key in ("name", *ARGUMENT_KEYS) if key in message}
            message["tool_calls"] = [_read_call(call, where)]
        function_call = parse_json(message.get("function_call"))  # OpenAI's older form of `tool_calls`
        if _is_empty(function_call) or (isinstance(function_call, str) and function_call.strip().lower() in _NO_CALL):
            message.pop("function_call", None)
        elif "tool_calls" not in message:
            del message["function_call"]
            message["tool_calls"] = [_read_call(function_call, f"{where}: `function_call`")]
        if is_call and "tool_calls" not in message:
            places = "neither JSON in `content` or `value`, nor keys `name` and `arguments`"
            raise RecordProblem("bad-call", f"{where} has no tool call: {places}")

    def _read_reasoning(self, message: Message, number: int, notes: set[str]) -> None:
        texts = [require(message[key], str, f"message {number}: `{key}`") for key in REASONING_KEYS if key in message]
        if not self._drops_reasoning:
            for key in REASONING_KEYS if texts else ():
                message.setdefault(key, texts[0])
            return
        for key in REASONING_KEYS:
            message.pop(key, None)
        if message["role"] == self._reply_role and ("content" in message or texts):
            text = content_text(message)
            answer_text = drop_thoughts(text, self._tag_pairs)
            notes.update([OTHER_THOUGHTS] if has_other_tags(answer_text) else [])
            if answer_text != text or "content" not in message:
                message["content"] = answer_text


def last_turn(roles: Sequence[str | None], assistant_role: str) -> int:
    """Return where the last turn's replies begin: after the last message that is neither a reply nor a tool result.

    >>> last_turn(["system", "user", "assistant", "user", "assistant", "tool", "assistant"], "assistant")
    4
    """
    model_roles = {assistant_role, *TOOL_ROLES}
    return max((number + 1 for number, role in enumerate(roles) if role not in model_roles), default=0)


def find_pair(record: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the keys under which a record or a turn has a question and its answer; None if one is missing."""
    question_key, answer_key = _find_key(record, QUESTION_KEYS), _find_key(record, ANSWER_KEYS)
    return None if question_key is None or answer_key is None else (question_key, answer_key)


def _find_key(record: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    """Return the first key with a value that is not empty, or else the first whose value is not null."""
    given_keys = [key for key in keys if record.get(key) is not None]
    filled_keys = given_keys if len(given_keys) < 2 else [key for key in given_keys if not _is_empty(record[key])]
    return next(iter(filled_keys or given_keys), None)


def read_flag(turn: Mapping[str, Any], where: str) -> bool | None:
    """Return whether the flags of a turn or a record say to train on it; None if it has no flag.

    Raises:
        RecordProblem: If a flag is not true, false, 1 or 0.

    >>> read_flag({"weight": 1, "masked": True}, ""), read_flag({"role": "user", "loss": None}, "")
    (False, None)
    """
    flag: bool | None = None
    if where and MASKED_ROLE_KEY in turn:
        raise RecordProblem("bad-field", f"{where}`mask` may mean either; use `loss_mask` or `masked`")
    for key, value in turn.items():
        if value is None or key not in LEARN_KEYS:
            continue
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):
            shown = show_value(value) if isinstance(value, (int, float)) else type_name(value)
            raise RecordProblem("bad-field", f"{where}`{key}` is {shown}, not true, false, 1 or 0")
        is_trained = bool(value) is LEARN_KEYS[key]
        flag = is_trained if flag is None else flag and is_trained
    return flag


def message_role(message: Mapping[str, Any], number: int) -> str:
    """Return the `role` or `from` of the `number`-th message (from 1), before mapping.

    Raises:
        RecordProblem: If the message has neither key, or the value is not a text.
    """
    for key in ROLE_KEYS:
        value = message.get(key)
        if value is not None:
            return require(value, str, f"message {number}: `{key}`")
    raise RecordProblem("missing-field", f"message {number}: it has no key `role` or `from`")


def message_text(message: Mapping[str, Any], number: int) -> str:
    """Return the text under `content` or `value` of the `number`-th message (from 1), with parts joined.

    Raises:
        RecordProblem: If the message has neither key, or the value is neither a text nor a list of text parts.
    """
    for key in TEXT_KEYS:
        if message.get(key) is not None:
            return join_parts(_read_content(key, message[key], number))
    raise RecordProblem("missing-field", f"message {number}: it has no text under `content` or `value`")


def map_role(role: str, roles: Mapping[str, str], where: str) -> str:
    """Return the template's role for a record's role, which is matched exactly or in lower case.

    Raises:
        RecordProblem: If `roles` does not have the role.
    """
    mapped_role = roles.get(role) or roles.get(role.lower())
    if mapped_role is None:
        problem = f"unknown role {show_value(role)}; add it to `role_mapping` (known: {', '.join(sorted(roles))})"
        raise RecordProblem("unknown-role", f"{where}: {problem}")
    return mapped_role


def parse_json(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Parse a text that is a JSON list, object or null; return any other value unchanged.

    Datasets store such values as text because an Arrow column cannot hold objects with different keys.

    >>> parse_json('[{"name": "f"}]'), parse_json("f"), parse_json(3)
    ([{'name': 'f'}], 'f', 3)
    """
    if isinstance(value, str) and (value.lstrip()[:1] in ("[", "{") or value.strip() == "null"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def read_objects(value: object, name: str) -> list[dict[str, Any]]:
    """Return a list of objects; the list, each object and its `function` may be stored as JSON text.

    Raises:
        RecordProblem: If the value is neither a list of objects nor empty.

    >>> read_objects(['{"name": "f"}'], "`tools`"), read_objects("", "`tools`")
    ([{'name': 'f'}], [])
    """
    decoded = parse_json(value)
    if decoded is None or _is_empty(decoded):
        return []
    items = enumerate(require(decoded, list, name), 1)
    objects = [require(parse_json(item), dict, f"{name}: item {number}") for number, item in items]
    return [{**item, "function": parse_json(item["function"])} if "function" in item else item for item in objects]


def require(value: object, kind: type[_T], where: str) -> _T:
    """Check the type of a value, and return the value.

    Raises:
        RecordProblem: If the value has another type.
    """
    if not isinstance(value, kind):
        raise RecordProblem("bad-field", f"{where} is {type_name(value)}, not {_KINDS[kind]}")
    return value


def _is_empty(value: object) -> bool:
    """Tell whether a value is null, false, 0 or blank, or contains only such values.

    In an Arrow table every row has all keys of a column, so a row without a value has null or an empty value.
    """
    items = list(value.values()) if isinstance(value, dict) else value
    if isinstance(items, list):
        return all(map(_is_empty, items))
    return not (items.strip() if isinstance(items, str) else items)


def _refuse_media(holder: Mapping[str, Any], where: str) -> None:
    for key, value in holder.items():
        if key in MEDIA_KEYS and not _is_empty(parse_json(value)):
            raise RecordProblem("bad-field", f"{where} has `{key}`, but only text can be encoded")


def _read_turns(value: object, key: str) -> list[Any]:
    """Return the turns of a record.

    They may be a list of turns, a list of question-answer pairs, an object of lists (one list per key, as in columnar
    tables), or JSON text of any of these.
    """
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
        question, read_keys = _read_question(turn, pair[0])
        used_keys = {*read_keys, pair[1], "system", *ARGUMENT_KEYS}  # here, arguments are metadata
        reply_fields = {key: value for key, value in turn.items() if key not in used_keys}
        turns += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": turn[pair[1]], **reply_fields},
        ]
    return turns


def _read_question(holder: Mapping[str, Any], key: str) -> tuple[Any, list[str]]:
    """Return the question under a key, with the context of an instruction behind it, and the keys that were read."""
    keys = [key, *(name for name in CONTEXT_KEYS if key == "instruction" and holder.get(name))]
    if len(keys) == 1:
        return holder[key], keys
    return "\n\n".join(require(holder[name], str, f"`{name}`") for name in keys), keys


def _read_pair(record: Mapping[str, Any], pair: tuple[str, str]) -> tuple[list[Any], int]:
    """Return the turns of a question and its answer, and the number of turns that are the prompt and so masked.

    The question and the answer may be lists of messages. The number is 0 unless the question is a list. The replies in
    `history` are trained on if the question is a text, as in LlamaFactory and ms-swift.
    """
    question_key, answer_key = pair
    turns: list[Any] = []
    history = parse_json(record.get("history")) or []
    for number, exchange in enumerate(history if isinstance(history, list) else [history], 1):
        if not isinstance(exchange, list) or len(exchange) != 2:
            raise RecordProblem("bad-field", f"`history`: round {number} is not a question and an answer")
        turns += [{"role": "user", "content": exchange[0]}, {"role": "assistant", "content": exchange[1]}]
    question, reply = _find_messages(record[question_key]), _find_messages(record[answer_key])
    if isinstance(question, list):
        turns += question
    else:
        question = require(_read_question(record, question_key)[0], str, f"`{question_key}`")
        turns.append({"role": "user", "content": question})
    num_prompt_turns = len(turns) if isinstance(question, list) else 0
    if answer_key == CALLS_KEY:
        calls = [_read_call(call, f"`{CALLS_KEY}`") for call in read_objects(reply, f"`{CALLS_KEY}`")]
        reply = [{"role": "assistant", "tool_calls": calls}]
    elif not isinstance(reply, list):
        reply = [{"role": "assistant", "content": require(reply, str, f"`{answer_key}`")}]
    return turns + reply, num_prompt_turns


def _find_messages(value: object) -> object:
    """Return a list of messages, parsing it if it is JSON text; return any other value, even other JSON, unchanged."""
    items = parse_json(value)
    messages = [*map(parse_json, items)] if isinstance(items, list) else []
    are_messages = [isinstance(item, dict) and any(key in item for key in ROLE_KEYS) for item in messages]
    return messages if isinstance(value, list) or (messages and all(are_messages)) else value


def _read_content(key: str, value: object, number: int) -> str | list[dict[str, str]]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        problem = f"`{key}` is {type_name(value)}, not a text or a list of parts"
        raise RecordProblem("bad-field", f"message {number}: {problem}")
    return [_read_part(part, f"message {number}, part {place}") for place, part in enumerate(value, 1)]


def _sort_parts(turns: Sequence[Any], notes: set[str]) -> Iterator[Any]:
    """Move the thoughts and calls among the parts of contents, as in LLaMA-Factory v1, to keys of the turns.

    The text of a part is under `text`, `value` or `content`, as in LLaMA-Factory and axolotl. If the turn has a thought
    or calls of its own, the parts stay, and are refused.
    """
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get("content"), list):
            yield turn
            continue
        texts, thoughts, calls = list[Any](), list[Any](), list[Any]()
        for part in turn["content"]:
            values = [part[key] for key in _PART_KEYS if part.get(key) is not None] if isinstance(part, dict) else []
            kind = part.get("type") if values and isinstance(values[0], str) else None
            if kind in ("reasoning", "thinking"):
                thoughts.append(values[0])
            elif kind == "tool_call":
                calls.append(values[0])
            else:
                texts.append({**part, "text": values[0]} if values else part)
            notes.update([REORDERED_REPLY] if calls and kind != "tool_call" else [])
        pairs = ((REASONING_KEYS[0], "\n\n".join(thoughts)), ("tool_calls", calls))
        moved = {key: value for key, value in pairs if value}
        is_clear = not any(map(turn.get, moved))
        yield {**turn, "content": texts or None if moved else texts, **moved} if is_clear else turn


def _read_part(part: object, where: str) -> dict[str, str]:
    part = require(part, dict, where)
    kind = part.get("type")
    if kind != "text":
        shown = show_value(kind) if isinstance(kind, str) else type_name(kind) if "type" in part else "missing"
        raise RecordProblem("bad-field", f"{where}: its type is {shown}, but only parts of type 'text' can be encoded")
    _refuse_media(part, where)
    # Drop the other keys: a template may mistake `image_url: null` for an image.
    return {"type": "text", "text": require(part.get("text"), str, f"{where}: `text`")}


def join_parts(content: str | Sequence[dict[str, Any]]) -> str:
    """Return the text of a content, which is a text or a list of text parts."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def content_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message's content; empty if there is no content."""
    return join_parts(message.get("content") or "")


def function_of(call: dict[str, Any]) -> dict[str, Any]:
    """Return the object with the name of a tool or a call: its `function` if it has one, else the object itself."""
    function = call.get("function")
    return function if isinstance(function, dict) else call


def change_call(call: dict[str, Any], **changes: object) -> dict[str, Any]:
    """Return a call with some values of its function replaced."""
    function = function_of(call)
    new_function = {**function, **changes}
    return new_function if function is call else {**call, "function": new_function}


def _merge_calls(reply: Message, calls: Sequence[Message], notes: set[str]) -> None:
    """Merge tool-call turns into the reply before them, including their texts and thoughts."""
    reply_text = content_text(reply)
    has_text = bool(reply_text.strip())
    for call in calls:
        has_thought = any(key in call for key in REASONING_KEYS)
        if ("tool_calls" in reply and "content" in call) or (has_thought and (has_text or "tool_calls" in reply)):
            notes.add(REORDERED_REPLY)
        reply["tool_calls"] = tool_calls = reply.get("tool_calls", [])
        tool_calls += call["tool_calls"]
    for key in ("content", *REASONING_KEYS):
        texts = [content_text(call) if key == "content" else call.get(key) for call in calls]
        if any(texts):
            reply[key] = "\n\n".join(filter(None, [reply_text if key == "content" else reply.get(key), *texts]))
    for call in calls:
        for key, value in call.items():
            reply.setdefault(key, value)


def _parse_calls(text: str, where: str, pairs: tuple[TagPair, ...]) -> tuple[str, list[dict[str, Any]], bool]:
    """Parse the text of a tool-call turn.

    Calls are JSON objects or lists of objects. They may be in Hermes' `<tool_call>` tags with text around them, and a
    thought may come first. Glaive's data has the arguments in single quotes, so that form is tried, too.

    Returns:
        The text around the calls, including a thought; the calls; and whether text follows a call.
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
    """Split a text into the pieces of text before, between and after its tool calls, and the calls.

    Raises:
        ValueError: If the text contains no valid calls, or a tag is not closed.
    """
    opening, closing = "<tool_call>", "</tool_call>"
    if text.startswith(("{", "["), skip_blanks(text, begin, len(text))) or opening not in text:
        text, begin = f"{opening}{text[begin:]}{closing}", 0
    texts: list[str] = []
    calls: list[Any] = []
    while (position := text.find(opening, begin)) >= 0:
        texts.append(text[begin:position].strip())
        decoded_calls, begin = _decode_calls(text, position + len(opening))
        if not text.startswith(closing, begin):
            raise ValueError("a tag that is not closed")
        calls += decoded_calls
        begin += len(closing)
    return [*texts, text[begin:].strip()], calls


def _decode_calls(text: str, begin: int) -> tuple[list[Any], int]:
    """Decode consecutive JSON objects, and lists of them, from `begin` on; return the objects and where they end."""
    decoder, objects = json.JSONDecoder(), []
    position = _BETWEEN_CALLS.match(text, begin).end()  # type: ignore[union-attr]  # it matches any text
    while text.startswith(("{", "["), position):
        value, position = decoder.raw_decode(text, position)
        objects += value if isinstance(value, list) else [value]
        position = _BETWEEN_CALLS.match(text, position).end()  # type: ignore[union-attr]
    return objects, position


def _unquote_arguments(text: str) -> str:
    """Rewrite arguments in single quotes as JSON strings."""
    pieces, position = [], 0
    while (opens := _QUOTE_OPENS.search(text, position)) and (closes := _QUOTE_CLOSES.search(text, opens.end())):
        pieces += [text[position : opens.end() - 1], json.dumps(text[opens.end() : closes.start() + 1])]
        position = closes.end()
    return "".join([*pieces, text[position:]])


def _complete_call(call: object, where: str) -> dict[str, Any]:
    """Return a call in the same form, with `arguments` in any case.

    Raises:
        RecordProblem: If it has no name.
    """
    function = function_of(call) if isinstance(call, dict) else {}
    if not isinstance(call, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise RecordProblem("bad-call", f"{where}: a tool call has no `name`: {show_value(call)}")
    if function.keys().isdisjoint(CALL_KEYS) and any(isinstance(value, dict) and value for value in function.values()):
        raise RecordProblem("bad-call", f"{where}: a tool call has no `arguments`: {show_value(call)}")
    candidates = (function.get(key) for key in CALL_KEYS)
    # APIs write null or an empty text for a call without arguments.
    return change_call(call, arguments=next((value for value in candidates if parse_json(value) not in (None, "")), {}))


def _read_call(call: object, where: str) -> dict[str, Any]:
    """Return a call in OpenAI's format; arguments that are JSON text are parsed."""
    call_object = _complete_call(call, where)
    id_fields = {key: value for key, value in call_object.items() if key in ("id", "index")}
    function = function_of(call_object)
    name_and_arguments = {"name": function["name"], "arguments": parse_json(function["arguments"])}
    return {**id_fields, "type": "function", "function": name_and_arguments}


def message_spans(turn: Mapping[str, Any], number: int, message: Message) -> list[CharacterSpan]:
    """Return the spans of a turn's text that its keys, or flags of its content's parts, exclude from training.

    Args:
        turn: The turn.
        number: Number of the turn, from 1.
        message: The message read from the turn, after tool calls and dropped thoughts were removed from its content.

    Raises:
        RecordProblem: If a span is not within the text, or the message's content differs from the turn's text.
    """
    if len(turn) == 2 and isinstance(turn.get("content", turn.get("value")), str):
        return []
    content = next((turn[key] for key in TEXT_KEYS if isinstance(turn.get(key), (str, list))), "")
    text = join_parts(content)
    spans: list[CharacterSpan] = []
    for key in SPAN_KEYS:
        spans += parse_spans(turn.get(key), text, f"message {number}: `{key}`")
    position = 0
    for part in content if isinstance(content, list) else []:
        end = position + len(part["text"])
        if read_flag(part, f"message {number}: ") is False and position < end:  # as in axolotl's data
            spans.append((position, end))
        position = end
    if spans and text != content_text(message):
        problem = "spans cannot be masked in a text with tool calls or dropped thoughts"
        raise RecordProblem("bad-field", f"message {number}: {problem}")
    return spans


def parse_spans(value: object, text: str, name: str) -> list[CharacterSpan]:
    """Parse the masked spans of a text, in the format of axolotl or Fast-LLM.

    Raises:
        RecordProblem: If a span is not within the text.

    >>> parse_spans([[0, 1], {"begin_offset": 2, "end_offset": 2, "train": True}], "abc", "spans")
    [(0, 2)]
    """
    parsed_spans = parse_json(value)
    spans = []
    for item in parsed_spans if isinstance(parsed_spans, list) else [] if parsed_spans is None else [parsed_spans]:
        keys = ("begin_offset", "end_offset", "train")
        values: list[Any] = [*item, False] if isinstance(item, list) else []
        values = [item.get(key) for key in keys] if isinstance(item, dict) else values
        if [*map(type, values)] != [int, int, bool] or not 0 <= values[0] <= values[1] + 1 <= len(text):
            form = "a pair, or an object of `begin_offset`, `end_offset` and `train`"
            raise RecordProblem("bad-field", f"{name}: {show_value(item)} is not a span of the text: {form}")
        spans += [(values[0], values[1] + 1)] if values[0] <= values[1] and not values[2] else []
    return spans


def _read_variables(record: Mapping[str, Any]) -> dict[str, Any]:
    if record.keys().isdisjoint(_VARIABLE_SOURCES):
        return {}
    # Many datasets store objects as JSON text, because an Arrow column cannot hold objects with different keys.
    documents = read_objects(record.get("documents"), "`documents`")
    tools = next(filter(None, (read_objects(record.get(key), f"`{key}`") for key in TOOL_KEYS)), None) or [
        {"type": "function", "function": function}  # OpenAI's older form
        for function in read_objects(record.get("functions"), "`functions`")
    ]
    for number, tool in enumerate(tools):
        if isinstance(parameters := function_of(tool).get("parameters"), str):
            tools[number] = change_call(tool, parameters=parse_json(parameters))
    variables = {name: value for name, value in (("tools", tools), ("documents", documents)) if value}
    kwargs = require(parse_json(record.get("chat_template_kwargs")) or {}, dict, "`chat_template_kwargs`")
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    if name := next((name for name in RESERVED_VARIABLES if name in kwargs), None):
        raise RecordProblem("bad-field", f"`chat_template_kwargs` cannot set {name!r}; make it a key of the record")
    columns = {key: record[key] for key in VARIABLE_KEYS if record.get(key) is not None}
    columns = {key: require(value, VARIABLE_KEYS[key], f"`{key}`") for key, value in columns.items()}
    return {**columns, **kwargs, **variables}


def strings_in(value: object) -> Iterator[str]:
    """Yield every string in nested JSON data, including keys, in no particular order."""
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


def check_texts(line: bytes, value: object) -> None:
    """Check all strings in JSON data that was read from a line.

    Raises:
        RecordProblem: If a string contains a lone surrogate.
    """
    if _SURROGATE.search(line):
        for text in strings_in(value):
            check_text(text)


def check_text(text: str) -> bytes:
    """Encode a text as UTF-8.

    Raises:
        RecordProblem: If the text contains a lone surrogate, which `json.loads` returns for an unpaired escape.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        surrogate = f"U+{ord(text[error.start]):04X} at character {error.start}"
        raise RecordProblem("bad-text", f"a text has a lone surrogate ({surrogate})") from None
