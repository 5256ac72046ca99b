"""Render messages with a chat template as the text of a conversation with its trainable spans of characters.

Templates are rendered as in Hugging Face's transformers (`rendering.py`), in guarded processes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from dsindex.errors import InputError, RecordProblem
from dsindex.instruction.records import ANY_CONVERSATION, check_text, strings_in
from dsindex.instruction.rendered import LINE_TAG, read_answer, spell_text
from dsindex.text.guarded_process import GuardedWork, LimitReachedError

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterator, Mapping, Sequence

    from dsindex.instruction.config import InstructionConfig
    from dsindex.instruction.records import ConversationReader, Message
    from dsindex.instruction.rendered import RenderedText
    from dsindex.instruction.tokens import ChatTokenizer, Span
    from dsindex.text.guarded.limits import Limits

    Rendered: TypeAlias = tuple[str, list[Span]]


class ChatTemplate:
    """A compiled template. Picklable and thread-safe.

    Args:
        source: jinja2 text.
        tool_source: The template for conversations with `tools`, which some tokenizers have; None for the same.
        constants: Variables for all conversations: names of special tokens, `template_variables`.
        date: The date for `strftime_now`; without it, a template that calls it fails on every record.
        join_lines: Remove newlines between `}` and `{` first, as Modalities does.
        assistant_role: Role of the messages that the model generates.
        finds_generation: Find the text of replies by rendering beginnings of a conversation, if the template has no
            marks. Otherwise no text of such a template is trainable.
        reader: Reads the lines of `render_spelt`.
        special_tokens: Strings to look for in the records of lines.
        refuses_special: Whether a line with one of them is a bad record.
        limits: Time and memory limits for one rendering; None for the defaults.

    Raises:
        InputError: If the source is not an allowed template, or replies are to be found and cannot.
    """

    def __init__(
        self,
        source: str,
        *,
        tool_source: str | None = None,
        constants: Mapping[str, Any] | None = None,
        date: datetime.date | None = None,
        join_lines: bool = False,
        assistant_role: str = "assistant",
        finds_generation: bool = False,
        reader: ConversationReader = ANY_CONVERSATION,
        special_tokens: Sequence[str] = (),
        refuses_special: bool = False,
        limits: Limits | None = None,
    ) -> None:
        definition = {
            "source": source.replace("}\n{", "}{") if join_lines else source,
            "tool_source": tool_source,
            # None rather than missing, as in transformers: templates test `tools is not none`.
            "constants": {"tools": None, "documents": None, **(constants or {})},
            "date": date.isoformat() if date is not None else None,
            "assistant": assistant_role,
            "finds_generation": finds_generation,
            "reading": asdict(replace(reader, roles=dict(reader.roles))),
            "special": {"contents": list(special_tokens), "is_refused": refuses_special},
        }
        try:
            self._work = GuardedWork(
                "dsindex.instruction.rendering", definition, subject="the chat template", limits=limits
            )
        except LimitReachedError as error:
            raise InputError(f"{error.reason}; change it") from error
        if "refused" in self._work.facts:
            raise InputError(f"chat template: {self._work.facts['refused']}")
        if self._work.facts["not_found"] is not None:
            raise InputError(
                "chat template: it does not mark the generated text with {% generation %}, and that text cannot be "
                f"found: {self._work.facts['not_found']}"
            )
        self.marks_generation: bool = self._work.facts["marks_generation"]
        """Whether the template has `{% generation %}` blocks."""

    def render(
        self, messages: Sequence[Message], *, learnt: Sequence[int] | None = None, **variables: object
    ) -> Rendered:
        """Render one conversation.

        Args:
            messages: Messages with `role` and `content`.
            learnt: Positions of the replies that are trainable; None for all.
            **variables: Further JSON data, such as `tools`.

        Returns:
            The text, and the spans of its characters that are trainable: those inside `{% generation %}` blocks, or of
            the replies that were found.

        Raises:
            RecordProblem: If the template does not render this conversation, or the replies cannot be found.
            LimitReachedError: If rendering it takes too much time or memory.
        """
        [rendered] = self.render_all([write_conversation(messages, variables, learnt=learnt)])
        if isinstance(rendered, RecordProblem):
            raise rendered
        return rendered

    def render_all(self, conversations: Sequence[bytes]) -> Iterator[Rendered | RecordProblem]:
        """Render conversations in order.

        Args:
            conversations: Results of `write_conversation`; a few MiB together.

        Yields:
            For each conversation, the result of `render` or the problem that it raises.

        Raises:
            LimitReachedError: At the first conversation that takes too much time or memory.
        """
        for rendered in self.render_spelt(conversations):
            yield rendered if isinstance(rendered, RecordProblem) else rendered.in_characters()

    def render_spelt(self, requests: Sequence[bytes]) -> Iterator[RenderedText | RecordProblem]:
        """Render conversations in order, without a Python object for each of their texts.

        Args:
            requests: Results of `write_conversation` and `write_line`; a few MiB together.

        Yields:
            For each conversation, its text, or the problem that `render` raises, or that reading its line raises.

        Raises:
            LimitReachedError: At the first conversation that takes too much time or memory.
        """
        return self._work.run(requests, parse=_parse_answer)


def open_template(config: InstructionConfig, tokenizer: ChatTokenizer, limits: Limits | None) -> ChatTemplate:
    """Return the chat template of a configuration or of its tokenizer.

    Raises:
        InputError: If there is none, or it cannot be used.
    """
    source, tool_source = config.chat_template, None
    if source is None:
        source = tokenizer.chat_templates.get(config.chat_template_name)
        if config.chat_template_name == "default":
            tool_source = tokenizer.chat_templates.get("tool_use")  # as in transformers
    if source is None:
        known = ", ".join(sorted(tokenizer.chat_templates)) or "none"
        raise InputError(
            f"expected message_construction, a chat_template, or a tokenizer with a chat template "
            f"{config.chat_template_name!r}; the tokenizer has {known}"
        )
    return ChatTemplate(
        source,
        tool_source=tool_source,
        constants={
            **tokenizer.special_tokens,
            **config.special_tokens,
            "chat_template_data": config.chat_template_data,
            **config.template_variables,
        },
        date=config.template_date,
        join_lines=config.join_template_lines,
        assistant_role=config.assistant_role,
        finds_generation=config.b_include_to_loss_token is None,
        reader=config.reader,
        special_tokens=tokenizer.special_contents(),
        refuses_special=config.special_tokens_in_text == "refuse",
        limits=limits,
    )


def write_conversation(
    messages: Sequence[Message], variables: Mapping[str, Any], *, learnt: Sequence[int] | None = None
) -> bytes:
    """Return the request to render one conversation, as JSON.

    Args:
        messages: Messages with `role` and `content`.
        variables: The conversation's own variables of the template.
        learnt: Positions of the replies that are trainable; None for all.

    Raises:
        RecordProblem: If a text contains a lone surrogate.
    """
    request: dict[str, Any] = {"variables": dict(variables), "messages": list(messages)}
    if learnt is not None:
        request["learnt"] = list(learnt)
    spelt = write_plain(request)
    if spelt is not None:
        return spelt
    for text in strings_in(request):
        check_text(text)
    # A blank before it tells the reader that only Python's own parser reads it as it was.
    return b" " + json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode()


def write_line(line: bytes) -> bytes:
    """Return the request to read and render the conversation of a record as stored in a file, without a newline."""
    return LINE_TAG + line


def write_plain(value: object) -> bytes | None:
    """Return JSON data as JSON, fast; None if it has something that orjson does not write, or not as Python reads it.

    These are lone surrogates, integers beyond 64 bits, NaN and infinities, which become null, and deep nesting.
    """
    try:
        spelt = orjson.dumps(value)
    except TypeError:
        return None
    return None if b"null" in spelt else spelt


def _parse_answer(answer: bytes) -> RenderedText | RecordProblem:
    text = read_answer(answer)
    if text is not None:
        return text
    parsed = json.loads(answer)
    if "problem" in parsed:
        return RecordProblem(parsed["kind"], parsed["problem"])
    try:
        check_text(parsed["text"])
    except RecordProblem as problem:
        return problem
    return spell_text(parsed["text"], parsed["spans"])
