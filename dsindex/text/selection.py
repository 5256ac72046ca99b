"""What a build reads from its records: which are kept, and the values of its keys, line by line.

`Selection.read_lines` is the reference. A selection of names and paths alone is read faster by `whole_blocks.py`, with
the same result.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from dsindex.errors import InputError, RecordProblem
from dsindex.guarded.limits import Limits, default_limits
from dsindex.text.fields import Fault, Texts, find_fault, find_value, parse_record, show_place
from dsindex.text.joining import JOINED
from dsindex.text.jq import FieldPattern, open_patterns
from dsindex.text.keys import TextKey, parse_key
from dsindex.text.token_ids import Ids, decode_ids, find_id_fault

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.text.jq import PatternAnswers, Patterns


class Outcome(enum.Enum):
    """What became of a record that is neither kept nor bad."""

    FILTERED = "filtered"


FILTERED: Literal[Outcome.FILTERED] = Outcome.FILTERED
Values: TypeAlias = list[Texts] | list[Ids]
"""One value for each key."""
Judgement: TypeAlias = Values | str | Literal[Outcome.FILTERED]
"""A record's values, the reason why the line is no record, or that the condition leaves it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The condition that records must satisfy, and the values to read from them."""

    keys: tuple[TextKey, ...]
    """The keys, whose names differ."""
    where: str | None = None
    """A jq program; a record is left out if all its results are null or false."""
    join: str | None = None
    """The separator with which the texts of all keys become one; None to keep them apart."""
    vocabulary_size: int | None = None
    """The values are token ids of a vocabulary of this size; None for texts."""
    limits: Limits = dataclass_field(default_factory=default_limits)
    """jq's time and memory limits for one line."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the keys."""
        return tuple(key.name for key in self.keys)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self.names if self.join is None else (JOINED,)

    @property
    def needs_jq(self) -> bool:
        """Whether jq runs on every record."""
        return self.where is not None or any(key.pattern is not None for key in self.keys)

    def read_lines(self, lines: Sequence[bytes]) -> Iterator[Judgement]:
        """Judge lines in order.

        Args:
            lines: Lines without newline and BOM; not blank.

        Yields:
            For each line its values, the reason why it is no record, or FILTERED.

        Raises:
            LimitReachedError: At the first line for which jq takes too much time or memory.
        """
        decode = None if self.vocabulary_size is None else decode_ids
        records = [parse_record(line, decode=decode) for line in lines]
        patterns = self._open_patterns()
        if patterns is None:
            yield from (record if isinstance(record, str) else self._read(record, None) for record in records)
            return
        # jq accepts more than JSON lines, so it does not decide whether a line is a record.
        answers = patterns.read_all(
            [line for line, record in zip(lines, records, strict=True) if not isinstance(record, str)]
        )
        for record in records:
            yield record if isinstance(record, str) else self._read(record, next(answers))

    def _open_patterns(self) -> Patterns | None:
        if not self.needs_jq:
            return None
        fields = tuple(
            FieldPattern(name=key.name, pattern=key.pattern.pattern) for key in self.keys if key.pattern is not None
        )
        conditions = () if self.where is None else (self.where,)
        return open_patterns(fields, limits=self.limits, conditions=conditions, is_joint=True)

    def _read(self, record: dict[str, object], answers: PatternAnswers | None) -> Judgement:
        values: list[object] = []
        try:
            if answers is not None and not answers.holds():
                return FILTERED
            for key in self.keys:
                if key.path is not None:
                    value = find_value(record, key.path)
                    if isinstance(value, Fault):
                        return value.reason
                elif answers is not None:
                    value = answers.value(key.name)
                wrong = self._find_fault(key, value)
                if wrong is not None:
                    return wrong
                values.append(value)
        except RecordProblem as problem:
            return problem.reason
        return cast("Values", values)

    def _find_fault(self, key: TextKey, value: object) -> str | None:
        if self.vocabulary_size is None:
            expected, wrong = "a string or a list of strings", find_fault(value)
        else:
            expected = f"a list of token ids from 0 to {self.vocabulary_size - 1}"
            wrong = find_id_fault(value, self.vocabulary_size)
        if wrong is None:
            return None
        if key.pattern is not None:
            place = f"from the jq pattern {key.pattern.pattern!r}"
        else:
            place = show_place(key.path or ())
        return f"expected {expected} {place}, got {wrong}"


def open_selection(
    keys: Sequence[str],
    *,
    where: str | None = None,
    join: str | None = None,
    vocabulary_size: int | None = None,
) -> Selection:
    """Return the selection of options as they are written.

    Args:
        keys: Keys of texts, or the one key of token ids.
        where: A jq condition.
        join: The separator, with its escapes decoded.
        vocabulary_size: Size of the vocabulary if the values are token ids.

    Raises:
        InputError: If a jq program does not compile, or uses a part of jq that is not allowed; or if two keys have one
            name.
    """
    parsed = [parse_key(key) for key in keys]
    if join is not None:  # the names are not those of outputs, but must differ
        parsed = [replace(key, name=text) for key, text in zip(parsed, keys, strict=True)]
    if len({key.name for key in parsed}) < len(parsed):
        raise InputError(f"expected keys of different names, got {' '.join(keys)}; name one with NAME=")
    selection = Selection(keys=tuple(parsed), where=where, join=join, vocabulary_size=vocabulary_size)
    if where is not None:
        open_patterns(
            (), limits=selection.limits, conditions=(where,), is_joint=True
        )  # raises now if jq cannot compile it
    return selection
