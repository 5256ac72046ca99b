"""Find whether a template reads a message's content as a text, as a list of parts, or both, and pass what it reads.

A template that reads only texts writes a list as Python's `[{'type': 'text', …}]` or drops it; one that reads only
parts drops a text, or writes it letter by letter. So the form is tried out for each role, on a conversation whose text
is known: a form is read if that text is in the result, and a part's key `text` in quotes is not.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsindex.instruction.generation import Rendered

    Render = Callable[[list[dict[str, Any]], bool], Rendered | str]

Form = Literal["any", "text", "parts", "one part"]

_WORDS = ("Quxarb", "Zorvim")
_OTHER = "Blenk"
_PART_AS_TEXT = re.compile(r"""['"]text['"]""")
_CALL = {"type": "function", "id": "abcdef123", "function": {"name": "f", "arguments": {"x": 1}}}


class ContentForms:
    """The forms that one template reads, found when a role first occurs.

    Args:
        render: Renders messages; returns a reason if they do not render.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._forms: dict[str, Form] = {}

    def fit(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return messages whose contents have a form that the template reads, the same otherwise."""
        fitting = []
        for message in messages:
            content = message.get("content")
            form = self.form_of(message["role"]) if content is not None else "any"
            if form == "text" and isinstance(content, list):
                content = "".join(part["text"] for part in content)
            elif form == "one part" and isinstance(content, list):
                content = _as_parts("".join(part["text"] for part in content))
            elif form in ("parts", "one part") and isinstance(content, str):
                content = _as_parts(content)
            is_same = content is message.get("content")
            fitting.append(message if is_same else {**message, "content": content})
        return fitting

    def form_of(self, role: str) -> Form:
        """Return what the template reads for a role; `text` also if neither form is seen in its result."""
        if role not in self._forms:
            self._forms[role] = self._find(role)
        return self._forms[role]

    def _find(self, role: str) -> Form:
        text, parts, one = (
            self._read(role, content)
            for content in (
                " ".join(_WORDS),
                [*_as_parts(_WORDS[0]), *_as_parts(_WORDS[1])],
                _as_parts(" ".join(_WORDS)),
            )
        )
        if _is_read(text):
            return "any" if _is_read(parts) else "text"
        if _is_read(parts):
            return "parts"
        return "one part" if _is_read(one) else "text"

    def _read(self, role: str, content: object) -> str:
        """Return a rendered conversation with this content, if possible one in which it occurs."""
        texts = []
        for messages in _conversations({"role": role, "content": content}):
            rendered = self._render(messages, False)
            if not isinstance(rendered, str):
                texts.append(rendered[0])
                if _is_read(rendered[0]):
                    return rendered[0]
        return texts[0] if texts else ""


def _conversations(message: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Return conversations in which a message of its role may stand, the other messages with texts or with parts."""
    found: list[list[dict[str, Any]]] = []
    for other in (_OTHER, _as_parts(_OTHER)):
        system = {"role": "system", "content": other}
        user, reply = {"role": "user", "content": other}, {"role": "assistant", "content": other}
        role = message["role"]
        if role == "user":
            found += [message, reply], [message], [system, message, reply]
        elif role == "assistant":
            found += [user, message], [system, user, message]
        elif role in ("system", "developer"):
            found += [[message, user, reply]]
        else:
            tool = {**message, "tool_call_id": _CALL["id"], "name": "f"}
            calling = {"role": "assistant", "tool_calls": [_CALL]}
            found += [user, {**calling, "content": other}, tool], [user, calling, tool]
    return found


def _as_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _is_read(text: str) -> bool:
    return all(word in text for word in _WORDS) and _PART_AS_TEXT.search(text) is None
