"""Render chat templates as transformers' `apply_chat_template` does, with the spans that `{% generation %}` marks.

jinja2's immutable sandbox runs the template: `trim_blocks`, `lstrip_blocks`, loop controls, `tojson` without HTML
escapes, `raise_exception`, `strftime_now`. A text is a function of its record, so chance, the clock, other files, the
order of sets and addresses in memory are out of reach, and so are numbers and texts without measure. Each turn of a
loop and each macro is a step, and a rendering has a limit of steps: every template ends. A variable that nobody has set
is refused when a template writes it, rather than written as nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Set as AbstractSet
from itertools import count
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from jinja2 import TemplateError, Undefined, meta, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import missing

from dsindex.errors import InputError, RecordProblem

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from jinja2.parser import Parser
    from jinja2.runtime import Context

# Marks are pieces of their own: record texts have no lone surrogates. A begin is followed by the message's position.
_BEGIN, _END = "\udfa0", "\udfa1"
_TURNS = "positions of messages"
"""Variable with the position of each message by its identity; no template can spell it."""
_STEP = "\udfa2"
"""Name of the filter that counts a step, and of the variable that counts them."""
_ALWAYS_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_OF_ANY_DICT = frozenset(dir(dict))
"""Names that mean the attribute, as in transformers, even where a key has the same name."""
_OF_LOOPS = frozenset(name for name in dir(LoopContext) if not name.startswith("_"))
_OF_TEXTS = frozenset(name for name in dir(str) if not name.startswith(("_", "format")))
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")
_SHOWN_CHARACTERS = 1000
MAX_STEPS = 1_000_000
"""Turns of loops and calls of macros in one rendering, all together: some seconds."""
_MAX_REPEATED = 1 << 24
"""Length of a repeated text or list, and bits of a product or power."""


class Span(NamedTuple):
    """Generated characters of a text."""

    begin: int
    end: int
    message: int | None
    """Position of the message that the loop around the block is at; None outside of such loops."""


class Rendered(NamedTuple):
    """The text of a conversation."""

    text: str
    spans: list[Span]


class ChatTemplate:
    """A compiled template. Picklable and thread-safe.

    Args:
        source: jinja2 text.
        tool_source: The template for conversations with `tools`, which some tokenizers have; None for the same.
        constants: Variables for all conversations: names of special tokens, `template_variables`.
        date: The date for `strftime_now`; without it, a template that calls it fails on every record.
        join_lines: Remove newlines between `}` and `{` first, as Modalities does.

    Raises:
        InputError: If the source is not an allowed template.
    """

    def __init__(
        self,
        source: str,
        *,
        tool_source: str | None = None,
        constants: Mapping[str, Any] | None = None,
        date: datetime.date | None = None,
        join_lines: bool = False,
    ) -> None:
        self._given = (source, tool_source, dict(constants or {}), date, join_lines)
        # None rather than missing, as in transformers: templates test `tools is not none`.
        self._constants = {"tools": None, "documents": None, **(constants or {}), "add_generation_prompt": False}
        self._main = _Compiled(source.replace("}\n{", "}{") if join_lines else source, date)
        self._for_tools = self._main if tool_source is None else _Compiled(tool_source, date)
        # An address spelled out in the template or its constants is not a memory address.
        self._known_text = json.dumps([source, tool_source, self._constants], ensure_ascii=False)
        self.sources = tuple(filter(None, [source, tool_source]))
        self.names = self._main.names | self._for_tools.names
        """Names of variables that the template reads or sets."""
        self.marks_generation = self._main.marks_generation and self._for_tools.marks_generation
        """Whether the template has `{% generation %}` blocks."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, self._given

    def render(self, messages: Sequence[dict[str, Any]], **variables: object) -> Rendered:
        """Render one conversation.

        Args:
            messages: Messages with `role` and `content`, without lone surrogates.
            **variables: Further JSON data, such as `tools`.

        Raises:
            RecordProblem: If the template does not render this conversation.
        """
        compiled = self._main if variables.get("tools") is None else self._for_tools
        try:
            fitting = [compiled.fit(message) for message in messages]
            turns = {id(message): position for position, message in enumerate(fitting)}
            known = {**self._constants, **variables, "messages": fitting, _TURNS: turns, _STEP: count(1)}
            rendered = _take_marks(compiled.template.root_render_func(compiled.template.new_context(known)))
        except MemoryError:
            raise
        except Exception as error:
            reason = _ADDRESS.sub(">", str(error) or type(error).__name__)[:_SHOWN_CHARACTERS]
            line = compiled.line_of(error)
            raise RecordProblem(
                "template-failed", f"the chat template does not render: line {line}: {reason}"
            ) from error
        self._check(rendered.text, messages, variables)
        return rendered

    def _check(self, text: str, messages: Sequence[dict[str, Any]], variables: Mapping[str, object]) -> None:
        """Refuse what no template means to write: Python's form of parts, and addresses of objects."""
        if " at 0x" not in text and "[{'type': 'text'" not in text:
            return
        record = json.dumps([*messages, variables], ensure_ascii=False)
        if any(found not in self._known_text and found not in record for found in {*_ADDRESS.findall(text)}):
            reason = "writes the address of an object in memory, which no output may depend on"
            raise RecordProblem("template-failed", f"the chat template {reason}")
        if "[{'type': 'text'" in text and "[{'type': 'text'" not in record:
            reason = "writes a content's parts as Python's list; join them in the record, or mend the template"
            raise RecordProblem("template-failed", f"the chat template {reason}")


def _unpickle(
    source: str, tool_source: str | None, constants: Mapping[str, Any], date: datetime.date | None, join_lines: bool
) -> ChatTemplate:
    return ChatTemplate(source, tool_source=tool_source, constants=constants, date=date, join_lines=join_lines)


def _take_marks(pieces: Iterator[str]) -> Rendered:
    kept, spans, position = [], [], 0
    begin, message = -1, -1
    for piece in pieces:
        if piece[:1] == _BEGIN:
            begin, message = position, int(piece[1:])
        elif piece == _END:
            spans.append(Span(begin, position, None if message < 0 else message))
            begin = -1
        else:
            kept.append(piece)
            position += len(piece)
    if begin >= 0:
        raise TemplateError("it leaves a generation block before its end (break, continue?)")
    return Rendered("".join(kept), spans)


class _Compiled:
    """One source, compiled, with what its tree tells."""

    def __init__(self, source: str, date: datetime.date | None) -> None:
        environment = _make_environment(date)
        try:
            tree = environment.parse(source)
            for node in tree.find_all((nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)):
                raise TemplateError(f"line {node.lineno}: a chat template cannot use other files")
            self._reads_parts, self._reads_texts = _content_forms(tree)
            self.names = frozenset(name.name for name in tree.find_all(nodes.Name))
            needed = _needed_variables(tree) - environment.globals.keys() - _ALWAYS_GIVEN
            self.marks_generation = _name_turns(tree, [])
            _count_steps(tree)
            self.template = environment.from_string(tree)
        except Exception as error:  # Python's and jinja2's compilers raise many types
            raise InputError(f"chat template: {_explain_refusal(error)}") from error
        environment.undefined = _undefined_type(needed)
        # jinja2's own, in several layers, takes half of a short rendering's time.
        self.template.globals = dict(self.template.globals)

    def line_of(self, error: Exception) -> int:
        """Return the line of the template at which it failed."""
        found = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == "<template>"]
        line: int = self.template.get_corresponding_lineno(found[-1]) if found else 1
        return line

    def fit(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message whose content has a form that the template reads: a text, or a list of parts."""
        content = message.get("content")
        if isinstance(content, list) and not self._reads_parts:
            content = "".join(part["text"] for part in content)
        if isinstance(content, str) and not self._reads_texts:
            content = [{"type": "text", "text": content}]
        # An object of its own, so that equal messages have their own positions.
        return dict(message) if content is None else {**message, "content": content}


def _explain_refusal(error: Exception) -> str:
    if isinstance(error, (MemoryError, RecursionError)):
        return f"too long, or nested too deep, for Python's compiler ({type(error).__name__})"
    line = getattr(error, "lineno", None)
    return f"{f'line {line}: ' if line else ''}{str(error) or type(error).__name__}"[:_SHOWN_CHARACTERS]


class _Environment(ImmutableSandboxedEnvironment):  # type: ignore[misc]  # read without its types
    """The sandbox, in which `message.role`, `loop.first` and `text.strip` pass without its checks, as they would."""

    intercepted_binops = frozenset({"*", "**", "-"})

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - any object of a template
        if type(obj) is dict and attribute not in _OF_ANY_DICT:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if (type(obj) is str and attribute in _OF_TEXTS) or (type(obj) is LoopContext and attribute in _OF_LOOPS):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401 - as above
        if operator == "-" and isinstance(left, AbstractSet):
            raise SecurityError("a set has no order, and output must not depend on chance; use selectattr or a loop")
        if operator != "-" and _measure(operator, left, right) > _MAX_REPEATED:
            raise SecurityError(f"the result of {operator!r} is too large")
        return super().call_binop(context, operator, left, right)


def _measure(operator: str, left: object, right: object) -> int:
    """Return the bits of a product or power of integers, or the length of a repeated text or list."""
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
    repeated, times = (right, left) if isinstance(left, int) else (left, right)
    return len(repeated) * times if isinstance(times, int) and isinstance(repeated, (str, list, tuple)) else 0


def _make_environment(date: datetime.date | None) -> ImmutableSandboxedEnvironment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.filters[_BEGIN] = _begin_generation
    environment.filters[_STEP] = _step
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _clock(date)
    # Not the class, whose `update` would bypass the immutable sandbox.
    environment.globals["dict"] = lambda *pairs, **names: dict(*pairs, **names)
    del environment.filters["random"], environment.globals["lipsum"]
    return environment


@pass_context
def _begin_generation(context: Context, *turns: object) -> str:
    """Return the mark that begins a block in loops over these turns, the innermost first."""
    positions = context.parent[_TURNS]
    return f"{_BEGIN}{next((positions[id(turn)] for turn in turns if id(turn) in positions), -1)}"


@pass_context
def _step(context: Context, _: object) -> None:
    if next(context.parent[_STEP]) > MAX_STEPS:
        raise TemplateError(f"its loops and macros take more than {MAX_STEPS:,} steps; it may never end")


def _count_steps(tree: nodes.Template) -> None:
    """Begin the body of each loop, macro and block with a step."""
    for found in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)):
        step = nodes.Filter(nodes.Const(None), _STEP, [], [], None, None)
        found.body.insert(0, nodes.ExprStmt(step).set_lineno(found.lineno))


def _clock(date: datetime.date | None) -> Callable[[str], str]:
    def strftime_now(date_format: str) -> str:
        if date is None:
            raise TemplateError("it asks for today's date; set `template_date`: output must not depend on the day")
        return date.strftime(date_format)

    return strftime_now


def _needed_variables(tree: nodes.Template) -> frozenset[str]:
    """Return the variables that must be given: a template neither sets them nor asks whether they are there."""
    asked = [
        found.test if isinstance(found, (nodes.If, nodes.CondExpr)) else found.node
        for found in tree.find_all((nodes.If, nodes.CondExpr, nodes.Test, nodes.Filter))
        if getattr(found, "name", "default") in {"defined", "undefined", "default", "d"}
    ]
    optional = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    optional |= {
        name.name for node in asked for name in (node, *node.find_all(nodes.Name)) if isinstance(name, nodes.Name)
    }
    # A tokenizer may lack a special token, for which transformers writes nothing.
    return frozenset(name for name in meta.find_undeclared_variables(tree) - optional if not name.endswith("_token"))


def _name_turns(node: nodes.Node, names: list[str]) -> bool:
    """Give each block's begin the names that may stand for its message; return whether there is a block.

    They are the targets of the loops around it, and what is set in them, as by `{% set message = messages[i] %}`.
    """
    has_blocks = False
    for child in node.iter_child_nodes():
        if isinstance(child, nodes.Filter) and child.name == _BEGIN:
            child.args = [nodes.Name(name, "load") for name in names[1:]]
            child.node = nodes.Name(names[0], "load") if names else nodes.Const(None)
            has_blocks = True
        inner = names
        if isinstance(child, nodes.For):
            stored = [name.name for name in child.find_all(nodes.Name) if name.ctx == "store"]
            inner = [*dict.fromkeys([*stored, *names])]
        has_blocks |= _name_turns(child, inner)
    return has_blocks


def _content_forms(tree: nodes.Template) -> tuple[bool, bool]:
    """Return whether a template reads a content that is a list of several parts, and one that is a text.

    It reads parts if it loops over a content or filters it. If it does, or takes the first element of a content, it
    reads texts only if it also asks whether a content is one.
    """
    aliases: set[str] = set()

    def is_content(node: nodes.Node | None) -> bool:
        while isinstance(node, nodes.Filter):
            node = node.node
        if isinstance(node, nodes.Getattr):
            return bool(node.attr == "content")
        if isinstance(node, nodes.Getitem):
            return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
        return isinstance(node, nodes.Name) and node.name in aliases

    macros = {macro.name: macro.args for macro in tree.find_all(nodes.Macro)}
    for _ in range(2):  # an alias of an alias
        aliases |= {
            assigned.target.name
            for assigned in tree.find_all(nodes.Assign)
            if isinstance(assigned.target, nodes.Name) and is_content(assigned.node)
        }
        for call in tree.find_all(nodes.Call):
            parameters = macros.get(call.node.name, []) if isinstance(call.node, nodes.Name) else []
            pairs = zip(parameters, call.args, strict=False)
            aliases |= {parameter.name for parameter, value in pairs if is_content(value)}
    loops = any(is_content(loop.iter) for loop in tree.find_all(nodes.For))
    filters = any(
        used.name in {"map", "selectattr", "rejectattr"} and is_content(used.node)
        for used in tree.find_all(nodes.Filter)
    )
    texts = [*tree.find_all(nodes.Getattr), *tree.find_all(nodes.Getitem)]
    elements = any(
        isinstance(found.node, nodes.Getitem) and is_content(found.node.node)
        for found in texts
        if (found.attr if isinstance(found, nodes.Getattr) else getattr(found.arg, "value", None)) == "text"
    )
    asks = any(
        test.name in {"string", "iterable", "sequence", "mapping"} and is_content(test.node)
        for test in tree.find_all(nodes.Test)
    )
    reads_parts = loops or filters
    return reads_parts, asks or not (reads_parts or elements)


def _undefined_type(needed: frozenset[str]) -> type[Undefined]:
    class NamedUndefined(Undefined):  # type: ignore[misc]  # as above
        """An undefined value that says where a variable is set, and refuses to be written if it is needed."""

        __slots__ = ()

        @property
        def _undefined_message(self) -> str:
            message: str = super()._undefined_message
            name = self._undefined_name if self._undefined_obj is missing else None
            if name in needed:
                message += ": nobody gave this variable; set it under `template_variables`, or in the record's "
                return f"{message}`chat_template_kwargs`"
            return f"{message}; set it under `special_tokens`" if str(name).endswith("_token") else message

        def __str__(self) -> str:
            if self._undefined_obj is missing and self._undefined_name in needed:
                self._fail_with_undefined_error()
            return ""

    return NamedUndefined


class _Generation(Extension):  # type: ignore[misc]  # as above
    """The block `{% generation %} … {% endgeneration %}`, whose text is trainable."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        outer = {"macro", "call", "set", "filter", "generation"} & set(parser._tag_stack[:-1])
        if outer:
            parser.fail(f"generation must not stand inside {min(outer)}", line)
        begin = nodes.Filter(nodes.Const(None), _BEGIN, [], [], None, None)
        return [
            nodes.Output([begin]).set_lineno(line),
            nodes.Scope(body).set_lineno(line),
            nodes.Output([nodes.TemplateData(_END)]).set_lineno(line),
        ]


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as chat templates expect it, without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object = "") -> NoReturn:
    raise TemplateError(f"it refuses the conversation: {message}")
