"""Render chat templates as transformers' `apply_chat_template` does, and return the spans marked by `{% generation %}`.

jinja2's immutable sandbox runs the template with the settings of transformers: `trim_blocks`, `lstrip_blocks`, loop
controls, `tojson` without HTML escapes, `raise_exception`, `strftime_now`. The text depends only on the template, its
constants and the record: a template cannot read random numbers, the clock, other files, the order of a set or memory
addresses. If a template writes an undefined variable, the record is refused; jinja2 would write an empty text.

A template may come from an untrusted source, so its time and memory are bounded. The bounds are counts, not times, so
they do not depend on the machine. Each iteration of a loop and each call of a macro is a step; a step costs more once
there are large values. The characters of each value that an operator, a filter or a method makes are taken from a
budget that grows with the record. If a value could be much larger than its operands, its characters are counted before
it is made.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import KeysView, ValuesView
from collections.abc import Set as AbstractSet
from itertools import chain, product
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError, Undefined, UndefinedError, meta, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace, _PassArg, missing
from jinja2.visitor import NodeTransformer

from dsindex.chat.conversations import TOOL_ROLES, UNWRITTEN_THOUGHT, change_call, function_of, join_parts, parse_json
from dsindex.chat.replies import Rendered, ReplyFinder, Span
from dsindex.chat.thoughts import THINK, find_thoughts
from dsindex.errors import InputError, RecordProblem

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from jinja2.parser import Parser
    from jinja2.runtime import Context

    from dsindex.chat.replies import Render

# A template writes each mark as a separate piece of output: _BEGIN and the position of the message, or _END. No text
# can be mistaken for a mark, because record texts have no lone surrogates.
_BEGIN, _END = "\udfa0", "\udfa1"
_AFTER_MARKS = "\udfa2"
_TURNS = "positions of messages"
"""Template variable that maps id(message) to its position. No template can use the name, since it has spaces."""
_STEP, _CONCAT, _COUNT, _ITEMS, _BUDGET = "\udfa2", "\udfa3", "\udfa4", "\udfa5", "\udfa6"
"""Names of the counting filters and of the variable that holds the budget. No name in a template can be a surrogate."""
_ALWAYS_SET = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_DICT_NAMES = frozenset(dir(dict))
"""Attributes of dict. They take precedence over keys of the same name, as in transformers."""
_LOOP_NAMES = frozenset(name for name in dir(LoopContext) if not name.startswith("_"))
_TEXT_NAMES = frozenset(name for name in dir(str) if not name.startswith(("_", "format")))
_REFUSED_FILTERS = ("batch", "center", "pprint", "random", "slice", "striptags", "sum", "urlize", "wordwrap", "xmlattr")
_FREE_FILTERS = frozenset({"default", "d", "first", "items", "last", "length", "count"})
"""Filters that make no new text or list, so nothing is counted."""
_LIST_FILTERS = frozenset({"map", "reject", "rejectattr", "select", "selectattr"})
"""Filters that yield the items of a list one at a time."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>", re.IGNORECASE)
_CHANGES_CASE = re.compile(r"\b(?:upper|title|swapcase)\b")
_PARTS = ("{'type': 'text'", '[{"type": "text"')
"""Start of a part as Python writes it, and of a list of parts as JSON."""
_WORD = re.compile(r"\w+")
_THINK_TAG = re.compile(r"</?think(?:\s[^<>]*)?>", re.IGNORECASE)
_ASKS_FOR_NULL = re.compile(r"\bcontent\W{0,2}\s+is\s+(?:not\s+)?none\b")
_SHOWN_CHARACTERS = 1000
_SEARCHED_CHARACTERS = 64
MAX_STEPS = 1_000_000
"""Limit for iterations of loops plus calls of macros in one rendering; they take a few seconds."""
_MAX_CHARACTERS = 1 << 24
"""Limit for the characters of all values that a rendering makes, and of its text; higher for a large record."""
_MAX_VALUE = 1 << 20
"""Limit for the characters of one value; higher for a large record."""
_FORM_ERRORS = (TypeError, AttributeError, UndefinedError)
"""Errors that a template raises if a content or arguments do not have the form that it reads."""
_MAX_NUMBER = 10_000
"""Largest numeric argument of a filter."""
_MAX_INDENT = 16
"""Largest length of an indentation and of a separator for `tojson`."""
_REFUSED_METHODS = ("encode", "expandtabs", "format_map", "maketrans", "translate")
_ENLARGING_METHODS = {"center", "ljust", "rjust", "zfill", "replace", "join", "format", "indent"}
"""Methods and filters whose result may be much longer than the text that they are applied to."""
_SMALL = 4096
"""Texts of up to this many characters are counted only when they are put into a list or buffer: the limit on steps
already bounds how many there are."""
_LARGE_WIDTH = {
    "%": re.compile(r"\d{4,}(?:\.\d*)?[hlL]?[diouxXeEfFgGcrsa%]"),
    "format": re.compile(r":[^{}:]*(?:\d{4}|\{)"),
}
"""Pattern for a width of four or more digits in a format, such as `%09999d` or `{:>9999}`."""


class ChatTemplate:
    """A compiled chat template. Thread-safe.

    Args:
        source: jinja2 source.
        tool_source: Another template for conversations with `tools`, which some tokenizers have; None to use `source`.
        constants: Variables for all conversations: special tokens by name, `template_variables`.
        date: The date for `strftime_now`. Without it, a template fails on every record for which it asks for the date.
        join_lines: Remove newlines between `}` and `{` in `source` first, as Modalities does.
        reply_role: The role of replies, which are searched for in the text if the template has no `{% generation %}`;
            None to skip the search, for templates with markers, whose spans are not used.

    Raises:
        InputError: If a source is not a valid template, or uses what the sandbox does not allow.
    """

    def __init__(
        self,
        source: str,
        *,
        tool_source: str | None = None,
        constants: Mapping[str, Any] | None = None,
        date: datetime.date | None = None,
        join_lines: bool = False,
        reply_role: str | None = "assistant",
    ) -> None:
        self._reply_role = reply_role
        # Set to None instead of leaving them undefined, as transformers does: templates test `tools is not none`.
        self._constants = {"tools": None, "documents": None, **(constants or {}), "add_generation_prompt": False}
        self._main = _CompiledTemplate(source.replace("}\n{", "}{") if join_lines else source, date)
        self._for_tools = self._main if tool_source is None else _CompiledTemplate(tool_source, date)
        # Text such as ` at 0x12>` in the template or its constants is not the address of an object.
        self._known_text = json.dumps([source, tool_source, self._constants], ensure_ascii=False)
        self.sources = tuple(filter(None, [source, tool_source]))
        self._asks_for_null = any(map(_ASKS_FOR_NULL.search, self.sources))
        self._changes_case = any(map(_CHANGES_CASE.search, self.sources))
        self.names = self._main.names | self._for_tools.names
        """Names of the variables that the templates read or set."""

    def render(self, messages: Sequence[dict[str, Any]], **variables: object) -> Rendered:
        """Render one conversation.

        Args:
            messages: Messages with `role` and `content`, without lone surrogates.
            **variables: Further template variables, such as `tools`; JSON data.

        Raises:
            RecordProblem: If the template fails on this conversation, or its replies cannot be found.
        """
        compiled = self._main if variables.get("tools") is None else self._for_tools

        def render(chosen_messages: Sequence[dict[str, Any]], with_prompt: bool) -> Rendered:
            turns = {id(message): position for position, message in enumerate(chosen_messages)}
            budget = _Budget([messages, variables, self._constants])
            values = {**self._constants, **variables, "messages": chosen_messages, _TURNS: turns, _BUDGET: budget}
            values["add_generation_prompt"] = with_prompt
            try:
                pieces = compiled.template.root_render_func(compiled.template.new_context(values))
                return _remove_marks(pieces, budget, has_ends=compiled.marks_generation)
            except MemoryError:
                raise
            except Exception as error:  # the template's code may raise any exception
                reason = _ADDRESS.sub(">", str(error) or type(error).__name__)[:_SHOWN_CHARACTERS]
                problem = f"the chat template does not render: line {compiled.line_of(error)}: {reason}"
                raise RecordProblem("template-failed", problem) from error

        try:
            rendered, fitting = self._choose_form(render, messages, variables)
        except RecordProblem:
            tools: Any = variables.get("tools") or []
            functions = [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]
            if functions == tools:
                raise
            variables = {**variables, "tools": functions}  # some templates read only OpenAI's form of a tool
            rendered, fitting = self._choose_form(render, messages, variables)
        if compiled.marks_generation or self._reply_role is None:
            return rendered
        return ReplyFinder(render, fitting, self._reply_role).find(rendered)

    def _choose_form(
        self, render: Render, messages: Sequence[dict[str, Any]], variables: Mapping[str, object]
    ) -> tuple[Rendered, list[dict[str, Any]]]:
        """Render messages in the first form that the template can read without leaving contents out.

        The first form is the given one. Further forms have contents as a text or as parts, and the arguments of calls
        as JSON text or as an object, since templates differ in what they accept. If the template asks whether a content
        is null, as DeepSeek's do, the content of a message with nothing but calls is null in the last forms.

        Returns:
            The rendered text, and the messages in the chosen form.

        Raises:
            RecordProblem: If the template renders no form, or refuses the conversation.
        """
        first_form: tuple[Rendered, list[dict[str, Any]]] | None = None
        problem: RecordProblem | None = None
        tried_forms: list[list[dict[str, Any]]] = []
        has_parts = any(isinstance(message.get("content"), list) for message in messages)
        bases = [messages]
        if self._asks_for_null:
            bases += [[{"content": None, **message} if "tool_calls" in message else message for message in messages]]
        for base, changes in product(bases, _CHANGES):
            # Copy each message: positions are looked up by id(message), and a caller may pass the same object twice.
            form = [_change_values(message, changes) if changes else dict(message) for message in base]
            if form in tried_forms:
                continue
            tried_forms.append(form)
            try:
                rendered = render(form, False)
                self._refuse_mistakes(rendered.text, messages, variables)
            except RecordProblem as error:
                problem = problem or error
                if error.__cause__ is not None and not isinstance(error.__cause__, _FORM_ERRORS):
                    break
                continue
            if "content" not in changes and (problem or not has_parts):
                return rendered, form
            searched = SearchedText(rendered.text)
            if all(has_content(message, searched) for message in form):
                return rendered, form
            first_form = first_form or (None if problem else (rendered, form))
        if first_form is not None:
            return first_form
        has_calls = any(message.get("tool_calls") for message in messages) and len(tried_forms) > 1
        note = "; the `arguments` of its calls were tried as a text and as an object" if has_calls else ""
        raise RecordProblem("template-failed", f"{problem}{note}") from problem

    def _refuse_mistakes(self, text: str, messages: Sequence[dict[str, Any]], variables: Mapping[str, object]) -> None:
        """Refuse text that a template writes only by mistake: the repr of a list of parts, or an object's address."""
        written = [start for start in _PARTS if start in text]
        if not written and " at 0x" not in (text.lower() if self._changes_case else text):
            return
        # Llama 3.1 and others write results as JSON, also those in parts.
        results = [json.dumps(message.get("content")) for message in messages if message["role"] in TOOL_ROLES]
        record = json.dumps([*messages, variables, *results], ensure_ascii=False)
        if any(address not in self._known_text and address not in record for address in {*_ADDRESS.findall(text)}):
            reason = "writes the address of an object in memory, which no output may depend on"
            raise RecordProblem("template-failed", f"the chat template {reason}")
        if any(json.dumps(start)[1:-1] not in record for start in written):
            reason = "writes a content's parts as a list; join them in the record, or fix the template"
            raise RecordProblem("template-failed", f"the chat template {reason}")


def _change_values(message: Mapping[str, Any], changes: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Return a copy of a message with functions applied to the values of some keys."""
    new_values = {key: change(message[key]) for key, change in changes.items() if message.get(key) is not None}
    return {**message, **new_values}


class SearchedText:
    """A text in which each search starts where the last one matched, so finding parts in text order takes one pass.

    If a part is not found from there on, the search is repeated from the beginning of the text.
    """

    def __init__(self, text: str) -> None:
        self._text, self._position = text, 0

    def __contains__(self, part: str) -> bool:
        # Python prepares the search for a long text, which takes longer than the search for its beginning.
        position = self._text.find(part[:_SEARCHED_CHARACTERS], self._position)
        if position < 0 or not self._text.startswith(part, position):
            position = self._text.find(part, self._position)
        if position < 0:
            position = self._text.find(part)
        self._position = max(position, 0)
        return position >= 0


def has_content(message: Mapping[str, Any], text: SearchedText) -> bool:
    """Tell whether a text contains the content of a message, but perhaps not its thoughts."""
    return find_unwritten(message, text) != "content"


def find_unwritten(message: Mapping[str, Any], text: SearchedText) -> str | None:
    """Return `content` or UNWRITTEN_THOUGHT if a text lacks the content of a message, or only a thought in it.

    A tool's content counts as present if its longest word is, since a template may rewrite its JSON.
    """
    content = message.get("content") or ""
    if isinstance(content, str) and content.strip() in text:  # a shortcut for almost all messages
        return None
    parts = [content] if isinstance(content, str) else [part["text"] for part in content]
    if message["role"] in TOOL_ROLES:
        return None if max(_WORD.findall(" ".join(parts)), key=len, default="") in text else "content"
    missing_parts = [part for part in parts if part.strip() not in text]
    thoughts = [[part[begin:end] for begin, end in find_thoughts(part, (THINK,))] for part in missing_parts]
    if not all(thoughts):
        return "content"
    inner_texts = _THINK_TAG.split("".join(chain.from_iterable(thoughts)))
    return None if all(inner_text.strip() in text for inner_text in inner_texts) else UNWRITTEN_THOUGHT


def _as_parts(content: Any) -> Any:  # noqa: ANN401 - a text or parts
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _convert_arguments(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return calls with their arguments converted from JSON text to an object, or from an object to JSON text."""
    arguments = [function_of(call).get("arguments") for call in calls]
    converted_arguments = [parse_json(value) if isinstance(value, str) else _tojson(value) for value in arguments]
    return [change_call(call, arguments=new_value) for call, new_value in zip(calls, converted_arguments, strict=True)]


_CONTENTS: tuple[dict[str, Callable[[Any], Any]], ...] = ({}, {"content": join_parts}, {"content": _as_parts})
_CHANGES = [content | calls for content, calls in product(_CONTENTS, ({}, {"tool_calls": _convert_arguments}))]
"""For each form of a conversation, the functions that convert the values of its messages."""


def _remove_marks(pieces: Iterator[str], budget: _Budget, *, has_ends: bool) -> Rendered:
    """Remove the marks from the pieces of output; return the text and the spans that the marks delimit.

    A span ends at an end mark or, without `has_ends`, at the next begin mark or the end of the text.
    """
    texts, spans, position, limit = [], [], 0, _MAX_VALUE
    begin, message = -1, -1
    for piece in pieces if has_ends else chain(pieces, [f"{_BEGIN}-1"]):
        if _BEGIN <= piece < _AFTER_MARKS:
            if begin >= 0 and has_ends == (piece != _END):
                break
            if begin >= 0:
                spans.append(Span(begin, position, None if message < 0 else message))
            begin, message = (-1, -1) if piece == _END else (position, int(piece[1:]))
        else:
            texts.append(piece)
            position += len(piece)
            if position > limit:
                budget.take(len(piece))
    if begin >= 0 and has_ends:
        raise TemplateError("it leaves a generation block before its end (break, continue?)")
    return Rendered("".join(texts), spans)


class _CompiledTemplate:
    """A compiled template source, and facts about it from its syntax tree."""

    def __init__(self, source: str, date: datetime.date | None) -> None:
        environment = _make_environment(date)
        try:
            tree = environment.parse(source)
            for node in tree.find_all((nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)):
                raise TemplateError(f"line {node.lineno}: a chat template cannot use other files")
            self.names = frozenset(name.name for name in tree.find_all(nodes.Name))
            needed = _find_needed_variables(tree) - environment.globals.keys() - _ALWAYS_SET
            self.marks_generation = any(filter_node.name == _BEGIN for filter_node in tree.find_all(nodes.Filter))
            if not self.marks_generation:
                _mark_outputs(tree)
            _pass_turns(tree, [])
            _insert_steps(tree)
            _CharacterCounter().visit(tree)
            self.template = environment.from_string(tree)
        except Exception as error:  # the compilers of jinja2 and Python raise many types
            raise InputError(f"chat template: {_explain_refusal(error)}") from error
        environment.undefined = _undefined_type(needed)
        # A plain dict: jinja2's layered mapping takes half of the time of a short rendering.
        self.template.globals = dict(self.template.globals)

    def line_of(self, error: Exception) -> int:
        """Return the line of the template that raised the error; 1 if it is unknown."""
        lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == "<template>"]
        line: int = self.template.get_corresponding_lineno(lines[-1]) if lines else 1
        return line


def _explain_refusal(error: Exception) -> str:
    if isinstance(error, (MemoryError, RecursionError)):
        return f"too long, or nested too deep, for Python's compiler ({type(error).__name__})"
    line = getattr(error, "lineno", None)
    return f"{f'line {line}: ' if line else ''}{str(error) or type(error).__name__}"[:_SHOWN_CHARACTERS]


class _Budget:
    """The steps that one rendering may still take, and the room, in characters, that it may still fill."""

    __slots__ = ("_limit", "_record", "largest", "room", "steps")

    def __init__(self, record: object) -> None:
        self._record: object = record
        self.steps, self.room, self._limit, self.largest = MAX_STEPS, _MAX_CHARACTERS, _MAX_VALUE, 0

    def check_steps(self) -> None:
        """If no steps are left, allow more for a large record; raise TemplateError if that is not enough."""
        if self.steps < 0 and not (self._extend() and self.steps >= 0):
            raise TemplateError(f"its loops and macros take more than {MAX_STEPS:,} steps; it may never end")

    def take(self, size: int) -> None:
        """Count a value of `size` characters; raise TemplateError if it, or all values together, are too large."""
        self.room -= size
        if (self.room < 0 or size > self._limit) and not (self._extend() and self.room >= 0 and size <= self._limit):
            raise TemplateError(f"the texts that it makes are too large (one of {size:,} characters)")
        self.largest = max(self.largest, size)

    def weigh(self, *values: object) -> int:
        """Return the size of values and everything in them, in characters; stop once it is far above the limit.

        Each value counts for 8 more, since a list of many empty texts takes memory, too.
        """
        total, stack = 0, [*values]
        while stack and total <= self.room + _MAX_CHARACTERS:
            value = stack.pop()
            if isinstance(value, str):
                total += len(value)
            elif isinstance(value, int):
                total += value.bit_length() >> 3
            elif isinstance(value, dict):
                stack += [*value, *value.values()]
            elif isinstance(value, (list, tuple, AbstractSet, KeysView, ValuesView)):
                stack += value
            total += 8
        return total

    def _extend(self) -> bool:
        """Raise the limits in proportion to the record, once; return False if that was done before.

        This is done only when a limit is reached, because weighing a record takes time.
        """
        if self._record is None:
            return False
        weight, self._record = self.weigh(self._record), None
        self.steps += weight
        self.room += 16 * weight
        self._limit = max(self._limit, 4 * weight)
        return True


class _Namespace(Namespace):  # type: ignore[misc]  # read without its types
    """A namespace whose repr omits its contents: it may contain itself many times over, so its text could be huge."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Environment(ImmutableSandboxedEnvironment):  # type: ignore[misc]  # as above
    """The sandbox, which also counts the values that a template makes.

    To save time, expressions that it always allows skip its checks: `message.role`, `loop.first`, `text.strip`.
    """

    intercepted_binops = frozenset({"*", "**", "-", "+", "%"})

    def getitem(self, obj: Any, argument: Any) -> Any:  # noqa: ANN401 - any object of a template
        if type(obj) is list and type(argument) is int and -len(obj) <= argument < len(obj):
            return obj[argument]
        return super().getitem(_refuse_text(obj) if argument == "text" else obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - as above
        if type(obj) is dict and attribute not in _DICT_NAMES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if (type(obj) is str and attribute in _TEXT_NAMES) or (type(obj) is LoopContext and attribute in _LOOP_NAMES):
            return getattr(obj, attribute)
        if type(obj) is _Namespace and not attribute.startswith("_"):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(_refuse_text(obj) if attribute == "text" else obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401 - as above
        if operator == "+" and type(left) is str and type(right) is str:
            if len(left) + len(right) > _SMALL:
                context.parent[_BUDGET].take(len(left) + len(right))
            return left + right
        if operator == "-" and isinstance(left, AbstractSet):
            raise SecurityError("a set has no order, and output must not depend on chance; use selectattr or a loop")
        if (size := _measure_operation(context.parent[_BUDGET], operator, left, right)) > _SMALL:
            context.parent[_BUDGET].take(size)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **names: Any) -> Any:  # noqa: ANN401 - as above
        if type(__obj) is Macro:  # its output is counted when it is written
            return __context.call(__obj, *args, **names)
        budget = __context.parent[_BUDGET]
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if not isinstance(owner, str):
            return _charge_value(budget, super().call(__context, __obj, *args, **names))
        for name in ("_loop_vars", "_block_vars"):  # jinja2 adds them for functions that read the context
            names.pop(name, None)
        if __obj.__name__ in _REFUSED_METHODS:
            raise SecurityError(f"a template cannot use the method {__obj.__name__!r} of a text")
        if __obj.__name__ in _ENLARGING_METHODS:
            args = tuple([*value] if __obj.__name__ == "join" else value for value in args)
            budget.take(_measure_text(budget, owner, __obj.__name__, [*args, *names.values()]))
        return _charge_value(budget, __obj(*args, **names))


def _charge_value(budget: _Budget, value: Any) -> Any:  # noqa: ANN401 - any value
    if isinstance(value, str):
        if len(value) > _SMALL:
            budget.take(len(value))
    elif type(value) is not bool and isinstance(value, (list, tuple, dict, AbstractSet, ValuesView)):
        budget.take(budget.weigh(value))
    return value


def _measure_operation(budget: _Budget, operator: str, left: object, right: object) -> int:
    """Return an upper bound for the characters of an operation's result; 0 if it is about as large as its operands."""
    if isinstance(left, int) and isinstance(right, int):
        return (left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()) >> 3
    if operator == "%" and isinstance(left, str):
        return _measure_text(budget, left, "%", right if isinstance(right, tuple) else (right,))
    if operator == "*":
        operand, times = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(times, int) and isinstance(operand, (str, list, tuple)):
            return budget.weigh(operand) * max(times, 0)
    if operator == "+" and isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        # Weigh only the shorter list. The longer one was weighed when it was made, and weighing it again would make a
        # loop that appends one item at a time quadratic.
        return len(left) + len(right) + budget.weigh(min(left, right, key=len))
    return 0


def _measure_text(budget: _Budget, text: str, name: str, values: Sequence[Any]) -> int:
    """Return an upper bound for the characters of a method's or filter's result; 0 if it is about as long as `text`."""
    match name, *values:
        case (("center" | "ljust" | "rjust" | "zfill"), int(width), *_):
            return width
        case "replace", str(old), str(new), *_:
            return int(text.count(old)) * len(new)
        case "join", [*texts], *_:
            return budget.weigh(texts) + len(text) * len(texts)
        case "indent", *_:
            width = max((value if isinstance(value, int) else len(value) for value in values), default=4)
            return len(text.splitlines()) * width
        case (("format" | "%"), *_):
            is_wide = "*" in text and any(isinstance(value, int) and abs(value) > 999 for value in values)
            if _LARGE_WIDTH[name].search(text) or (name == "%" and is_wide):
                raise SecurityError("a width in a format is too large")
            return int(text.count("{" if name == "format" else "%")) * (budget.weigh(*values) + 999)
    return 0


def _guard_filter(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter so that its result is taken from the budget."""
    passed_argument = _PassArg.from_obj(make)

    def call_filter(context: Context, value: Any, *args: Any, **names: Any) -> Any:  # noqa: ANN401 - as above
        if name in _LIST_FILTERS:
            return make(context, _refuse_text(value), *args, **names)
        budget = context.parent[_BUDGET]
        if args or names or name in _ENLARGING_METHODS:
            arguments = [*args, *names.values()]
            if any(isinstance(number, int) and abs(number) > _MAX_NUMBER for number in arguments):
                raise SecurityError(f"a number for the filter {name!r} is too large")
            if name == "join":
                value = [*value]
                budget.take(sum(_measure_text(budget, str(text), "join", [value]) for text in arguments or [""]))
            elif isinstance(value, str):
                budget.take(_measure_text(budget, value, "%" if name == "format" else name, arguments))
        if passed_argument is not None:
            parts = {_PassArg.context: context, _PassArg.eval_context: context.eval_ctx}
            value, args = parts.get(passed_argument, context.environment), (value, *args)
        return _charge_value(budget, make(value, *args, **names))

    return pass_context(call_filter)  # type: ignore[no-any-return]  # as above


@pass_context
def _join_texts(context: Context, *values: object) -> str:
    """Join texts and count the result: for `~`, and for output that goes into a buffer, such as a macro's."""
    try:
        text = "".join(values)  # type: ignore[arg-type]  # mostly texts
    except TypeError:
        text = "".join(map(str, values))
    budget = context.parent[_BUDGET]
    budget.room -= len(text)
    if budget.room < 0 or len(text) > _SMALL:
        budget.take(0 if budget.room < 0 else len(text))
    return text


def _refuse_text(value: Any) -> Any:  # noqa: ANN401 - any list
    if isinstance(value, str):
        raise TypeError("it takes a text for a list of parts")
    return value


@pass_context
def _count_value(context: Context, value: Any, is_part: bool = False) -> Any:  # noqa: ANN401 - a literal or a slice
    budget = context.parent[_BUDGET]
    budget.take(len(value) if is_part else budget.weigh(value))
    return value


_BUFFERS = (nodes.Macro, nodes.CallBlock, nodes.AssignBlock, nodes.FilterBlock)


class _CharacterCounter(NodeTransformer):  # type: ignore[misc]  # as above
    """Wrap `~`, literals, slices and output into buffers in filters that count them.

    The hooks of the sandbox do not see how these values are made.
    """

    is_buffer = False

    def generic_visit(self, node: nodes.Node, *args: Any, **names: Any) -> nodes.Node:  # noqa: ANN401 - jinja2's
        was_buffer = self.is_buffer
        self.is_buffer |= isinstance(node, _BUFFERS)
        super().generic_visit(node, *args, **names)
        if isinstance(node, nodes.Output) and self.is_buffer:
            texts = [nodes.Const(part.data) if isinstance(part, nodes.TemplateData) else part for part in node.nodes]
            node.nodes = [text if getattr(text, "name", "") == _CONCAT else _filter(_CONCAT, text) for text in texts]
        self.is_buffer = was_buffer
        if isinstance(node, nodes.For):
            node.iter = node.iter if isinstance(node.iter, nodes.Const) else _filter(_ITEMS, node.iter)
        if isinstance(node, nodes.Concat):
            return _filter(_CONCAT, *node.nodes)
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return _filter(_COUNT, node, nodes.Const(True))
        is_literal = isinstance(node, (nodes.List, nodes.Dict)) or (
            isinstance(node, nodes.Tuple) and node.ctx == "load"
        )
        is_constant = next(node.find_all((nodes.Name, nodes.Filter, nodes.Call)), None) is None
        return node if is_constant or not is_literal else _filter(_COUNT, node)


def _filter(name: str, node: nodes.Expr, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _make_environment(date: datetime.date | None) -> ImmutableSandboxedEnvironment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    filters = {**environment.filters, "tojson": _tojson}
    environment.filters = {
        name: make if name in _FREE_FILTERS else _guard_filter(name, make)
        for name, make in filters.items()
        if name not in _REFUSED_FILTERS
    } | {_BEGIN: _message_mark, _STEP: _count_step, _CONCAT: _join_texts, _COUNT: _count_value, _ITEMS: _refuse_text}
    environment.globals["namespace"] = _Namespace
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = functools.partial(_format_date, date)
    # A function instead of the class: `dict.update(messages[0], ...)` would bypass the immutable sandbox.
    environment.globals["dict"] = lambda *pairs, **names: dict(*pairs, **names)
    del environment.globals["lipsum"]
    return environment


@pass_context
def _message_mark(context: Context, *turns: object) -> str:
    """Return a begin mark with the position of the first value that is a message, or -1.

    Args:
        context: jinja2's context.
        *turns: Values of the variables that may hold the block's message, the innermost loop first.
    """
    positions = context.parent[_TURNS]
    for turn in turns:
        if id(turn) in positions:
            return f"{_BEGIN}{positions[id(turn)]}"
    return f"{_BEGIN}-1"


@pass_context
def _count_step(context: Context, _: object) -> None:
    """Count a step. A step costs more once a large value exists, since each step may copy the value."""
    budget = context.parent[_BUDGET]
    budget.steps -= 1 + (budget.largest >> 14)
    if budget.steps < 0:
        budget.check_steps()


def _insert_steps(tree: nodes.Template) -> None:
    """Insert a step at the start of the body of each loop, macro and block."""
    for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)):
        step = _filter(_STEP, nodes.Const(None, lineno=node.lineno))
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))


def _format_date(date: datetime.date | None, date_format: str) -> str:
    if date is None:
        raise TemplateError("it asks for today's date; set `template_date`, since output must not depend on the day")
    return date.strftime(date_format)


def _find_needed_variables(tree: nodes.Template) -> frozenset[str]:
    """Return the variables that must be defined: the template neither sets them nor tests whether they are defined."""
    tests = [
        construct.test if isinstance(construct, (nodes.If, nodes.CondExpr)) else construct.node
        for construct in tree.find_all((nodes.If, nodes.CondExpr, nodes.Test, nodes.Filter))
        if getattr(construct, "name", "default") in {"defined", "undefined", "default", "d"}
    ]
    optional = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    optional |= {
        name.name for node in tests for name in (node, *node.find_all(nodes.Name)) if isinstance(name, nodes.Name)
    }
    # Special tokens are exempt: if the tokenizer has no such token, transformers writes nothing.
    return frozenset(name for name in meta.find_undeclared_variables(tree) - optional if not name.endswith("_token"))


def _mark_outputs(node: nodes.Node) -> None:
    """Insert a begin mark before each output node, except those that write into a buffer."""
    for body in (getattr(node, name, []) for name in ("body", "elif_", "else_") if not isinstance(node, _BUFFERS)):
        for child in body:
            _mark_outputs(child)
        marked = [[_begin_mark(child.lineno), child] if isinstance(child, nodes.Output) else [child] for child in body]
        body[:] = [part for parts in marked for part in parts]


def _begin_mark(line: int) -> nodes.Output:
    return nodes.Output([_filter(_BEGIN, nodes.Const(None))]).set_lineno(line)


def _pass_turns(node: nodes.Node, names: list[str]) -> None:
    """Pass each mark the variables that may hold its message.

    They are the targets of the loops around it, and variables set in these loops, such as `message` in
    `{% set message = messages[i] %}`.
    """
    for child in node.iter_child_nodes():
        if isinstance(child, nodes.Filter) and child.name == _BEGIN:
            child.args = [nodes.Name(name, "load") for name in names[1:]]
            child.node = nodes.Name(names[0], "load") if names else nodes.Const(None)
        inner = names
        if isinstance(child, nodes.For):
            stored = [name.name for name in child.find_all(nodes.Name) if name.ctx == "store"]
            inner = [*dict.fromkeys([*stored, *names])]
        _pass_turns(child, inner)


def _undefined_type(needed: frozenset[str]) -> type[Undefined]:
    class NamedUndefined(Undefined):  # type: ignore[misc]  # as above
        """An undefined value. Its error message says where to set the variable; writing a needed one is an error."""

        __slots__ = ()

        @property
        def _undefined_message(self) -> str:
            message: str = super()._undefined_message
            name = self._undefined_name if self._undefined_obj is missing else None
            if name in needed:
                return f"{message}; set it under `template_variables`, or in the record's `chat_template_kwargs`"
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
        return [
            _begin_mark(line),
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
    """Return JSON without the HTML escapes of jinja2's `tojson`, as transformers does."""
    sizes = [size if isinstance(size, int) else len(size) for size in (indent, *(separators or ())) if size]
    if any(size > _MAX_INDENT for size in sizes):
        raise SecurityError("an indentation or separator of JSON is too large")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object = "") -> NoReturn:
    raise TemplateError(f"it refuses the conversation: {message}")
