"""Words of a shell script, read without running anything: quotes, variables, arrays, arithmetic.

What only a shell can know, such as the output of `$(date)` or a variable that is set nowhere, stays in a word as it is
written, and is named in it.
"""

from __future__ import annotations

import ast
import operator
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MAX_SCRIPT_BYTES = 1 << 20
MAX_WORDS = 100_000
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[\d+\])?(\+?)=")
_BRACED = re.compile(
    r"(?P<name>[A-Za-z_]\w*|\d+|[@*#])(?P<all>\[[@*]\])?(?:(?P<rule>:?[-=+?])(?P<other>.*))?", re.DOTALL
)
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True, slots=True)
class Word:
    """A word after expansion."""

    text: str
    unknown: tuple[str, ...] = ()
    """What is not known in it, as written in the script."""


Value = tuple[Word, ...]
"""A variable: one word, or those of an array."""


@dataclass(slots=True)
class Variables:
    """The variables and arguments of a script, as far as they are known."""

    values: dict[str, Value] = field(default_factory=dict)

    def value(self, name: str) -> Value | None:
        """Return a variable's value; None if it is not set."""
        return self.values.get(name)

    def copy(self) -> Variables:
        """Return variables that can change by themselves."""
        return Variables(dict(self.values))


class Scanner:
    """Reads a script from left to right.

    Raises:
        ValueError: If a quote or bracket is never closed.
    """

    def __init__(self, text: str, variables: Variables) -> None:
        self.text = text
        self.place = 0
        self.variables = variables

    @property
    def line(self) -> int:
        """Number of the line, from 1."""
        return self.text.count("\n", 0, self.place) + 1

    def skip_blanks(self) -> None:
        """Skip blanks, continued lines and a comment."""
        text = self.text
        while self.place < len(text):
            if text[self.place] in " \t\r":
                self.place += 1
            elif text.startswith(("\\\n", "\\\r\n"), self.place):
                self.place = text.index("\n", self.place) + 1
            elif text[self.place] == "#":
                end = text.find("\n", self.place)
                self.place = len(text) if end < 0 else end
            else:
                return

    def at_end_of_word(self) -> bool:
        """Tell whether the next character ends a word."""
        return self.place >= len(self.text) or self.text[self.place] in " \t\r\n;&|()<>"

    def assigned_name(self) -> tuple[str, bool] | None:
        """Consume `NAME=` or `NAME+=`; return the name and whether the value is added."""
        found = _ASSIGNED.match(self.text, self.place)
        if found is None:
            return None
        self.place = found.end()
        return found[1], bool(found[3])

    def array(self) -> Value:
        """Consume `( … )` and return its words."""
        self.place += 1
        words: list[Word] = []
        while True:
            self.skip_blanks()
            if self.place >= len(self.text):
                msg = "an array is never closed"
                raise ValueError(msg)
            if self.text[self.place] == ")":
                self.place += 1
                return tuple(words)
            if self.text[self.place] in "\n;&|<>(":
                self.place += 1
            else:
                words += self.word()

    def word(self, *, split: bool = True) -> list[Word]:
        """Consume a word and return what it expands to; unquoted variables are split at blanks, as in a shell."""
        found = _Fields()
        while not self.at_end_of_word():
            char = self.text[self.place]
            if char == "'":
                end = self._closing("'", self.place + 1)
                found.add(self.text[self.place + 1 : end])
                self.place = end + 1
            elif char == '"':
                self.place += 1
                self._quoted(found)
            elif char == "\\":
                found.add(self.text[self.place + 1 : self.place + 2].replace("\n", ""))
                self.place += 2
            elif char in "$`":
                _add_unquoted(found, self._expansion(), split=split)
            else:
                unknown = (char,) if char in "*?" else ()
                found.add(char, unknown)
                self.place += 1
        return found.words()

    def expanded(self, text: str) -> str:
        """Return the text of a here-document with its variables replaced; what is not known stays as it is written."""
        quoted = re.sub(r'(\\?)"', lambda found: '\\\\\\"' if found[1] else '\\"', text)
        return joined(Scanner(f'"{quoted}"', self.variables).word()).text

    def _quoted(self, found: _Fields) -> None:
        found.add("")
        while self.place < len(self.text) and self.text[self.place] != '"':
            char = self.text[self.place]
            if char == "\\" and self.text[self.place + 1 : self.place + 2] in {'"', "\\", "$", "`", "\n"}:
                found.add(self.text[self.place + 1].replace("\n", ""))
                self.place += 2
            elif char in "$`":
                is_list, value = self._expansion()
                for number, word in enumerate(value):
                    if number and is_list:
                        found.end()
                    found.add((" " if number and not is_list else "") + word.text, word.unknown)
            else:
                found.add(char)
                self.place += 1
        if self.place >= len(self.text):
            msg = "a quote is never closed"
            raise ValueError(msg)
        self.place += 1

    def _closing(self, char: str, begin: int) -> int:
        end = self.text.find(char, begin)
        if end < 0:
            msg = f"a {char} is never closed"
            raise ValueError(msg)
        return end

    def _balanced(self, opening: str, closing: str) -> str:
        """Consume brackets from the one at this place to its partner, and return what is between them."""
        begin = self.place + 1
        depth = 0
        for place in range(self.place, len(self.text)):
            depth += (self.text[place] == opening) - (self.text[place] == closing)
            if depth == 0:
                self.place = place + 1
                return self.text[begin:place]
        msg = f"a {opening} is never closed"
        raise ValueError(msg)

    def _expansion(self) -> tuple[bool, Value]:
        """Consume what begins with `$` or a backtick; return whether it is a list, and its words."""
        begin = self.place
        if self.text[begin] == "`":
            self.place = self._closing("`", begin + 1) + 1
            return False, (self._unknown(begin),)
        self.place += 1
        following = self.text[self.place : self.place + 1]
        if following == "(":
            inside = self._balanced("(", ")")
            if inside.startswith("(") and inside.endswith(")"):
                number = _calculate(inside[1:-1], self.variables)
                if number is not None:
                    return False, (Word(str(number)),)
            return False, (self._unknown(begin),)
        if following == "{":
            return self._braced(self._balanced("{", "}"), begin)
        name = _NAME.match(self.text, self.place)
        if name is not None or following.isdigit() or following in {"@", "*", "#"}:
            text = name[0] if name is not None else following
            self.place += len(text)
            return text in {"@", "*"}, self._value(text, begin)
        return False, (Word("$"),)

    def _braced(self, inside: str, begin: int) -> tuple[bool, Value]:
        found = _BRACED.fullmatch(inside)
        if found is None:
            return False, (self._unknown(begin),)
        value = self.variables.value(found["name"])
        is_list = found["all"] is not None or found["name"] in {"@", "*"}
        rule = found["rule"]
        if rule is not None:
            is_set = value is not None and (not rule.startswith(":") or any(word.text for word in value))
            if rule[-1] == "+":
                return False, self._other(found["other"]) if is_set else ()
            if not is_set and rule[-1] in "-=":
                return False, self._other(found["other"])
        if value is not None and not is_list:
            value = value[:1]
        return is_list, self._value(found["name"], begin) if value is None else value

    def _other(self, text: str) -> Value:
        inside = Scanner(f'"{text}"' if '"' not in text and "'" not in text else text, self.variables)
        return tuple(inside.word(split=False))

    def _value(self, name: str, begin: int) -> Value:
        value = self.variables.value(name)
        return (self._unknown(begin),) if value is None else value

    def _unknown(self, begin: int) -> Word:
        written = self.text[begin : self.place]
        return Word(written, (written,))


def joined(words: Sequence[Word]) -> Word:
    """Return words with blanks between them as one, as an assignment joins them."""
    return Word(" ".join(word.text for word in words), tuple(name for word in words for name in word.unknown))


class _Fields:
    """The words that one word of a script becomes."""

    def __init__(self) -> None:
        self._done: list[Word] = []
        self._texts: list[str] | None = None
        self._unknown: list[str] = []
        self._size = 0

    def add(self, text: str, unknown: tuple[str, ...] = ()) -> None:
        if self._texts is None:
            self._texts = []
        self._texts.append(text)
        self._size += len(text)
        self._unknown += unknown
        if self._size > MAX_SCRIPT_BYTES:
            msg = f"its variables grow to more than {MAX_SCRIPT_BYTES} characters"
            raise ValueError(msg)

    def end(self) -> None:
        if self._texts is not None:
            self._done.append(Word("".join(self._texts), tuple(self._unknown)))
        self._texts, self._unknown = None, []
        if len(self._done) > MAX_WORDS:
            msg = f"its variables grow to more than {MAX_WORDS} words"
            raise ValueError(msg)

    def words(self) -> list[Word]:
        self.end()
        return self._done


def _add_unquoted(found: _Fields, expansion: tuple[bool, Value], *, split: bool) -> None:
    for number, word in enumerate(expansion[1]):
        if number:
            found.end()
        for begins_new, part in _split(word) if split else [(False, word)]:
            if begins_new:
                found.end()
            if part.text:
                found.add(part.text, part.unknown)


def _split(word: Word) -> Iterator[tuple[bool, Word]]:
    """Yield the parts of a word between blanks, and whether a blank comes before; what is not known is not split."""
    names = {f"\0{number}\0": written for number, written in enumerate(word.unknown)}
    text = word.text
    for name, written in names.items():
        text = text.replace(written, name, 1)
    for number, part in enumerate(re.split(r"[ \t\n]+", text)):
        unknown = tuple(written for name, written in names.items() if name in part)
        for name, written in names.items():
            part = part.replace(name, written)
        yield number > 0, Word(part, unknown)


def _calculate(text: str, variables: Variables) -> int | None:
    """Return the value of integer arithmetic with + - * / %; None if it has anything else."""

    def number_of(found: re.Match[str]) -> str:
        value = variables.value(found[1])
        word = value[0] if value else Word("", ("",))
        return word.text if not word.unknown and re.fullmatch(r"-?\d{1,18}", word.text) else "unknown"

    known = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", number_of, text).replace("/", "//").strip()
    try:
        return _evaluate(ast.parse(known, mode="eval").body) if len(known) < 200 else None
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _evaluate(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp):
        calculate: Callable[[int, int], int] | None = _OPERATORS.get(type(node.op))
        if calculate is not None:
            return calculate(_evaluate(node.left), _evaluate(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    msg = "not integer arithmetic"
    raise ValueError(msg)
