"""Message construction: concatenate fields of a record, and mask some of them.

`message_construction: [role, instruction, conversations]` sets the order. A field is a text, or a list of messages with
`from` and `value` (or `role` and `content`). Texts are tokenized separately and their tokens concatenated, so that a
boundary between trainable and masked text is always a boundary between tokens. Prefixes, separators, BOS and whatever a
`loss_masking_jq_patterns` entry selects (`dsindex.text.jq`) are masked. EOS is trainable iff the part before it is: a
model that is trained on a reply also learns to end it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dsindex.errors import InputError, RecordProblem
from dsindex.instruction.records import (
    hidden_spans,
    last_turn,
    map_role,
    message_role,
    message_spans,
    message_text,
    read_flag,
)
from dsindex.text.jq import FieldPattern, PatternAnswers, Patterns, parse_field_patterns, parse_mask_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dsindex.instruction.config import InstructionConfig
    from dsindex.instruction.records import CharacterSpan
    from dsindex.text.jq import MaskPattern


# Evaluate the commonest jq patterns without jq: names of fields, and messages selected by the text under a key.
#
# The results are those of jq. So a record is left to jq if a value in use has a number, which jq may write differently,
# or anything else in which the two could differ.

_NAME = r"""\.(?:(?P<name{0}>[A-Za-z_]\w*)|\s*\[\s*"(?P<bracket{0}>[^"\\]+)"\s*\]|"(?P<quoted{0}>[^"\\]+)")"""
_FIELD = re.compile(rf"\s*{_NAME.format('')}\s*", re.ASCII)
_TEST = re.compile(rf"""\s*{_NAME.format("")}\s*(?P<operator>==|!=)\s*"(?P<text>[^"\\]*)"\s*""", re.ASCII)
_SELECT = re.compile(r"\s*select\s*\((?P<tests>.*)\)\s*", re.DOTALL)
_OR = re.compile(r"or\b")
_DEEPEST = 64
"""Nesting of a record up to which it is read without jq."""
_PLAIN_INTEGER = 1 << 53

_Test = tuple[str, bool, str]
"""Key of a message, whether its value must be the text or must not be, and the text."""


class PlainPatterns:
    """Patterns that need no jq. Made by `plain_patterns`.

    Args:
        fields: Name -> key of the record.
        masks: For each mask its field, and tests of which a message must pass one to be selected; None for all.
    """

    def __init__(self, fields: Mapping[str, str], masks: Sequence[tuple[str, Sequence[_Test] | None]]) -> None:
        self._fields = dict(fields)
        self._masks = list(masks)

    def read(self, record: Mapping[str, Any]) -> PatternAnswers | None:
        """Return what jq would return for a record, or None if that is not certain."""
        fields = {name: record.get(key) for name, key in self._fields.items()}
        in_use = set(self._fields.values())
        for key, value in record.items():
            if not _is_plain(value, has_numbers=key not in in_use, depth=_DEEPEST):
                return None
        if any(tests is not None and not _are_messages(fields[name]) for name, tests in self._masks):
            return None
        masks = [_select(fields[name], tests) for name, tests in self._masks]
        return PatternAnswers(
            fields={name: {"value": value} for name, value in fields.items()},
            masks=[None if mask is None else {"value": mask} for mask in masks],
        )


def plain_patterns(fields: Sequence[FieldPattern], masks: Sequence[MaskPattern]) -> PlainPatterns | None:
    """Return patterns that need no jq, or None if one of them does.

    >>> from dsindex.text.jq import parse_field_patterns, parse_mask_pattern
    >>> mask = parse_mask_pattern('.turns | select(.from == "human" or .from == "system")')
    >>> found = plain_patterns(parse_field_patterns([".turns"]), [mask])
    >>> found.read({"turns": [{"from": "human"}, {"from": "gpt"}]}).selected(0)
    [True, False]
    """
    keys = {field.name: _FIELD.fullmatch(field.pattern) for field in fields}
    found = [(mask.field, None if mask.rest is None else _read_tests(mask.rest)) for mask in masks]
    needs_jq = any(mask.rest is not None and tests is None for mask, (_, tests) in zip(masks, found, strict=True))
    named = {name: _key_of(match) for name, match in keys.items() if match is not None}
    return None if needs_jq or len(named) < len(keys) else PlainPatterns(named, found)


def _are_messages(value: object) -> bool:
    """Tell whether a value is missing, or has objects only, whose keys jq can look up."""
    if value is None or isinstance(value, dict):
        return True
    return isinstance(value, list) and all(isinstance(element, dict) for element in value)


def _select(value: Any, tests: Sequence[_Test] | None) -> list[bool] | None:  # noqa: ANN401 - any JSON value
    """Return which elements of a value are selected; None if there is no value."""
    if value is None:
        return None
    elements = value if isinstance(value, list) else [value]
    if tests is None:
        return [True] * len(elements)
    return [any((element.get(key) == text) is wanted for key, wanted, text in tests) for element in elements]


def _read_tests(rest: str) -> list[_Test] | None:
    selected = _SELECT.fullmatch(rest)
    if selected is None:
        return None
    tests = []
    position, text = 0, selected["tests"]
    while (test := _TEST.match(text, position)) is not None:
        tests.append((_key_of(test), test["operator"] == "==", test["text"]))
        position = test.end()
        if position == len(text):
            return tests
        if (joined := _OR.match(text, position)) is None:
            return None
        position = joined.end()
    return None


def _key_of(match: re.Match[str]) -> str:
    return str(match["name"] or match["bracket"] or match["quoted"])


def _is_plain(value: object, *, has_numbers: bool, depth: int) -> bool:
    """Tell whether jq returns a value as it is, or reads it without fail if it may have numbers."""
    if isinstance(value, str):
        return "\0" not in value
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, int):
        return has_numbers and -_PLAIN_INTEGER < value < _PLAIN_INTEGER
    if depth == 0 or not isinstance(value, (dict, list)):
        return False
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return all(_is_plain(item, has_numbers=has_numbers, depth=depth - 1) for item in items)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPart:
    """One text of a prompt: a field, or a message of one."""

    text: str
    trainable: bool = True
    prefix: str = ""
    """Added before the text; never trainable."""
    role: str | None = None
    """Mapped role of a message."""
    place: tuple[str, int | None]
    """Field, and index of the message in it, or None if the field is a text."""
    hidden: tuple[CharacterSpan, ...] = ()
    """Spans of the text that are not trainable, in order."""

    @property
    def is_message(self) -> bool:
        """Whether the part is a message of a list, rather than a text field."""
        return self.place[1] is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment of the token sequence: a part's text, a prefix or separator, or a special token."""

    text: str
    trainable: bool
    place: tuple[str, int | None] | None = None
    """Origin of a part's text, as in PromptPart; None for other segments."""
    special: str | None = None
    """Name of a special token instead of a text."""


class MessageConstruction:
    """Compiled `message_construction` and `loss_masking_jq_patterns`. Picklable and thread-safe.

    Args:
        config: A configuration with `message_construction`.
        from_fields: Records are mappings of field names to values, to which `jq_patterns` were applied before.

    Raises:
        InputError: If a pattern is not jq or not allowed, or names a field that is not in `message_construction`.
    """

    def __init__(self, config: InstructionConfig, *, from_fields: bool = False) -> None:
        names = config.message_construction
        # Quoted, so that any key is possible: `.["my-field"]`.
        own = {name: f'.["{name}"]' for name in names}
        patterns = own if from_fields else config.jq_patterns or own
        fields = {field.name: field for field in parse_field_patterns(patterns)}
        if missing := [name for name in names if name not in fields]:
            raise InputError(f"message_construction: expected a jq pattern for the field {missing[0]!r}, got none")
        self._fields = [fields[name] for name in names]
        self._masks = [parse_mask_pattern(pattern) for pattern in config.loss_masking_jq_patterns]
        for mask in self._masks:
            if mask.field not in names:
                raise InputError(
                    f"loss_masking_jq_patterns: {mask.pattern!r} masks the field {mask.field!r}, which is not one of "
                    f"message_construction ({', '.join(names)})"
                )
        spans = [
            FieldPattern(name=_spans_of(name), pattern=pattern) for name, pattern in config.loss_masking_spans.items()
        ]
        self._patterns = Patterns([*self._fields, *spans], self._masks)
        self._plain = None if spans else plain_patterns(self._fields, self._masks)
        self._config = config

    def read(self, record: Mapping[str, Any]) -> PatternAnswers:
        """Return the answers of the patterns for `read_fields` and `build_parts`; the commonest need no jq.

        Raises:
            RecordProblem: If the record nests too deeply to be written as JSON.
        """
        answers = None if self._plain is None else self._plain.read(record)
        return self._patterns.read(record) if answers is None else answers

    def read_fields(self, answers: PatternAnswers) -> dict[str, Any]:
        """Return the fields of a record by name, in the order of construction; optional ones may be missing.

        Raises:
            RecordProblem: If a field is missing, or is neither a text nor a list of messages.
        """
        fields = {}
        for field in self._fields:
            value = answers.value(field.name)
            if value is not None:
                fields[field.name] = value
            elif field.name not in self._config.lenient_fields:
                raise RecordProblem(
                    "missing-field",
                    f"field {field.name!r}: pattern `{field.pattern}` matches nothing; "
                    "name the field under `optional_fields` if records may lack it",
                )
        return fields

    def build_parts(self, fields: Mapping[str, Any], answers: PatternAnswers) -> list[PromptPart]:
        """Return the parts of all fields in order, each with its mask.

        Raises:
            RecordProblem: If there is no turn, a role is unknown, a message lacks a key, a pattern fails or selects
                nothing.
        """
        names = [name for name in self._config.message_construction if name in fields]
        parts = [part for name in names for part in self._field_parts(name, fields[name])]
        for number, part in enumerate(parts):
            if part.place[0] in self._config.loss_masking_spans and not part.is_message:
                spans = hidden_spans(answers.value(_spans_of(part.place[0])), part.text, f"field {part.place[0]!r}")
                parts[number] = replace(part, hidden=tuple(sorted(spans)))
        if not any(part.text for part in parts):
            raise RecordProblem("no-turns", "expected at least one text, got none")
        masked = self._select_masked(fields, answers)
        first_learnt = self._first_learnt(parts)
        return [
            replace(part, trainable=False)
            if part.place in masked or (part.is_message and number < first_learnt)
            else part
            for number, part in enumerate(parts)
        ]

    def lay_out(self, parts: Sequence[PromptPart]) -> list[Segment]:
        """Return the segments of one sequence: BOS, parts with prefixes and separators, EOS."""
        config = self._config
        has_bos, has_eos = "bos_token" in config.special_tokens, "eos_token" in config.special_tokens
        segments = [Segment(text="", trainable=False, special="bos_token")] if has_bos else []
        for number, part in enumerate(parts):
            if before := (config.separator if number else "") + part.prefix:
                segments.append(Segment(text=before, trainable=False))
            segments += _cut_part(part)
            is_last = number == len(parts) - 1
            ends_reply = config.eos_after == "reply" and part.is_message and part.trainable
            if has_eos and (is_last or ends_reply):
                segments.append(Segment(text="", trainable=part.trainable, special="eos_token"))
        return segments

    def _select_masked(self, fields: Mapping[str, Any], answers: PatternAnswers) -> set[tuple[str, int | None]]:
        masked: set[tuple[str, int | None]] = set()
        for number, mask in enumerate(self._masks):
            if mask.field not in fields:  # optional, otherwise `read_fields` would have raised
                continue
            selected = answers.selected(number)
            if not any(selected) and self._config.unmatched_patterns == "refuse":
                raise _no_match(mask)
            is_list = isinstance(fields[mask.field], list)
            masked.update((mask.field, i if is_list else None) for i, is_masked in enumerate(selected) if is_masked)
        return masked

    def _first_learnt(self, parts: Sequence[PromptPart]) -> int:
        """Return the number of the part before which no message is trainable."""
        if self._config.learn == "all":
            return 0
        # Other parts than messages do not end a turn.
        assistant = self._config.assistant_role
        return last_turn([part.role if part.is_message else assistant for part in parts], assistant)

    def _field_parts(self, name: str, value: object) -> list[PromptPart]:
        if isinstance(value, str):
            return [PromptPart(text=value, place=(name, None))]
        if not isinstance(value, list):
            raise RecordProblem("bad-field", f"field {name!r}: expected a text or a list of messages")
        if not value:
            raise RecordProblem("no-turns", f"field {name!r}: expected at least one message, got an empty list")
        return [self._message_part(name, index, message) for index, message in enumerate(value)]

    def _message_part(self, name: str, index: int, message: object) -> PromptPart:
        if not isinstance(message, dict):
            raise RecordProblem("bad-field", f"field {name!r}, message {index + 1}: expected an object")
        role = map_role(message_role(message, index + 1), self._config.role_mapping, index + 1)
        return PromptPart(
            text=message_text(message, index + 1),
            trainable=read_flag(message, f"message {index + 1}: ") is not False,
            role=role,
            prefix=self._config.role_prefixes.get(role, ""),
            place=(name, index),
            hidden=tuple(sorted(message_spans(message, message_text(message, index + 1), index + 1))),
        )


def _spans_of(field: str) -> str:
    return f"spans of {field}"


def _cut_part(part: PromptPart) -> Iterator[Segment]:
    """Yield a part's text as a whole, or cut at the borders of its hidden spans, as Fast-LLM tokenizes it."""
    if not part.hidden or not part.trainable:
        yield Segment(text=part.text, trainable=part.trainable, place=part.place)
        return
    position = 0
    for begin, end in [*part.hidden, (len(part.text), len(part.text))]:
        for text, trainable in ((part.text[position:begin], True), (part.text[max(begin, position) : end], False)):
            if text:
                yield Segment(text=text, trainable=trainable)
        position = max(position, end)


def group_exchanges(parts: Sequence[PromptPart]) -> list[list[int]]:
    """Cut a conversation between exchanges: before each masked message that follows a trainable one.

    Args:
        parts: The parts of one record.

    Returns:
        Positions of the messages of each exchange; parts that are not messages belong to none.
    """
    groups: list[list[int]] = []
    answered = True
    for number, part in enumerate(parts):
        if not part.is_message:
            continue
        if (answered and not part.trainable) or not groups:
            groups.append([])
        groups[-1].append(number)
        answered = part.trainable
    return groups


def _no_match(mask: MaskPattern) -> RecordProblem:
    return RecordProblem(
        "pattern-no-match",
        f"pattern `{mask.pattern}` selects nothing; set `unmatched_patterns: allow` if that may be",
    )
