"""Render chat templates in a guarded process: texts of conversations with their trainable spans.

What is trainable is marked by the template (`{% generation %}`), or found by rendering beginnings of the conversation
(`generation.py`). The encoder sees only the result: a text, and the spans of its characters that are learnt.
"""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING, Any

import orjson

from dsindex.instruction.content_forms import ContentForms
from dsindex.instruction.generation import GenerationFinder, NotFoundError, keep_learnt
from dsindex.instruction.template_language import (
    BEGIN_MARK,
    END_MARK,
    SHOWN_CHARACTERS,
    compile_template,
    explain_refusal,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsindex.instruction.generation import Rendered

Answer = dict[str, Any]
_KNOWN_VARIABLES = 64
"""Variables of records for which a template's replies stay proven."""
_USUAL_BYTES = 1 << 20
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")


def prepare(definition: dict[str, Any]) -> tuple[Answer, Callable[[bytes], Answer | bytes]]:
    """Compile a template.

    Args:
        definition: `source`; `tool_source`, the template for records with `tools`, or None; `constants`, variables for
            all conversations; `date`, in ISO format or None; `assistant`, the role of replies; and
            `finds_generation`, whether to find the text of replies in a template without marks.

    Returns:
        `marks_generation`, and `not_found`, the reason why replies cannot be found or None; or `refused` with the
        reason why the template is not allowed. And a function that renders a conversation.
    """
    templates = []
    for source in (definition["source"], definition["tool_source"]):
        try:
            templates.append(None if source is None else _Template(source, definition))
        except Exception as error:  # noqa: BLE001 - Python's and jinja2's compilers raise many types
            return {"refused": explain_refusal(error)}, _answer_nothing
    main, for_tools = templates
    if main is None:
        raise ValueError("expected a source")

    def render(record: bytes) -> Answer | bytes:
        request = orjson.loads(record) if record.startswith(b"{") else json.loads(record)
        template = for_tools if for_tools is not None and request["variables"].get("tools") is not None else main
        return _spell(template.answer(request, record), len(record))

    facts = [template.facts for template in templates if template is not None]
    reasons = [fact["not_found"] for fact in facts if fact["not_found"] is not None]
    return {
        "marks_generation": all(fact["marks_generation"] for fact in facts),
        "not_found": reasons[0] if reasons else None,
    }, render


class _RenderError(Exception):
    """The reason why a conversation does not render."""


class _Template:
    """A template, with what is known of it."""

    def __init__(self, source: str, definition: dict[str, Any]) -> None:
        compiled = compile_template(source, definition["date"])
        self._template = compiled.template
        self._constants = json.dumps(definition["constants"], ensure_ascii=False)
        parsed = json.loads(self._constants)
        is_plain = not any(isinstance(value, (dict, list)) for value in parsed.values())
        self._plain_constants = parsed if is_plain else None
        # An address spelled out in the template or its constants is not a memory address.
        self._known_text = json.dumps(source, ensure_ascii=False) + self._constants
        self._assistant: str = definition["assistant"]
        self._forms = ContentForms(functools.partial(self._try, {}))
        self._finds = definition["finds_generation"] and not compiled.marks_generation
        self._find_for = functools.lru_cache(maxsize=_KNOWN_VARIABLES)(self._make_finder)
        self._needs_variables = bool(compiled.needed_variables - definition["constants"].keys())
        not_found = None
        if self._finds:
            try:
                self._find_for("{}")
            except NotFoundError as error:
                # What only records give may be missing.
                not_found = None if self._needs_variables else str(error)
        self.facts = {"marks_generation": compiled.marks_generation, "not_found": not_found}

    def answer(self, request: dict[str, Any], record: bytes) -> Answer:
        """Render a conversation.

        Args:
            request: As made by `write_conversation`.
            record: The same as JSON.

        Returns:
            `text` and `spans`, or `problem`, the reason, and `kind`.
        """
        try:
            text, spans = self._render(request["variables"], self._forms.fit(request["messages"]), is_prompt=False)
            if " at 0x" in text and _has_new_address(text, self._known_text, record):
                raise _RenderError("writes the address of an object in memory, which no output may depend on")
            return {"text": text, "spans": self._find_learnt(request, text, spans)}
        except _RenderError as error:
            return {"kind": "template-failed", "problem": f"the chat template {error}"}
        except NotFoundError as error:
            return {"kind": "generation-not-found", "problem": str(error)}

    def _find_learnt(self, request: dict[str, Any], text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        messages, learnt = request["messages"], request.get("learnt")
        render = functools.partial(self._try_forms, request["variables"])
        if self._finds:
            own = {name: value for name, value in request["variables"].items() if name not in ("tools", "documents")}
            finder = self._find_for(json.dumps(own, sort_keys=True) if self._needs_variables else "{}")
            return finder.find(render, messages, text, learnt)
        if learnt is None:
            return spans
        replies = [number for number, message in enumerate(messages) if message["role"] == self._assistant]
        return keep_learnt(render, messages, spans, replies, learnt)

    def _make_finder(self, variables: str) -> GenerationFinder:
        return GenerationFinder(functools.partial(self._try_forms, json.loads(variables)), self._assistant)

    def _try_forms(self, variables: dict[str, Any], messages: list[Any], is_prompt: bool) -> Rendered | str:
        return self._try(variables, self._forms.fit(messages), is_prompt)

    def _try(self, variables: dict[str, Any], messages: list[Any], is_prompt: bool) -> Rendered | str:
        """Return the rendered text with its spans, or the reason why there is none."""
        try:
            return self._render(variables, messages, is_prompt=is_prompt)
        except _RenderError as error:
            return str(error)

    def _render(self, variables: dict[str, Any], messages: list[Any], *, is_prompt: bool) -> Rendered:
        # Constants with objects or lists are parsed anew for each record, since rendering may change them.
        constants = json.loads(self._constants) if self._plain_constants is None else self._plain_constants
        known = {**constants, **variables, "messages": messages, "add_generation_prompt": is_prompt}
        try:
            return _take_marks(self._template.render(known))
        except (MemoryError, _RenderError):
            raise
        except Exception as error:
            reason = _ADDRESS.sub(">", str(error) or type(error).__name__)[:SHOWN_CHARACTERS]
            raise _RenderError(f"does not render: {reason}") from error


def _spell(answer: Answer, num_bytes: int) -> Answer | bytes:
    """Return an answer to a record of `num_bytes` as JSON, fast; or as it is if orjson does not write it.

    A text that is out of proportion is left to Python, which raises MemoryError where memory is limited.
    """
    if len(answer.get("text", "")) > _USUAL_BYTES + 4 * num_bytes:
        return answer
    try:
        return orjson.dumps(answer)
    except TypeError:  # a lone surrogate
        return answer


def _answer_nothing(record: bytes) -> Answer:
    raise AssertionError(f"a refused template cannot render {record!r}")


def _has_new_address(text: str, known_text: str, record: bytes) -> bool:
    """Tell whether a text has an address that occurs neither in the template nor in the record."""
    return any(found not in known_text and found.encode() not in record for found in {*_ADDRESS.findall(text)})


def _take_marks(marked: str) -> Rendered:
    before, *opened = marked.split(BEGIN_MARK)
    pieces, spans, position = [before], [], len(before)
    for piece in opened:
        marked_text, _, after = piece.partition(END_MARK)
        spans.append((position, position + len(marked_text)))
        position += len(marked_text) + len(after)
        pieces += (marked_text, after)
    text = "".join(pieces)
    if marked.count(END_MARK) != len(opened) or END_MARK in text:
        raise _RenderError("leaves a generation block before its end (break, continue?)")
    return text, spans
