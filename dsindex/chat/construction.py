"""Message construction: concatenate the fields of a record, and mask some of them.

`message_construction: [role, instruction, conversations]` sets the order. A field is a text, or a list of messages with
`from` and `value` (or `role` and `content`). Each text is tokenized separately, so a boundary between trainable and
masked text is always a boundary between tokens. Prefixes, separators, BOS and the text that a pattern of
`loss_masking_jq_patterns` selects (`dsindex.text.jq`) are masked. EOS is trainable if and only if the part before it is
trainable: a model that is trained on a reply also learns to end it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dsindex.chat.conversations import (
    last_turn,
    map_role,
    message_role,
    message_spans,
    message_text,
    parse_spans,
    read_flag,
    require,
)
from dsindex.errors import InputError, RecordProblem
from dsindex.text.fields import type_name
from dsindex.text.jq import PatternAnswers, Patterns, name_patterns, parse_mask_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dsindex.chat.config import InstructionConfig
    from dsindex.chat.thoughts import CharacterSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPart:
    """One text of a prompt: a text field, or one message of a field that is a list."""

    text: str
    trainable: bool = True
    prefix: str = ""
    """Text added before the part; never trainable."""
    role: str | None = None
    """Mapped role of a message; None for a text field."""
    place: tuple[str, int | None]
    """Field name, and index of the message in the field (None for a text field)."""
    masked_spans: tuple[CharacterSpan, ...] = ()
    """Spans of the text that are not trainable, in order."""

    @property
    def is_message(self) -> bool:
        """Whether the part is a message in a list, not a text field."""
        return self.place[1] is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A separately tokenized piece of a sequence: text of a part, a prefix with separator, or a special token."""

    text: str
    trainable: bool
    place: tuple[str, int | None] | None = None
    """Where the text comes from, as in PromptPart; None for prefixes, separators and special tokens."""
    special: str | None = None
    """Name of the special token if the segment is one; `text` is then empty."""


class MessageConstruction:
    """Compiled `message_construction` and `loss_masking_jq_patterns`. Picklable and thread-safe.

    Args:
        config: A configuration with `message_construction`.
        from_fields: Records already map field names to values, so `jq_patterns` are not applied.

    Raises:
        InputError: If a pattern is not valid or not allowed, or names a field that is not in `message_construction`.
    """

    def __init__(self, config: InstructionConfig, *, from_fields: bool = False) -> None:
        names = config.message_construction
        # jq accepts any key in quotes, such as `.["my-field"]`; `.my-field` would be a subtraction.
        default_patterns = {name: f'.["{name}"]' for name in names}
        patterns = default_patterns if from_fields else config.jq_patterns or default_patterns
        fields = name_patterns(patterns)
        if missing_names := [name for name in names if name not in fields]:
            raise InputError(f"message_construction: jq_patterns has no pattern for the field {missing_names[0]!r}")
        self._fields = {name: fields[name] for name in names}
        self._masks = [parse_mask_pattern(pattern) for pattern in config.loss_masking_jq_patterns]
        for mask in self._masks:
            if mask.field not in names:
                problem = f"{mask.pattern!r} masks the field {mask.field!r}, which is not in message_construction"
                raise InputError(f"loss_masking_jq_patterns: {problem} ({', '.join(names)})")
        masked_fields = [mask.field for mask in self._masks if mask.selector == "true"]
        self._optional = frozenset(masked_fields if config.optional_fields is None else config.optional_fields)
        spans = {_spans_name(name): pattern for name, pattern in config.loss_masking_spans.items()}
        self._patterns = Patterns(self._fields | spans, self._masks)
        self._config = config

    def read(self, record: Mapping[str, Any]) -> PatternAnswers:
        """Apply all patterns to a record; pass the result to `read_fields` and `build_parts`."""
        return self._patterns.read(record)

    def read_fields(self, answers: PatternAnswers) -> dict[str, Any]:
        """Return field name -> value, in the order of `message_construction`; optional fields may be missing.

        Raises:
            RecordProblem: If a field is missing, or is neither a text nor a list of messages.
        """
        fields = {}
        for name, pattern in self._fields.items():
            value = answers.value(name)
            if value is not None:
                fields[name] = value
            elif name not in self._optional:
                remedy = "add the field to `optional_fields` if records may lack it"
                problem = f"field {name!r}: the pattern `{pattern}` matches nothing; {remedy}"
                raise RecordProblem("missing-field", problem)
        return fields

    def build_parts(self, fields: Mapping[str, Any], answers: PatternAnswers) -> list[PromptPart]:
        """Return the parts of all fields in order, each marked as trainable or masked.

        Raises:
            RecordProblem: If there is no text, a role is unknown, a message lacks a key, or a pattern fails or
                selects nothing.
        """
        names = [name for name in self._config.message_construction if name in fields]
        parts = [part for name in names for part in self._field_parts(name, fields[name])]
        for number, part in enumerate(parts):
            if part.place[0] in self._config.loss_masking_spans and not part.is_message:
                spans = parse_spans(answers.value(_spans_name(part.place[0])), part.text, f"field {part.place[0]!r}")
                parts[number] = replace(part, masked_spans=tuple(sorted(spans)))
        if not any(part.text for part in parts):
            raise RecordProblem("no-turns", "the record has no text")
        masked = self._find_masked_places(fields, answers)
        first_trainable = self._find_first_trainable(parts)
        return [
            replace(part, trainable=False)
            if part.place in masked or (part.is_message and number < first_trainable)
            else part
            for number, part in enumerate(parts)
        ]

    def lay_out(self, parts: Sequence[PromptPart]) -> list[Segment]:
        """Return the segments of one sequence: BOS, the parts with their prefixes and separators, and EOS."""
        config = self._config
        has_bos, has_eos = "bos_token" in config.special_tokens, "eos_token" in config.special_tokens
        segments = [Segment(text="", trainable=False, special="bos_token")] if has_bos else []
        for number, part in enumerate(parts):
            if prefix := (config.separator if number else "") + part.prefix:
                segments.append(Segment(text=prefix, trainable=False))
            segments += _cut_part(part)
            is_last = number == len(parts) - 1
            ends_reply = config.eos_after == "reply" and part.is_message and part.trainable
            if has_eos and (is_last or ends_reply):
                segments.append(Segment(text="", trainable=part.trainable, special="eos_token"))
        return segments

    def _find_masked_places(self, fields: Mapping[str, Any], answers: PatternAnswers) -> set[tuple[str, int | None]]:
        places: set[tuple[str, int | None]] = set()
        for number, mask in enumerate(self._masks):
            if mask.field not in fields:  # an optional field; `read_fields` raised an error for any other
                continue
            is_selected = answers.read_mask(number)
            if not any(is_selected) and self._config.unmatched_patterns == "refuse":
                reason = "selects nothing; `unmatched_patterns: allow` accepts such records"
                raise RecordProblem("pattern-no-match", f"the pattern `{mask.pattern}` {reason}")
            is_list = isinstance(fields[mask.field], list)
            places.update((mask.field, i if is_list else None) for i, is_masked in enumerate(is_selected) if is_masked)
        return places

    def _find_first_trainable(self, parts: Sequence[PromptPart]) -> int:
        """Return the position of the first message that `learn` allows to be trainable."""
        if self._config.learn == "all":
            return 0
        # A text field counts as a reply here, because it must not end a turn.
        assistant = self._config.assistant_role
        return last_turn([part.role if part.is_message else assistant for part in parts], assistant)

    def _field_parts(self, name: str, value: object) -> list[PromptPart]:
        if isinstance(value, str):
            return [PromptPart(text=value, place=(name, None))]
        if not isinstance(value, list):
            raise RecordProblem("bad-field", f"field {name!r} is {type_name(value)}, not a text or a list of messages")
        if not value:
            raise RecordProblem("no-turns", f"field {name!r} has no messages")
        return [self._message_part(name, index, message) for index, message in enumerate(value)]

    def _message_part(self, name: str, index: int, message: object) -> PromptPart:
        message = require(message, dict, f"field {name!r}, message {index + 1}")
        role = map_role(message_role(message, index + 1), self._config.roles, f"message {index + 1}")
        text = message_text(message, index + 1)
        return PromptPart(
            text=text,
            trainable=read_flag(message, f"message {index + 1}: ") is not False,
            role=role,
            prefix=self._config.role_prefixes.get(role, ""),
            place=(name, index),
            masked_spans=tuple(sorted(message_spans(message, index + 1, {"content": text}))),
        )


def _spans_name(field: str) -> str:
    return f"spans of {field}"


def _cut_part(part: PromptPart) -> Iterator[Segment]:
    """Split a part's text at the boundaries of its masked spans; Fast-LLM tokenizes the pieces separately, too."""
    if not part.masked_spans or not part.trainable:
        yield Segment(text=part.text, trainable=part.trainable, place=part.place)
        return
    position = 0
    for begin, end in [*part.masked_spans, (len(part.text), len(part.text))]:
        for text, trainable in ((part.text[position:begin], True), (part.text[max(begin, position) : end], False)):
            if text:
                yield Segment(text=text, trainable=trainable)
        position = max(position, end)
