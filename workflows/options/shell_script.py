"""The commands that a shell script would run, found without running anything.

Assignments, arrays, conditions and `case` are followed as far as they are known. A variable that a branch may or may
not have set is not known afterwards; loops, functions and the output of programs never are.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from workflows.options.shell_words import Scanner, Value, Variables, Word, joined

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DECLARATIONS = {"export", "declare", "local", "readonly", "typeset", "set", "env"}
_SHELLS = {"sbatch", "bash", "sh", "zsh", "srun", "qsub", "bsub"}
"""Programs that run a here-document as a script."""
_BLOCKS = {"for": "done", "while": "done", "until": "done", "select": "done"}
_NUMBERS = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
}


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a script, with its variables replaced."""

    words: tuple[Word, ...]
    line: int
    """Where it begins, from 1."""


def find_commands(
    text: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> list[Command]:
    """Return the commands of a shell script that may run, in order.

    Args:
        text: The script.
        arguments: What is given to it, `$1` and so on.
        environment: Variables that are set for it.

    Raises:
        ValueError: If a quote, bracket or block is never closed.
    """
    values: dict[str, Value] = {name: (Word(value),) for name, value in (environment or {}).items()}
    if arguments:
        values |= {str(number): (Word(word),) for number, word in enumerate(arguments, start=1)}
        values |= {
            "@": tuple(map(Word, arguments)),
            "*": tuple(map(Word, arguments)),
            "#": (Word(str(len(arguments))),),
        }
    reader = _Reader(text, Variables(values))
    reader.read_until(())
    return reader.commands


class _Reader:
    def __init__(self, text: str, variables: Variables) -> None:
        self.scanner = Scanner(text.replace("\r\n", "\n"), variables)
        self.commands: list[Command] = []
        self._depth = 0

    def read_until(self, ends: Sequence[str]) -> str:
        """Read statements up to one of some words, and return it; at the end of the text, none."""
        scanner = self.scanner
        while True:
            scanner.skip_blanks()
            if scanner.place >= len(scanner.text):
                if ends:
                    msg = f"expected {' or '.join(ends)}, got the end of the script"
                    raise ValueError(msg)
                return ""
            if scanner.text[scanner.place] in "\n;&|()":
                if ";;" in ends and scanner.text.startswith(";;", scanner.place):
                    scanner.place += 2
                    return ";;"
                scanner.place += 1
                continue
            word = self._plain_word()
            if word in ends:
                scanner.place += len(word)
                return word
            self._statement(word)

    def _plain_word(self) -> str:
        scanner = self.scanner
        end = scanner.place
        while end < len(scanner.text) and scanner.text[end] not in " \t\r\n;&|()<>'\"$`\\":
            end += 1
        return scanner.text[scanner.place : end]

    def _statement(self, word: str) -> None:
        scanner = self.scanner
        if word == "if":
            scanner.place += len(word)
            self._condition()
        elif word == "case":
            scanner.place += len(word)
            self._case()
        elif word in _BLOCKS:
            scanner.place += len(word)
            self._unknown_block(_BLOCKS[word])
        elif word == "function":
            scanner.place += len(word)
            scanner.word()
        elif word in {"{", "}", "then", "do", "else", "!", "time", "exec", "nohup"}:
            scanner.place += len(word)
        else:
            self._command()

    def _command(self) -> None:
        """Read one command or one line of assignments."""
        scanner = self.scanner
        line = scanner.line
        words: list[Word] = []
        while True:
            scanner.skip_blanks()
            if scanner.place >= len(scanner.text) or scanner.text[scanner.place] in "\n;&|)":
                break
            char = scanner.text[scanner.place]
            if char in "<>":
                self._redirection(words)
                continue
            if char == "(":  # a function's, or a group
                scanner.place += 1
                continue
            if not words or words[0].text in _DECLARATIONS:
                name = scanner.assigned_name()
                if name is not None:
                    self._assign(*name)
                    continue
            words += scanner.word()
        if words:
            self.commands.append(Command(tuple(words), line))

    def _assign(self, name: str, added: bool) -> None:
        scanner = self.scanner
        is_array = scanner.text.startswith("(", scanner.place)
        value: Value = scanner.array() if is_array else (joined(scanner.word(split=False)),)
        before = scanner.variables.value(name) or ()
        if added and is_array:
            value = (*before, *value)
        elif added:
            first = before[0] if before else Word("")
            value = (Word(first.text + value[0].text, first.unknown + value[0].unknown), *before[1:])
        scanner.variables.values[name] = value

    def _redirection(self, words: list[Word]) -> None:
        """Skip `> file`, `2>&1` and the text of a here-document, unless a shell reads it."""
        scanner = self.scanner
        text = scanner.text
        if words and words[-1].text.isdigit() and text[scanner.place - 1].isdigit():
            words.pop()
        begin = scanner.place
        while scanner.place < len(text) and text[scanner.place] in "<>&|-":
            scanner.place += 1
        scanner.skip_blanks()
        is_quoted = text[scanner.place : scanner.place + 1] in {"'", '"', "\\"}
        target = "".join(word.text for word in scanner.word())
        if text.startswith("<<", begin) and not text.startswith("<<<", begin):
            line_end = text.find("\n", scanner.place)
            end = text.find(f"\n{target}", line_end)
            if 0 <= line_end <= end:
                lines = "\n" * text.count("\n", line_end, end + 1)  # so that lines keep their numbers
                scanner.text = text[:line_end] + lines + text[end + 1 + len(target) :]
                if words and words[0].text in _SHELLS:
                    line = scanner.line
                    inside = text[line_end + 1 : end + 1]
                    inside = inside if is_quoted else scanner.expanded(inside)
                    self.commands += [Command(each.words, line + each.line) for each in find_commands(inside)]

    def _condition(self) -> None:
        """Read `if … then … elif … else … fi`, from behind the `if`."""
        known: bool | None = False
        before = self.scanner.variables
        outcomes: list[Variables] = []
        word = "if"
        may_be_none = True
        while word in {"if", "elif", "else"}:
            holds: bool | None = True
            if word != "else":
                holds = self._test()
            runs = False if known is True else (holds if known is False else (None if holds is not False else False))
            self.scanner.variables = before.copy()
            count = len(self.commands)
            word = self.read_until(("elif", "else", "fi"))
            if runs is False:
                del self.commands[count:]
            else:
                outcomes.append(self.scanner.variables)
            if runs is True or (runs is None and holds is True):
                may_be_none = False
            known = True if known is True or runs is True else (None if known is None or runs is None else False)
        if may_be_none:
            outcomes.append(before)
        self.scanner.variables = _united(outcomes)

    def _test(self) -> bool | None:
        """Read the commands of a condition up to `then`; None if it is not known whether they succeed."""
        scanner = self.scanner
        count = len(self.commands)
        begin = scanner.place
        self.read_until(("then",))
        tests = self.commands[count:]
        del self.commands[count:]
        text = scanner.text[begin : scanner.place]
        results = [_test_of(test.words) for test in tests]
        if "&&" in text and "||" in text:
            return None
        if "||" in text:
            return True if True in results else (None if None in results else False)
        return False if False in results else (None if None in results or not results else True)

    def _case(self) -> None:
        """Read `case … in … esac`, from behind the `case`."""
        scanner = self.scanner
        scanner.skip_blanks()
        subject = joined(scanner.word(split=False))
        scanner.skip_blanks()
        if self._plain_word() != "in":
            msg = "expected `in` behind the word of a `case`"
            raise ValueError(msg)
        scanner.place += len("in")
        self._deeper()
        before, outcomes = scanner.variables, list[Variables]()
        chosen: bool | None = False
        end = ";;"
        while end == ";;" and (patterns := self._patterns()):
            holds = _matches(subject, patterns)
            runs = False if chosen is True else (None if chosen is None and holds else holds)
            scanner.variables = before.copy()
            count = len(self.commands)
            end = self.read_until((";;", "esac"))
            if runs is False:
                del self.commands[count:]
            else:
                outcomes.append(scanner.variables)
            chosen = True if chosen is True or holds is True else (None if holds is None else chosen)
        scanner.variables = _united(outcomes if chosen is True else [*outcomes, before])
        self._depth -= 1

    def _patterns(self) -> list[Word]:
        """Consume the patterns of one branch of a `case` and their bracket; none, and `esac`, at its end."""
        scanner = self.scanner
        patterns: list[Word] = []
        while scanner.place < len(scanner.text):
            scanner.skip_blanks()
            char = scanner.text[scanner.place : scanner.place + 1]
            if self._plain_word() == "esac" and not patterns:
                scanner.place += len("esac")
                return []
            if char in "\n(|;":
                scanner.place += 1
            elif char == ")":
                scanner.place += 1
                return patterns or [Word("")]
            else:
                patterns.append(joined(scanner.word(split=False)))
                if scanner.text[scanner.place : scanner.place + 1] in "&<>":
                    break
        msg = "a `case` is never closed"
        raise ValueError(msg)

    def _deeper(self) -> None:
        if self._depth > 50:
            msg = "its blocks are nested too deeply"
            raise ValueError(msg)
        self._depth += 1

    def _unknown_block(self, end: str) -> None:
        """Read a loop: what it sets is not known, but its commands may run."""
        before = self.scanner.variables
        self.scanner.variables = before.copy()
        self._deeper()
        self.read_until((end,))
        self._depth -= 1
        self.scanner.variables = _united([before, self.scanner.variables])


def _united(outcomes: Sequence[Variables]) -> Variables:
    """Return variables after one of several branches: those that differ are not known behind what they share."""
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.values)
    values: dict[str, Value] = {}
    for name in names:
        found = {outcome.value(name) for outcome in outcomes}
        only = next(iter(found))
        if len(found) == 1 and only is not None:
            values[name] = only
        else:
            columns = zip(*(value or () for value in found), strict=False)
            shared = [words[0] for words in takewhile(lambda words: len(set(words)) == 1, columns)]
            values[name] = (*shared, Word(f"${name}", (f"${name}",)))
    return Variables(values)


def _matches(subject: Word, patterns: Sequence[Word]) -> bool | None:
    """Tell whether a word is one of a `case`'s patterns; None if that is not known."""
    if any(pattern.text == "*" for pattern in patterns):
        return True
    if subject.unknown:
        return None
    if any(pattern.text == subject.text and not pattern.unknown for pattern in patterns):
        return True
    return None if any(pattern.unknown or "[" in pattern.text for pattern in patterns) else False


def _test_of(words: Sequence[Word]) -> bool | None:
    """Return the outcome of `[ … ]` or `[[ … ]]`, if it compares texts or numbers that are known."""
    if not words or words[0].text not in {"[", "[[", "test"} or any(word.unknown for word in words):
        return None
    parts = [word.text for word in words[1:] if word.text not in {"]", "]]"}]
    negated = parts[:1] == ["!"]
    parts = parts[negated:]
    outcome: bool | None = None
    if len(parts) in {1, 2} and parts[0] in {"-z", "-n"}:
        outcome = (parts[1:] in ([], [""])) == (parts[0] == "-z")
    elif len(parts) == 3 and parts[1] in {"=", "==", "!="}:
        outcome = (parts[0] == parts[2]) == (parts[1] != "!=")
    elif len(parts) == 3 and parts[1] in _NUMBERS and all(part.lstrip("-").isdecimal() for part in parts[::2]):
        outcome = _NUMBERS[parts[1]](int(parts[0]), int(parts[2]))
    return None if outcome is None else outcome != negated
