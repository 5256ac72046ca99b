"""jinja2's sandbox for chat templates, set up as in transformers.

As there, there are `ImmutableSandboxedEnvironment`, `trim_blocks`, `lstrip_blocks`, loop controls, `tojson` without
HTML escapes, `raise_exception`, `strftime_now` and `{% generation %}`; `dict` and `namespace` are restricted.
Everything that depends on chance, on the day or on earlier records is left out, so that a text is a function of its
record: the filter `random`, `lipsum`, today's date (which `template_date` replaces). So is access to other files. A
variable that nobody has set is refused when a template writes it, rather than written as nothing.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError, Undefined, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jinja2 import Template
    from jinja2.parser import Parser

# Mark trainable text during rendering. Lone surrogates cannot occur in text that has a UTF-8 encoding.
BEGIN_MARK, END_MARK = "\udfa0", "\udfa1"
_ALWAYS_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_OF_ANY_DICT = frozenset(dir(dict))
"""Names that mean the attribute, as in transformers, even where a key has the same name."""
_OF_LOOPS = frozenset(name for name in dir(LoopContext) if not name.startswith("_"))
"""Attributes of `loop`, all of which the sandbox allows."""
SHOWN_CHARACTERS = 1000
"""Limit on a reason, since a template may put a whole conversation into its exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledTemplate:
    """A template, which writes BEGIN_MARK and END_MARK around generated text."""

    template: Template
    marks_generation: bool
    needed_variables: frozenset[str]
    """Variables that must be given."""


def compile_template(source: str, date: str | None) -> CompiledTemplate:
    """Compile a template.

    Args:
        source: jinja2 text.
        date: For `strftime_now`, in ISO format; without it, a template that calls it fails.

    Raises:
        Exception: If the source is not an allowed template; jinja2's and Python's compilers raise many types.
    """
    environment = _make_environment(date)
    template = environment.from_string(source)
    template.globals = dict(template.globals)  # jinja2's own, in several layers, takes half of a short rendering's time
    tree = environment.parse(source)
    _refuse_other_files(tree)
    needed = _needed_variables(tree) - environment.globals.keys() - _ALWAYS_GIVEN
    environment.undefined = _undefined_type(needed)
    # Read from the tree, since the tag may also occur in a comment.
    marks = any(data.data == BEGIN_MARK for data in tree.find_all(nodes.TemplateData))
    return CompiledTemplate(template=template, marks_generation=marks, needed_variables=needed)


def explain_refusal(error: Exception) -> str:
    """Return the reason why `compile_template` has failed."""
    line = getattr(error, "lineno", None)
    if isinstance(error, (MemoryError, RecursionError)):
        return f"too long, or nested too deep, for Python's compiler ({type(error).__name__})"
    return f"{f'line {line}: ' if line else ''}{str(error) or type(error).__name__}"[:SHOWN_CHARACTERS]


class _Environment(ImmutableSandboxedEnvironment):  # type: ignore[misc]  # read without its types
    """The sandbox, in which `message.role` and `loop.first` are found without its checks, which they pass."""

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - any object of a template
        if type(obj) is dict and attribute not in _OF_ANY_DICT:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if type(obj) is LoopContext and attribute in _OF_LOOPS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def _make_environment(date: str | None) -> ImmutableSandboxedEnvironment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _clock(date)
    environment.globals["dict"] = _DictMaker()
    environment.globals["namespace"] = _PlainNamespace
    del environment.filters["random"], environment.globals["lipsum"]
    return environment


def _clock(date: str | None) -> Callable[[str], str]:
    def strftime_now(date_format: str) -> str:
        if date is None:
            raise TemplateError("it asks for today's date; set `template_date`: output must not depend on the day")
        return datetime.date.fromisoformat(date).strftime(date_format)

    return strftime_now


def _refuse_other_files(tree: nodes.Template) -> None:
    for node in tree.find_all((nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)):
        raise TemplateError(f"line {node.lineno}: a chat template cannot use other files")


def _needed_variables(tree: nodes.Template) -> frozenset[str]:
    """Return the variables that must be given: a template neither sets them nor asks whether they are there."""
    optional = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    for asked in tree.find_all((nodes.Test, nodes.Filter)):
        if asked.name in {"defined", "undefined", "default", "d"} and isinstance(asked.node, nodes.Name):
            optional.add(asked.node.name)
    for asked in tree.find_all((nodes.If, nodes.CondExpr)):
        optional.update(
            name.name for name in (asked.test, *asked.test.find_all(nodes.Name)) if isinstance(name, nodes.Name)
        )
    # A tokenizer may lack a special token, for which transformers writes nothing.
    return frozenset(name for name in meta.find_undeclared_variables(tree) - optional if not name.endswith("_token"))


def _undefined_type(needed: frozenset[str]) -> type[Undefined]:
    class NamedUndefined(Undefined):  # type: ignore[misc]  # as above
        """An undefined value that says where a variable is set, and refuses to be written if it is needed."""

        __slots__ = ()

        @property
        def _undefined_message(self) -> str:
            name = self._undefined_name
            if self._undefined_hint or self._undefined_obj is not missing or not isinstance(name, str):
                message: str = super()._undefined_message
                return message
            if name.endswith("_token"):
                return f"{name!r} is undefined; set it under `special_tokens`"
            if name not in needed:
                return f"{name!r} is undefined"
            return (
                f"{name!r} is undefined: nobody gave this variable; set it under `template_variables`, or "
                "in the record's `chat_template_kwargs`"
            )

        def __str__(self) -> str:
            if self._undefined_obj is missing and self._undefined_name in needed:
                self._fail_with_undefined_error()
            return ""

    return NamedUndefined


class _DictMaker:
    """`dict` without access to the class, whose `update` would bypass the immutable sandbox."""

    def __call__(self, *pairs: Any, **names: Any) -> dict[Any, Any]:  # noqa: ANN401 - as `dict` takes them
        return dict(*pairs, **names)

    def fromkeys(self, keys: Iterable[Any], value: object = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _PlainNamespace(Namespace):  # type: ignore[misc]  # as above
    """A namespace without names that are special in Python, such as `__html__`."""

    def __init__(*given: Any, **names: Any) -> None:  # noqa: ANN401 - as `dict` takes them
        self, *pairs = given  # allows `namespace(self=1)`
        attributes = dict(*pairs, **names)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: object) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the name {name!r}")


class _Generation(Extension):  # type: ignore[misc]  # as above
    """The block `{% generation %} … {% endgeneration %}`, whose text is trainable."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        outer = {"macro", "call", "set", "filter", "generation"} & set(parser._tag_stack[:-1])
        if outer:
            parser.fail(f"generation must not stand inside {min(outer)}", line)
        begin, end = (nodes.Output([nodes.TemplateData(mark)]).set_lineno(line) for mark in (BEGIN_MARK, END_MARK))
        return [begin, nodes.Scope(body).set_lineno(line), end]


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
