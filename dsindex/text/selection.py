"""Which records a build keeps, and which values it reads from them.

A key is the name of a top-level key, a path or a jq program:

    text              the top-level key of exactly this name, dots and all, as in Megatron
    text|content      the first of these top-level keys that is not null
    .meta.text        a path: the key `text` of the object under `meta`; also `."my key".x` and `.["a b"].x`
    body=.meta.text   the same path, for an output that is named `body` instead of `meta.text`
    body=.a + .b      any other text that begins with a dot is a jq program, whose output needs a name

An exact name that begins with a dot, or contains `=.` or `|`, is written as a path: `.".name"`, `."a=.b"`, `."a|b"`.

`Selection.read_line` is the reference for names, paths and plain conditions, which `records.py` reads from whole blocks
of lines. jq (`jq.py`) runs the programs and all other conditions, since it takes ten times as long per line.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from dsindex.errors import InputError, RecordProblem
from dsindex.store.read import SPOOLED
from dsindex.text.blocks import Column, RecordBlock, find_id_fault
from dsindex.text.conditions import parse_condition
from dsindex.text.fields import JOINED, find_fault, find_value, parse_path, parse_record, show_place, type_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dsindex.text.conditions import Condition
    from dsindex.text.fields import Path
    from dsindex.text.jq import PatternAnswers

MAX_PATH_KEYS = 64
"""Values at longer paths are read line by line, not from whole blocks of lines."""
_NAMED = re.compile(r"(?P<name>[^=]+)=(?P<source>\..*)", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


Values: TypeAlias = list[Any]
"""One value for each key: a text or token ids, or a list of them."""
Judgement: TypeAlias = Values | str | None
"""A record's values, the reason why the line is a bad record, or None if the condition excludes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextKey:
    """One value to read from each record, and the name of its output."""

    name: str
    """Name of the column and of the output; a jq program without a name is its own name."""
    path: Path | None = None
    """The keys that lead to the value: for an exact name, only the name; None for a jq program."""
    program: str | None = None
    """The jq program; None for a name or a path."""
    other_names: tuple[str, ...] = ()
    """Names to try, in order, if the first one is missing in a record or null."""


def parse_key(text: str) -> TextKey:
    """Parse a key from an option, without compiling a jq program.

    >>> parse_key("meta.text").path, parse_key('.meta."my text"').path
    (('meta.text',), ('meta', 'my text'))
    >>> parse_key(".meta.text").name, parse_key("body=.meta.text").name, parse_key("a | b").program
    ('meta.text', 'body', None)
    >>> parse_key("text|content").other_names
    ('content',)
    """
    match = None if text.startswith(".") else _NAMED.fullmatch(text)
    if match is None and not text.startswith("."):
        text, *other_names = text.split("|")
        return TextKey(name=text, path=(text,), other_names=tuple(other_names))
    name, source = (None, text) if match is None else (match["name"], match["source"])
    path = parse_path(source)
    if path is not None:
        return TextKey(name=name or ".".join(path), path=path)
    return TextKey(name=name or source, program=source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The condition that records must satisfy, and the values to read from them."""

    keys: tuple[TextKey, ...]
    """The keys, whose names differ."""
    where: str | None = None
    """A jq program; a record is excluded if all results are null or false."""
    condition: Condition | None = None
    """`where` as a plain condition; None if there is no condition, or if only jq can evaluate it."""
    join: str | None = None
    """The separator that joins the texts of all keys; None to keep them apart."""
    vocabulary_size: int | None = None
    """Size of the vocabulary if the values are token ids; None for texts."""
    takes_lists: bool = True
    """Whether a value may be a list of texts."""
    folder_values: Mapping[str, object] = field(default_factory=dict)
    """Values from the names of an input's folders, such as `lang=de`, for records without these keys."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the keys."""
        return tuple(key.name for key in self.keys)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs: of the keys, or of the joined texts."""
        return self.names if self.join is None else (JOINED,)

    @property
    def needs_jq(self) -> bool:
        """Whether jq runs on every record."""
        needs_where = self.where is not None and self.condition is None
        return needs_where or any(key.program is not None for key in self.keys)

    @property
    def where_paths(self) -> frozenset[Path]:
        """The paths in a plain condition."""
        return frozenset() if self.condition is None else self.condition.paths

    @property
    def _paths(self) -> tuple[tuple[Path, ...], ...]:
        return tuple((key.path or (), *((name,) for name in key.other_names)) for key in self.keys)

    @property
    def alternatives(self) -> tuple[tuple[Path, ...], ...] | None:
        """The paths to try for each key, to read whole blocks of lines; None if lines must be read one by one.

        Lines are read one by one with jq, with a value from a folder (unless only the condition reads it), with a lone
        surrogate in a path, with a path of more than MAX_PATH_KEYS keys, and if a path leads through the value of
        another.
        """
        if self.needs_jq:
            return None
        values = {path for paths in self._paths for path in paths}
        read_paths = values | self.where_paths
        for path in read_paths:
            is_inside = any(path[:depth] in read_paths for depth in range(1, len(path)))
            is_of_folder = path[0] in self.folder_values and (path in values or len(path) > 1)
            if is_inside or is_of_folder or len(path) > MAX_PATH_KEYS or any(map(_SURROGATE.search, path)):
                return None
        return self._paths

    @property
    def paths(self) -> dict[str, Path] | None:
        """The path of each key, to read columns of tables; None if rows must be read as JSON."""
        paths_by_key = self.alternatives
        if paths_by_key is None or any(key.other_names for key in self.keys):
            return None
        return {key.name: paths[0] for key, paths in zip(self.keys, paths_by_key, strict=True)}

    def of_input(self, path: str) -> Selection:
        """Return the selection for one input, with those values of its folders that the keys or jq may read.

        >>> open_selection(["text", "lang"]).of_input("/data/lang=de/year=2024/part-0.parquet").folder_values
        {'lang': 'de'}
        """
        if "=" not in path or path.endswith(SPOOLED):
            return self
        pairs = (name.partition("=") for name in path.split("/")[:-1])
        values = {unquote(name): _parse_folder_value(unquote(value)) for name, sign, value in pairs if name and sign}
        if not self.needs_jq:
            read_paths = self.where_paths.union(*self._paths)
            values = {name: value for name, value in values.items() if any(path[0] == name for path in read_paths)}
        return replace(self, folder_values=values) if values else self

    def read_line(self, line: bytes) -> Judgement:
        """Judge one line; see `read_lines`."""
        return self.read_lines([line])[0]

    def read_lines(self, lines: Sequence[bytes]) -> list[Judgement]:
        """Judge lines, which have no newline and no BOM, and are not blank.

        jq accepts more than JSON lines, so `parse_record` decides whether a line is a record.
        """
        answers: Iterable[PatternAnswers | None] = repeat(None)
        fields = tuple((key.name, key.program) for key in self.keys if key.program is not None)
        if fields or self.where is not None:
            from dsindex.text.jq import open_patterns

            patterns = open_patterns(fields, condition=self.where)
            values = self.folder_values
            answers = patterns.read_lines([_insert_values(line, values) for line in lines] if values else lines)
        return list(map(self._judge, lines, answers))

    def build_columns(self, values: Iterable[Sequence[Any]]) -> dict[str, Column]:
        """Return the column of each key, given the key's values in all records."""
        columns = [Column.of_values(by_record, holds_ids=self.vocabulary_size is not None) for by_record in values]
        return dict(zip(self.names, columns, strict=True))

    def join_texts(self, block: RecordBlock) -> RecordBlock:
        """Return a block with one column for each output, joining the texts of all keys if there is a separator."""
        if self.join is None:
            return block
        joined_texts = [map(self.join.join, column.items_by_record()) for column in block.columns.values()]
        texts = list(map(self.join.join, zip(*joined_texts, strict=True)))
        return replace(block, columns={JOINED: Column.of_values(texts)})

    def _judge(self, line: bytes, answers: PatternAnswers | None) -> Judgement:
        values: list[object] = []
        try:
            record = parse_record(line)
            if answers is not None and not answers.holds():
                return None
            record = {**self.folder_values, **record} if self.folder_values else record
            for key in self.keys:
                jq_answers = answers if key.path is None else None
                value = _find_key_value(record, key) if jq_answers is None else jq_answers.value(key.name)
                if (fault := self.find_fault(key, value)) is not None:
                    return fault
                values.append(value)
        except RecordProblem as problem:
            return problem.reason
        return values

    def find_fault(self, key: TextKey, value: object) -> str | None:
        """Describe what is wrong with the value of a key; None if nothing is wrong."""
        if self.vocabulary_size is not None:
            expected = f"a list of token ids from 0 to {self.vocabulary_size - 1}"
            fault = find_id_fault(value, self.vocabulary_size)
        elif self.takes_lists:
            expected, fault = "a string or a list of strings", find_fault(value)
        else:
            expected, fault = "a string", find_fault(value) if isinstance(value, str) else type_name(value)
        if fault is None:
            return None
        place = f"from the jq pattern {key.program!r}" if key.path is None else show_place(key.path)
        return f"the value {place} is {fault}, and has to be {expected}"


def _find_key_value(record: dict[str, object], key: TextKey) -> object:
    for name in (key.name, *key.other_names) if key.other_names else ():
        if record.get(name) is not None:
            return record[name]
    return find_value(record, key.path or ())


def _parse_folder_value(text: str) -> object:
    """Parse a value in a folder's name like Spark and DuckDB."""
    if text == "__HIVE_DEFAULT_PARTITION__":
        return None
    return int(text) if re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", text) else text


def _insert_values(line: bytes, values: Mapping[str, object]) -> bytes:
    """Insert values at the start of a JSON object, so that the record's own keys, which come later, take precedence."""
    rest = line.lstrip()[1:]
    return json.dumps(values).encode()[:-1] + (b"" if rest.lstrip().startswith(b"}") else b",") + rest


def open_selection(
    keys: Sequence[str], *, where: str | None = None, join: str | None = None, vocabulary_size: int | None = None
) -> Selection:
    """Return the selection for the options of a build.

    Args:
        keys: Keys of texts, or the one key of token ids.
        where: A jq condition.
        join: The separator, with its escapes decoded.
        vocabulary_size: Size of the vocabulary if the values are token ids.

    Raises:
        InputError: If a jq program does not compile, or uses a part of jq that is not allowed; or if two keys have the
            same name.
    """
    text_keys = [parse_key(key) for key in keys]
    if join is not None:  # the output is named JOINED, so only the keys themselves must differ
        text_keys = [replace(key, name=text) for key, text in zip(text_keys, keys, strict=True)]
    if len({key.name for key in text_keys}) < len(text_keys):
        raise InputError(f"two of the keys {' '.join(keys)} have the same name", hint="name one with NAME=.PATH")
    condition = None if where is None else parse_condition(where)
    selection = Selection(keys=tuple(text_keys), where=where, condition=condition, join=join)
    return _check_programs(replace(selection, vocabulary_size=vocabulary_size))


def open_pattern(pattern: str) -> Selection:
    """Return the selection of the one text that a jq pattern selects; a pattern that is a path runs without jq.

    Raises:
        InputError: If the pattern is not valid jq, or uses a part of jq that is not allowed.

    >>> open_pattern('.["raw text"]').names, open_pattern(".a + .b").names
    (('raw text',), ('.a + .b',))
    """
    key = parse_key(pattern.strip()) if pattern.lstrip().startswith(".") else TextKey(name=pattern, program=pattern)
    return _check_programs(Selection(keys=(key,), takes_lists=False))


def _check_programs(selection: Selection) -> Selection:
    if selection.needs_jq:
        selection.read_line(b"{}")  # raises now, not in a worker, if jq cannot compile a program or it is not allowed
    return selection
