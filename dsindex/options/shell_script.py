"""The commands that a shell script would run, found without running anything.

tree-sitter's grammar of bash parses the script. Assignments, arrays, defaults, arithmetic, conditions and `case` are
followed as far as they are known. What only a shell can know, such as the output of `$(date)`, a variable that is set
nowhere, or one that a loop or a branch may have set, stays in a word as it is written, and is named in it.

While a word is put together it has marks: NUL on both sides of a part that is not known, SOH where there were quotes,
so that an empty word stays a word, and STX for a blank behind a backslash.
"""

from __future__ import annotations

import itertools
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tree_sitter_bash
from tree_sitter import Language, Parser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tree_sitter import Node

MAX_SCRIPT_BYTES = 1 << 20
MAX_EXPANDED = 1 << 26
"""Characters that all words of a script may take while they grow, and 64 for each part."""
_SHELLS = {"sbatch", "bash", "sh", "zsh", "srun", "qsub", "bsub"}
"""Programs that run a here-document as a script."""
_NO_WORDS = {"comment", "variable_assignment", "file_redirect", "herestring_redirect", "heredoc_redirect"}
_MAY_RUN = (
    *("for_statement", "while_statement", "c_style_for_statement", "function_definition", "subshell", "pipeline"),
)
_TESTS = {"test_command", "binary_expression", "unary_expression", "parenthesized_expression", "list"}
_UNKNOWN_PARTS = {"command_substitution", "process_substitution", "ansi_c_string", "brace_expression"}
_PARTS = {*_UNKNOWN_PARTS, "string", "raw_string", "simple_expansion", "expansion", "arithmetic_expansion"}
_VARIABLE = re.compile(
    r"\$\{?(?P<name>[A-Za-z_]\w*|\d+|[@*#])(?P<all>\[[@*]\])?((?P<rule>:?[-=+?])(?P<other>.*?))?\}?", re.DOTALL
)
_UNKNOWN = re.compile("\0([^\0]*)\0")
_FIELDS = re.compile("[ \t\n]+|(?:\0[^\0]*\0|[^\0 \t\n])+")
_AFTER = re.compile(rb"(?!(?:[ \t]|\\\n)*\\[ \t])(?:[\s;&|()<>`]|\\\n|\Z)")
"""What comes after a word that the grammar has cut off at its end."""
_WORD_ESCAPES = re.compile(r"\\(.)|([*?]|^~|\{[^{}]*(?:,|\.\.)[^{}]*\})", re.DOTALL)
_ESCAPES = {"word": _WORD_ESCAPES, "value": _WORD_ESCAPES} | {
    "string": re.compile(r'\\([\\$`"\n])()'),
    "text": re.compile(r"\\([\\$`\n])()"),
}
"""By the place of a text: what a backslash escapes, and what a shell replaces by names of files or by other words.

A word, whose variables are split at blanks; the value of an assignment; a string; the text of a here-document.
"""
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a // b if (a < 0) == (b < 0) else -(-a // b),
    "%": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
}
_COMPARISONS: dict[str, Callable[[str, str], bool]] = {
    **dict.fromkeys(("=", "=="), operator.eq),
    **dict.fromkeys(("!=", "-n"), operator.ne),
    "-z": operator.eq,
}
_NUMBERS = {"-eq", "-ne", "-gt", "-ge", "-lt", "-le"}

Values = dict[str, tuple[str, ...]]
"""Variables, each a word or those of an array, with marks."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word after expansion."""

    text: str
    unknown: tuple[str, ...] = ()
    """What is not known in it, as written in the script."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a script, with its variables replaced."""

    words: tuple[Word, ...]
    line: int
    """Where it begins, from 1."""


def find_commands(
    text: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None, *, first_line: int = 1
) -> list[Command]:
    """Return the commands of a shell script that may run, in order.

    Args:
        text: The script.
        arguments: What is given to it, `$1` and so on.
        environment: Variables that are set for it.
        first_line: The number of its first line.

    Raises:
        ValueError: If it is no script of bash, is nested too deeply, or grows too large.
    """
    values: Values = {name: (value,) for name, value in (environment or {}).items()}
    if arguments:
        values |= {str(number): (word,) for number, word in enumerate(arguments, start=1)}
        values |= {"@": tuple(arguments), "*": tuple(arguments), "#": (str(len(arguments)),)}
    source = (re.sub(r"(\\\n\s*)+$", "", re.sub("[\0-\2\r]", "", text)) + "\n").encode()
    parser = Parser(Language(tree_sitter_bash.language()))
    try:
        # Of `${A}b$C` the grammar takes the last `$` for a character, unless there are braces.
        nodes = _walk(parser.parse(source).root_node)
        cut = [node.end_byte for node in nodes if node.type == "$" and node.next_sibling is None]
        for place in reversed(cut):
            source = source[:place] + re.sub(rb"\A(\w+|[@*#])", rb"{\1}", source[place:])
        root = parser.parse(source).root_node
        for node in _walk(root) if root.has_error else ():
            if node.is_error or node.is_missing:
                raise ValueError(f"line {first_line + node.start_point[0]} has what is never closed or is out of place")
        reader = _Reader(source, values, first_line)
        reader.run(root)
    except RecursionError as error:
        raise ValueError("its blocks are nested too deeply") from error
    return reader.commands


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _walk(child)


class _Reader:
    def __init__(self, source: bytes, values: Values, first_line: int) -> None:
        self.commands: list[Command] = []
        self._source = source
        self._values = values
        self._first_line = first_line
        self._expanded = 0
        self._fields: list[str] = []
        """What the present word has become so far."""
        self._statements: dict[str, Callable[[Node], bool | None]] = {
            **dict.fromkeys(("program", "compound_statement", "do_group", "variable_assignments"), self._run_inner),
            **dict.fromkeys(_MAY_RUN, self._run_perhaps),
            "unset_command": self._run_inner,
            "variable_name": lambda node: self._forget(_text(node)),  # of a loop, or unset
            "declaration_command": lambda node: self._run_all(
                each for each in node.named_children if each.type == "variable_assignment"
            ),
            "variable_assignment": self._assign,
            "command": self._command,
            "test_command": lambda node: _test(self._tokens(node)),
            "negated_command": lambda node: _negated(self.run(node.named_children[0])),
            "list": self._list,
            "redirected_statement": self._redirected,
            "if_statement": lambda node: self._branch(self._conditions(node)),
            "case_statement": lambda node: self._branch(self._cases(node)),
        }

    def run(self, node: Node) -> bool | None:
        """Follow a statement; return whether it succeeds, None if that is not known."""
        follow = self._statements.get(node.type)
        return None if follow is None else follow(node)

    def _run_inner(self, node: Node) -> bool | None:
        return self._run_all(node.named_children)

    def _run_perhaps(self, node: Node) -> None:
        """Follow a loop, a function, or a shell of its own: what it sets is not known afterwards."""
        before = self._values
        if node.type == "function_definition":
            self._values = _without_arguments(before)
        is_counting = node.type == "c_style_for_statement"
        self._branch([(None, node.named_children[-1:] if is_counting else node.named_children)])
        self._values = before | self._values

    def _run_all(self, nodes: Iterable[Node]) -> bool | None:
        outcomes = [self.run(node) for node in nodes if node.type != "comment"]
        return outcomes[-1] if outcomes else True

    def _branch(self, branches: Iterable[tuple[bool | None, Iterable[Node]]]) -> None:
        """Follow the branches that may run, up to the first that is known to; each comes with what decides it."""
        outcomes: list[Values] = []
        for holds, nodes in branches:
            if holds is not False:
                before = self._values.copy()
                self._run_all(nodes)
                outcomes.append(self._values)
                self._values = before
            if holds:
                break
        else:
            outcomes.append(self._values)
        self._values = _united(outcomes)

    def _conditions(self, node: Node) -> Iterator[tuple[bool | None, list[Node]]]:
        """Yield the branches of `if … then … elif … else … fi`."""
        clauses = [child for child in node.children if child.type in {"elif_clause", "else_clause"}]
        inner = [child for child in node.children if child not in clauses]
        then = next((place for place, child in enumerate(inner) if child.type == "then"), 0)
        yield self._run_all(child for child in inner[:then] if child.is_named), inner[then:]
        for clause in clauses:
            yield from self._conditions(clause)

    def _cases(self, node: Node) -> Iterator[tuple[bool | None, list[Node]]]:
        """Yield the branches of `case … in … esac`."""
        subject = self._joined(node.named_children[0])
        for item in node.named_children[1:]:
            patterns = [self._joined(each) for each in item.children_by_field_name("value")]
            unsure = any("\0" in text or "[" in text for text in [subject, *patterns])
            known = "\0*\0" in patterns or (subject in patterns and "\0" not in subject)
            yield known or (None if unsure else False), item.children

    def _list(self, node: Node) -> bool | None:
        """Follow `a && b || c`: what may not run leaves variables that may differ."""
        chain = [node]
        while chain[-1].type == "list":
            chain.append(chain[-1].children[0])
        outcomes: list[Values] = []
        succeeds = self.run(chain.pop())
        for each in reversed(chain):
            runs = succeeds if each.children[1].type == "&&" else _negated(succeeds)
            if runs is not False:
                outcomes += [] if runs else [self._values.copy()]
                after = self.run(each.children[-1])
                succeeds = after if runs or after == succeeds else None
        self._values = _united([*outcomes, self._values])
        return succeeds

    def _command(self, node: Node) -> bool | None:
        marked = self._words(child for child in node.children if child.is_named or child.type == "$")
        words = tuple(Word(_clean(word).replace("\0", ""), tuple(_UNKNOWN.findall(word))) for word in marked)
        if not words:
            return None
        self.commands.append(Command(words, self._first_line + node.start_point[0]))
        name, *others = [word.text for word in words]
        if name in {"read", "mapfile", "readarray", "getopts", "let"}:
            for other in others:
                self._forget(other.partition("=")[0])
        elif name == "shift" or (name == "set" and not others[0].startswith(("-", "+"))) or "--" in others[:1]:
            self._values = _without_arguments(self._values)
        elif name == "test":
            return _test([_clean(word) for word in marked[1:]])
        return {"true": True, ":": True, "false": False}.get(name)

    def _redirected(self, node: Node) -> bool | None:
        """Follow a statement, and the text of a here-document if a shell reads it."""
        count = len(self.commands)
        succeeds = self.run(node.children[0])
        is_script = len(self.commands) > count and self.commands[-1].words[0].text in _SHELLS
        for redirect in node.children_by_field_name("redirect"):
            for part in redirect.named_children:
                if part.type == "heredoc_body" and is_script:
                    is_quoted = _text(redirect.named_children[0])[0] in "'\"\\"
                    text = _text(part) if is_quoted else " ".join(self._words([part], "text")).replace("\0", "")
                    self.commands += find_commands(text, first_line=self._first_line + part.start_point[0])
                self.run(part)
        return succeeds

    def _assign(self, node: Node) -> bool | None:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        self._check(node, node.end_byte if value is None or value.start_byte == node.children[1].end_byte else -1)
        if name is None or name.type == "subscript":
            self._forget(_text(node).partition("[")[0])
            return True
        before = self._values.get(_text(name), ()) if node.children[1].type == "+=" else ()
        if value is not None and value.type == "array":
            words = (*before, *map(_clean, self._words(value.named_children)))
        else:
            words = ("".join(before[:1]) + ("" if value is None else self._joined(value)), *before[1:])
        self._values[_text(name)] = words
        return None if any(map(_UNKNOWN.search, words)) else True

    def _forget(self, name: str) -> None:
        self._values[name] = (f"\0${name}\0",)

    def _tokens(self, node: Node) -> list[str]:
        """Return the operands and operators of `[ … ]` or `[[ … ]]`."""
        if node.type in _TESTS:
            return [token for child in node.children for token in self._tokens(child)]
        if node.is_named and node.type != "test_operator":
            return [self._joined(node)]
        text = _text(node).strip()
        return [] if text in {"[", "[[", "]", "]]"} else [text]

    def _joined(self, node: Node, place: str = "value") -> str:
        """Return the one word that an assignment makes of a node."""
        return _clean(" ".join(self._words([node], place)))

    def _words(self, nodes: Iterable[Node], place: str = "word") -> list[str]:
        """Return the words that nodes expand to, with marks."""
        found: list[str] = []
        outer = self._fields
        for node in nodes:
            if place != "text":
                self._check(node, node.end_byte)
            if node.type not in _NO_WORDS:
                self._fields = [""]
                self._expand(node, place)
                found += filter(None, self._fields)
        self._fields = outer
        return found

    def _check(self, node: Node, end: int) -> None:
        if not _AFTER.match(self._source, end):
            line = self._first_line + node.end_point[0]
            raise ValueError(f"line {line} has a word that is not understood, near {_text(node)[-40:]!r}")

    def _expand(self, node: Node, place: str) -> None:
        """Add what a node expands to to the fields, the first of it to the last of them."""
        text = _without_lead(node)
        match node.type:
            case "raw_string":
                self._add(f"\1{text[1:-1]}", "string")
            case "string":
                self._expand_range(node, node.end_byte - len(text.encode()) + 1, node.end_byte - 1, "string")
                if not re.fullmatch(r'"\$(@|\{@\}|\{\w+\[@\]\})"', text):  # which are no word if they are empty
                    self._add("\1", "string")
            case "simple_expansion" | "expansion":
                self._expand_variable(node, text, place)
            case "arithmetic_expansion":
                try:
                    self._add(str(self._calculate(node)), "string")
                except ArithmeticError:
                    self._add(f"\0{text}\0", place)
            case kind if kind in _UNKNOWN_PARTS:
                self._add(f"\0{text}\0", place)
            case _:
                self._expand_range(node, node.start_byte, node.end_byte, place)

    def _expand_range(self, node: Node, begin: int, end: int, place: str) -> None:
        """Add a range of the script, in which a node has quotes and variables."""
        for child in node.named_children:
            if child.start_byte >= begin and (child.type in _PARTS or child.named_children):
                self._add_text(begin, child.end_byte - len(_without_lead(child).encode()), place)
                self._expand(child, place)
                begin = child.end_byte
        self._add_text(begin, end, place)

    def _add_text(self, begin: int, end: int, place: str) -> None:
        self._add(_ESCAPES[place].sub(_unescaped, self._source[begin:end].decode()), place)

    def _add(self, text: str, place: str) -> None:
        for part in _FIELDS.findall(text) if place == "word" else [text]:
            if place == "word" and part[0] in " \t\n":
                self._fields.append("")
            else:
                self._fields[-1] += part
            self._expanded += len(self._fields[-1]) + 64
            if self._expanded > MAX_EXPANDED:
                raise ValueError(f"its variables grow to more than {MAX_EXPANDED} characters")

    def _expand_variable(self, node: Node, text: str, place: str) -> None:
        found = _VARIABLE.fullmatch(text)
        if found is None:
            self._add(f"\0{text}\0", place)
            return
        name, rule = found["name"], found["rule"] or ""
        value = self._values.get(name)
        is_set = value is not None and (rule[:1] != ":" or any(value))
        other = node.end_byte - 1 - len((found["other"] or "").encode()), node.end_byte - 1
        if rule[-1:] == "+" and is_set and any(map(_UNKNOWN.search, value or ())):
            value = None
        elif (rule[-1:] == "+" and is_set) or (rule[-1:] in {"-", "="} and not is_set):
            self._expand_range(node, *other, place)
            if rule[-1] == "=":
                outer, self._fields = self._fields, [""]
                self._expand_range(node, *other, "value")
                self._values[name], self._fields = (_clean(" ".join(self._fields)),), outer
            return
        elif rule[-1:] == "+":
            return
        value = (f"\0{text}\0",) if value is None else value
        is_list = name in {"@", "*"} or found["all"] is not None
        if place in {"string", "text"}:
            value = (" ".join(value),) if "*" in text else tuple(f"\1{word}" for word in value)
        for number, word in enumerate(value if is_list else value[:1]):
            self._fields += [""] if number else []
            self._add(word, place)

    def _calculate(self, node: Node) -> int:
        """Return the value of integer arithmetic.

        Raises:
            ArithmeticError: If it is not known, or has no such value in a shell.
        """
        inner = node.named_children
        if node.type == "binary_expression" and node.children[1].type in _ARITHMETIC:
            number = _ARITHMETIC[node.children[1].type](self._calculate(inner[0]), self._calculate(inner[-1]))
        elif node.type == "unary_expression" and node.children[0].type == "-":
            number = -self._calculate(inner[0])
        elif node.type in {"arithmetic_expansion", "parenthesized_expression"} and len(inner) == 1:
            number = self._calculate(inner[0])
        else:
            is_name = node.type == "variable_name"
            word = "".join(self._values.get(_text(node), ())[:1]) if is_name else self._joined(node, "text")
            number = int(word) if re.fullmatch(r"-?(0|[1-9]\d{0,17})", word) else 1 << 63
        if abs(number) >> 63:
            raise ArithmeticError
        return number


def _text(node: Node) -> str:
    return (node.text or b"").decode()


def _without_lead(node: Node) -> str:
    """Return the text of a quote or variable, whose token begins with the blanks before it."""
    return re.sub(r"\A(?:\s|\\\n)+", "", _text(node))


def _clean(word: str) -> str:
    return word.replace("\1", "").replace("\2", " ")


def _unescaped(found: re.Match[str]) -> str:
    return f"\0{found[2]}\0" if found[2] else {"\n": "", " ": "\2"}.get(found[1], found[1])


def _negated(outcome: bool | None) -> bool | None:
    return None if outcome is None else not outcome


def _without_arguments(values: Values) -> Values:
    return {name: value for name, value in values.items() if name.isidentifier()}


def _test(tokens: Sequence[str]) -> bool | None:
    """Return the outcome of a test that compares texts or numbers; None if it is not known."""
    for operators, decided in ((("||", "-o"), True), (("&&", "-a"), False)):
        for place, token in enumerate(tokens):
            if token in operators:
                outcomes = {_test(tokens[:place]), _test(tokens[place + 1 :])}
                return decided if decided in outcomes else None if None in outcomes else not decided
    if tokens[:1] == ["!"]:
        return _negated(_test(tokens[1:]))
    left, which, right = {1: ["", "-n", *tokens], 2: ["", *tokens], 3: tokens}.get(len(tokens), ["", "", "\0"])
    if "\0" in left + right:
        return None
    compare = _COMPARISONS.get(which)
    if compare is not None:
        return compare(left, right)
    are_numbers = re.fullmatch(r"-?\d+ -?\d+", f"{left} {right}") and which in _NUMBERS
    return bool(getattr(operator, which[1:])(int(left), int(right))) if are_numbers else None


def _united(outcomes: Sequence[Values]) -> Values:
    """Return variables after one of several branches: those that differ are not known behind what they share."""
    values: Values = {}
    for name in dict.fromkeys(name for outcome in outcomes for name in outcome):
        found = {outcome.get(name) for outcome in outcomes}
        only = next(iter(found))
        if len(found) == 1 and only is not None:
            values[name] = only
        else:
            columns = zip(*(value or () for value in found), strict=False)
            shared = [words[0] for words in itertools.takewhile(lambda words: len(set(words)) == 1, columns)]
            values[name] = (*shared, f"\0${name}\0")
    return values
