"""A chat template: messages -> the text of a conversation, and which of its characters are learnt.

Templates are rendered as Hugging Face's transformers renders them (`trim_blocks`, `lstrip_blocks`, loop controls,
`{% generation %}`, `tojson`, `raise_exception`), inside the sandbox of `sandbox.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension

from dsindex.errors import InputError
from dsindex.instruct.records import Message, RecordProblem, strings_in
from dsindex.instruct.sandbox import MeteredEnvironment

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable, Mapping, Sequence

    from jinja2.parser import Parser

    from dsindex.instruct.tokens import Span

# Around generated text while it is rendered. Lone surrogates cannot be part of a text that has a UTF-8 form.
_BEGIN, _END = "\udfa0", "\udfa1"

_DATE_FORMAT = re.compile(r"(?:%[-]?[dmYyjHMSbBaAp]|%%|[^%]){0,64}")


class ChatTemplate:
    """A compiled template.

    Args:
        source: jinja2 text.
        constants: Variables that every conversation sees: names of special tokens, `chat_template_data`.
        date: What `strftime_now` sees; without it a template that calls it fails on every record.
        join_lines: Remove newlines between `}` and `{` first, as Modalities does.

    Raises:
        InputError: If the source is not a template that may be used.
    """

    def __init__(
        self,
        source: str,
        *,
        constants: Mapping[str, Any] | None = None,
        date: datetime.date | None = None,
        join_lines: bool = False,
    ) -> None:
        self._constants = dict(constants or {})
        self._date = date
        functions: dict[str, Callable[..., Any]] = {
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
        }
        self._environment = MeteredEnvironment(functions=functions, extensions=[_Generation])
        source = source.replace("}\n{", "}{") if join_lines else source
        try:
            self._template = self._environment.compile_template(source)
            texts = self._environment.parse(source).find_all(nodes.TemplateData)
        except (TemplateError, RecursionError, SyntaxError, ValueError) as error:
            raise InputError(f"chat template: {_where(error)}{str(error) or type(error).__name__}") from error
        # Asked of the tree, since the tag may also stand in a comment.
        self.marks_generation = any(text.data == _BEGIN for text in texts)
        """Whether the template has `{% generation %}` blocks."""

    def render(self, messages: Sequence[Message], **variables: object) -> tuple[str, list[Span]]:
        """Render one conversation.

        Args:
            messages: With `role` and `content`.
            variables: Further JSON data, such as `tools`.

        Returns:
            The text, and the spans of characters that stand in `{% generation %}` blocks.

        Raises:
            RecordProblem: If the template does not render this conversation.
        """
        # None rather than missing, as in transformers: templates ask `tools is not none`.
        known = {"tools": None, "documents": None, **self._constants, **variables}
        known |= {"messages": list(messages), "add_generation_prompt": False}
        for text in strings_in(known):
            if _BEGIN in text or _END in text:
                raise RecordProblem("bad-text", "expected Unicode text, got a lone surrogate")
        try:
            marked = self._environment.render(self._template, known)
        except Exception as error:
            # Any Python error may come of a template's own mistakes.
            reason = str(error) or type(error).__name__
            raise RecordProblem("template-failed", f"the chat template does not render: {reason}") from error
        return _take_marks(marked)

    def _strftime_now(self, date_format: str) -> str:
        if self._date is None:
            raise TemplateError("it asks for today's date; set `template_date`: output must not depend on the day")
        if not isinstance(date_format, str) or not _DATE_FORMAT.fullmatch(date_format):
            raise TemplateError(f"expected a plain date format of at most 64 characters, got {date_format!r:.80}")
        return self._date.strftime(date_format)


class _Generation(Extension):  # type: ignore[misc]
    """`{% generation %} … {% endgeneration %}`: what a model is to learn."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        outer = {"macro", "call", "set", "filter", "generation"} & set(parser._tag_stack[:-1])
        if outer:
            parser.fail(f"generation must not stand inside {min(outer)}", line)
        begin, end = (nodes.Output([nodes.TemplateData(mark)]).set_lineno(line) for mark in (_BEGIN, _END))
        return [begin, nodes.Scope(body).set_lineno(line), end]


def _take_marks(marked: str) -> tuple[str, list[Span]]:
    pieces = re.split(f"([{_BEGIN}{_END}])", marked)
    spans: list[Span] = []
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
            return "".join(pieces[::2]), spans
    raise RecordProblem(
        "template-failed", "the chat template leaves a generation block before its end (break, continue?)"
    )


def _raise_exception(message: object = "") -> NoReturn:
    raise TemplateError(f"it refuses the conversation: {message}")


def _where(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    return f"line {line}: " if line else ""
