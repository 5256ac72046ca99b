"""Render chat templates in a guarded process: jinja2's sandbox, set up as in transformers, with trainable spans.

As in transformers, there are `ImmutableSandboxedEnvironment`, `trim_blocks`, `lstrip_blocks`, loop controls, `tojson`
without HTML escapes, `raise_exception`, `strftime_now` and `{% generation %}`; `dict` and `namespace` are restricted.
Everything that depends on chance, on the day or on earlier records is left out, so that a text is a function of its
record: the filter `random`, `lipsum`, today's date (which `template_date` replaces) and memory addresses. So is access
to other files.
"""

from __future__ import annotations

import datetime
import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jinja2.parser import Parser

# Mark trainable text during rendering. Lone surrogates cannot occur in text that has a UTF-8 encoding.
_BEGIN, _END = "\udfa0", "\udfa1"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")
_SHOWN_CHARACTERS = 1000
"""Limit on a reason, since a template may put a whole conversation into its exception."""

Answer = dict[str, Any]


def prepare(definition: dict[str, Any]) -> tuple[Answer, Callable[[bytes], Answer]]:
    """Compile a template.

    Args:
        definition: `source`; `constants`, variables for all conversations; `date`, in ISO format or None.

    Returns:
        `marks_generation`, or `refused` with the reason; and a function that renders a conversation.
    """
    environment = _make_environment(definition["date"])
    source = definition["source"]
    try:
        template = environment.from_string(source)
        tree = environment.parse(source)
        _refuse_other_files(tree)
    except Exception as error:  # noqa: BLE001 - Python's and jinja2's compilers raise many types
        return {"refused": _explain_refusal(error)}, _answer_nothing
    constants = json.dumps(definition["constants"], ensure_ascii=False)
    # An address spelled out in the template or its constants is not a memory address.
    known_text = json.dumps(source, ensure_ascii=False) + constants

    def render(record: bytes) -> Answer:
        try:
            # Parsed anew for each record, since rendering may change them.
            text = template.render({**json.loads(constants), **json.loads(record)})
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a faulty template may raise any error
            reason = _ADDRESS.sub(">", str(error) or type(error).__name__)[:_SHOWN_CHARACTERS]
            return _problem(f"does not render: {reason}")
        if " at 0x" in text and _has_new_address(text, known_text, record):
            return _problem("writes the address of an object in memory, which no output may depend on")
        return _take_marks(text)

    # Read from the tree, since the tag may also occur in a comment.
    marks = any(data.data == _BEGIN for data in tree.find_all(nodes.TemplateData))
    return {"marks_generation": marks}, render


def _make_environment(date: str | None) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
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


def _explain_refusal(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    if isinstance(error, (MemoryError, RecursionError)):
        return f"too long, or nested too deep, for Python's compiler ({type(error).__name__})"
    return f"{f'line {line}: ' if line else ''}{str(error) or type(error).__name__}"[:_SHOWN_CHARACTERS]


def _answer_nothing(record: bytes) -> Answer:
    raise AssertionError(f"a refused template cannot render {record!r}")


def _has_new_address(text: str, known_text: str, record: bytes) -> bool:
    """Tell whether a text has an address that occurs neither in the template nor in the record."""
    return any(found not in known_text and found.encode() not in record for found in {*_ADDRESS.findall(text)})


def _problem(reason: str) -> Answer:
    return {"problem": f"the chat template {reason}"}


class _DictMaker:
    """`dict` without access to the class, whose `update` would bypass the immutable sandbox."""

    def __call__(self, *pairs: Any, **names: Any) -> dict[Any, Any]:  # noqa: ANN401
        return dict(*pairs, **names)

    def fromkeys(self, keys: Iterable[Any], value: object = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _PlainNamespace(Namespace):  # type: ignore[misc]
    """A namespace without names that are special in Python, such as `__html__`."""

    def __init__(*given: Any, **names: Any) -> None:  # noqa: ANN401
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


class _Generation(Extension):  # type: ignore[misc]
    """The block `{% generation %} … {% endgeneration %}`, whose text is trainable."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        outer = {"macro", "call", "set", "filter", "generation"} & set(parser._tag_stack[:-1])
        if outer:
            parser.fail(f"generation must not stand inside {min(outer)}", line)
        begin, end = (nodes.Output([nodes.TemplateData(mark)]).set_lineno(line) for mark in (_BEGIN, _END))
        return [begin, nodes.Scope(body).set_lineno(line), end]


def _take_marks(marked: str) -> Answer:
    pieces = re.split(f"([{_BEGIN}{_END}])", marked)
    spans: list[tuple[int, int]] = []
    opened: int | None = None
    position = 0
    for piece in pieces:
        if piece == _BEGIN and opened is None:
            opened = position
        elif piece == _END and opened is not None:
            spans.append((opened, position))
            opened = None
        elif piece in (_BEGIN, _END):
            break
        else:
            position += len(piece)
    else:
        if opened is None:
            return {"text": "".join(pieces[::2]), "spans": spans}
    return _problem("leaves a generation block before its end (break, continue?)")


def _tojson(
    value: Any,  # noqa: ANN401
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as chat templates expect it, without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object = "") -> NoReturn:
    raise TemplateError(f"it refuses the conversation: {message}")
