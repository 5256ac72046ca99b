r"""Find which text a model generates, in a template without `{% generation %}`.

A reply is what follows the prompt: the conversation up to it, rendered with `add_generation_prompt`. It ends where the
conversation up to and with it, rendered alone, ends, without what the template writes only at the end of a text:

    prompt   <|user|>Hi<|end|><|assistant|>
    reply    <|user|>Hi<|end|><|assistant|>Hello!<|end|>\n<eos>
    whole    <|user|>Hi<|end|><|assistant|>Hello!<|end|>\n<|user|>Bye<|end|><|assistant|>…
                                           ^^^^^^^^^^^^^^^

This is used only where it is proven. Conversations of known texts must show that a template writes replies like this;
otherwise it is refused. And in each record, the prompt and the reply must be beginnings of the whole text; otherwise
(some templates leave the reasoning out of earlier replies) the record is bad.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Span: TypeAlias = tuple[int, int]
    Rendered: TypeAlias = tuple[str, list[Span]]
    Render: TypeAlias = Callable[[list[dict[str, Any]], bool], Rendered | str]
    """Renders messages, with or without `add_generation_prompt`; returns a reason if they do not render."""

_UNITS = re.compile(r"(?P<control><[^<>\s]+>|\[/?[A-Z_]+\])|\s+|\w+|.", re.DOTALL)
"""A special token as most templates spell them, blanks, a word, or another character."""
_ASKED, _REPLIED = ("Quxarb", "Zorvim"), ("Blenkot", "Fyrdas")
"""Texts of the user and of replies in probes."""
_SHOWN = 60
_ADVICE = "use a template with {% generation %}, or one of dsindex's own, such as `chat_template: chatml`"
_LAST_TURN = "set `learn: last_turn`, or "


class NotFoundError(Exception):
    """The reason why the generated text cannot be found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """What follows a reply's content."""

    closing: str
    """All of it, at the end of a text."""
    end: str
    """The beginning of `closing` that belongs to the last reply."""
    inner_end: str
    """What belongs to a reply that other messages follow."""


class GenerationFinder:
    """Finds the text of replies in conversations that one template renders.

    Args:
        render: Renders messages without further variables.
        assistant: Role of replies.

    Raises:
        NotFoundError: If it is not proven for this template.
    """

    def __init__(self, render: Render, assistant: str) -> None:
        self._assistant = assistant
        system = [{"role": "system", "content": "Brovik"}]
        # Some templates need a system message.
        first = [] if not isinstance(render(_turn(assistant), False), str) else system
        self._leading, self._has_prompt, self._ending = _find_ending(render, assistant, first)
        self._prove(render, first)

    def find(
        self, render: Render, messages: Sequence[dict[str, Any]], text: str, learnt: Sequence[int] | None
    ) -> list[Span]:
        """Return the spans of replies.

        Args:
            render: Renders messages with the record's variables.
            messages: The conversation.
            text: Its rendered text.
            learnt: Positions of the wanted replies; None for all.

        Raises:
            NotFoundError: If a prompt or a reply alone is not a beginning of the text.
        """
        if learnt is None:
            learnt = [number for number, message in enumerate(messages) if message["role"] == self._assistant]
        return [self._find_reply(render, list(messages), text, number) for number in learnt]

    def _find_reply(self, render: Render, messages: list[dict[str, Any]], text: str, number: int) -> Span:
        is_last = number == len(messages) - 1
        prompt = _render(render, messages[:number], number, is_prompt=True)
        alone = text if is_last else _render(render, messages[: number + 1], number, is_prompt=False)
        reply = self._without_closing(alone, text, is_last=is_last)
        if not (text.startswith(prompt) and reply.startswith(prompt)):
            raise NotFoundError(
                f"message {number + 1}: the template writes the prompt otherwise than the beginning of the text "
                f"({_difference(prompt, text)}), so the generated text cannot be found; "
                f"{'' if is_last else _LAST_TURN}{_ADVICE}"
            )
        if not text.startswith(reply):
            raise NotFoundError(
                f"message {number + 1}: the template writes this reply otherwise when messages follow it "
                f"({_difference(reply, text)}), so the generated text cannot be found; {_LAST_TURN}{_ADVICE}"
            )
        if self._has_prompt and number and messages[number - 1]["role"] != "user":
            self._require_prompt(render, messages[:number], prompt)
        return len(prompt), len(reply)

    def _require_prompt(self, render: Render, messages: list[dict[str, Any]], prompt: str) -> None:
        """Check that a generation prompt is written here too: a reply would begin with it otherwise."""
        if prompt == _render(render, messages, len(messages), is_prompt=False):
            raise NotFoundError(
                f"message {len(messages) + 1}: the template writes no generation prompt after a message of the role "
                f"{messages[-1]['role']!r}, so the generated text cannot be found; {_ADVICE}"
            )

    def _without_closing(self, alone: str, text: str, *, is_last: bool) -> str:
        """Return a conversation that ends with a reply, without what does not belong to the reply."""
        ending = self._ending
        if is_last:
            return alone.removesuffix(ending.closing[len(ending.end) :])
        if text.startswith(alone) or not alone.endswith(ending.closing):
            return alone
        return alone.removesuffix(ending.closing) + ending.inner_end

    def _prove(self, render: Render, first: list[dict[str, Any]]) -> None:
        """Check on conversations of known texts that the spans have every reply, and no other text."""
        num_proven = 0
        for probe in _probes(self._assistant):
            messages = [*first, *probe]
            rendered = render(messages, False)
            if isinstance(rendered, str):
                continue
            text = rendered[0]
            try:
                found = "\0".join(text[begin:end] for begin, end in self.find(render, messages, text, None))
            except NotFoundError:
                if num_proven == 0:
                    raise
                continue
            # Only thoughts, the beginning of which the model generates, may stand in front of a reply.
            if messages[-1].keys() == {"role", "content"}:
                leading = found.rpartition("\0")[2].partition(messages[-1]["content"].strip())[0]
                if leading.strip() and leading.strip() != self._leading:
                    raise NotFoundError(
                        f"it writes {leading[:_SHOWN]!r} before a reply in some conversations; {_ADVICE}"
                    )
            # Texts that the template leaves out cannot be found.
            if any(word in found for word in _ASKED) or any(word in text and word not in found for word in _REPLIED):
                raise NotFoundError(f"the text found in a probe is not that of its replies: {found[:_SHOWN]!r}")
            num_proven += 1


def keep_learnt(
    render: Render,
    messages: Sequence[dict[str, Any]],
    spans: Sequence[Span],
    replies: Sequence[int],
    learnt: Sequence[int],
) -> list[Span]:
    """Return the spans that a template with marks has made of the learnt replies.

    The spans of a reply are those by which the conversation up to it has more than the one up to the reply before.

    Args:
        render: Renders messages with the record's variables.
        messages: The conversation.
        spans: The spans of all replies.
        replies: Positions of all replies.
        learnt: Positions of the learnt ones.

    Raises:
        NotFoundError: If spans cannot be attributed to replies.
    """
    kept: list[Span] = []
    before = 0
    for number in replies:
        is_last = number == replies[-1]
        after = len(spans) if is_last else _count_spans(render, list(messages[: number + 1]), number)
        if not before < after <= len(spans):
            raise NotFoundError(
                f"message {number + 1}: expected a {{% generation %}} block of its own for each reply, so that some of "
                "them can be left out, got replies that share one"
            )
        if number in learnt:
            kept.extend(spans[before:after])
        before = after
    return kept


def _find_ending(render: Render, assistant: str, first: list[dict[str, Any]]) -> tuple[str, bool, _Ending]:
    """Return what the model writes before a reply, whether there is a generation prompt, and what follows a reply."""
    asked_next, replied = _ASKED[1], _REPLIED[0]
    user, reply = _turn(assistant)
    prompt, unprompted = (_render_probe(render, [*first, user], is_prompt=is_prompt) for is_prompt in (True, False))
    whole = _render_probe(render, [*first, user, reply], is_prompt=False)
    if not whole.startswith(prompt):
        raise NotFoundError(
            f"its generation prompt is not the beginning of its replies ({_difference(prompt, whole)}); {_ADVICE}"
        )
    leading, found, closing = whole[len(prompt) :].partition(replied)
    if not found or replied in closing:
        raise NotFoundError(f"it does not write a reply once, after its generation prompt; {_ADVICE}")
    if prompt == unprompted and leading.strip():
        raise NotFoundError(
            f"it writes {leading[:_SHOWN]!r} before a reply but not as a generation prompt, so that it is unknown "
            f"whether the model generates this; {_ADVICE}"
        )
    following = render([*first, user, reply, {"role": "user", "content": asked_next}], False)
    between = closing
    if not isinstance(following, str):
        between = following[0].partition(replied)[2].partition(asked_next)[0]
    common = _common_beginning(closing, between)
    if all(unit["control"] or unit[0].isspace() for unit in _UNITS.finditer(closing[len(common) :])):
        return leading.strip(), prompt != unprompted, _Ending(closing=closing, end=closing, inner_end=common)
    # Words that close a text, such as a prompt that the template always writes, are none of the model's.
    end = _turn_end(common)
    return leading.strip(), prompt != unprompted, _Ending(closing=closing, end=end, inner_end=end)


def _turn_end(closing: str) -> str:
    r"""Return what ends a turn: everything up to the first special token, or all but the last blanks.

    >>> _turn_end(" </s>\n"), _turn_end("\n\n")
    (' </s>', '')
    """
    for unit in _UNITS.finditer(closing):
        if unit["control"]:
            return closing[: unit.end()]
    return closing.rstrip()


def _common_beginning(one: str, other: str) -> str:
    r"""Return the longest common beginning that splits no special token and no word.

    >>> _common_beginning("<|end|>\n<|eos|>", "<|end|>\n<|user|>")
    '<|end|>\n'
    """
    common = ""
    for unit, other_unit in zip(_UNITS.finditer(one), _UNITS.finditer(other), strict=False):
        if unit[0] != other_unit[0]:
            break
        common += unit[0]
    return common


def _turn(assistant: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": _ASKED[0]}, {"role": assistant, "content": _REPLIED[0]}]


def _probes(assistant: str) -> list[list[dict[str, Any]]]:
    (_, asked_next), (replied, replied_next) = _ASKED, _REPLIED
    turn = _turn(assistant)
    next_turn = [{"role": "user", "content": asked_next}, {"role": assistant, "content": replied_next}]
    call = {"type": "function", "id": "abcdef123", "function": {"name": "f", "arguments": {"x": replied}}}
    result = {"role": "tool", "content": asked_next, "tool_call_id": "abcdef123", "name": "f"}
    calling: dict[str, Any] = {"role": assistant, "content": "", "tool_calls": [call]}
    return [
        turn,
        [*turn, *next_turn],
        [{"role": "system", "content": asked_next}, *turn],
        [turn[0], calling, result, next_turn[1]],
        [turn[0], {**turn[1], "reasoning_content": replied_next}],
        [turn[0], {"role": assistant, "content": f" {replied}\n"}, *next_turn],
    ]


def _render_probe(render: Render, messages: list[dict[str, Any]], *, is_prompt: bool) -> str:
    rendered = render(messages, is_prompt)
    if isinstance(rendered, str):
        raise NotFoundError(f"it {rendered} (on a conversation of one question and one reply); {_ADVICE}")
    return rendered[0]


def _render(render: Render, messages: list[dict[str, Any]], number: int, *, is_prompt: bool) -> str:
    rendered = render(messages, is_prompt)
    if isinstance(rendered, str):
        raise NotFoundError(
            f"message {number + 1}: the conversation {'before' if is_prompt else 'up to'} it is needed to find the "
            f"generated text, and the chat template {rendered}"
        )
    return rendered[0]


def _count_spans(render: Render, messages: list[dict[str, Any]], number: int) -> int:
    rendered = render(messages, False)
    if isinstance(rendered, str):
        raise NotFoundError(
            f"message {number + 1}: the conversation up to it is needed to leave replies out, and the chat template "
            f"{rendered}"
        )
    return len(rendered[1])


def _difference(beginning: str, text: str) -> str:
    """Show where a text does not go on like an expected beginning."""
    same = next((i for i, (a, b) in enumerate(zip(beginning, text, strict=False)) if a != b), len(text))
    return f"{beginning[same : same + _SHOWN]!r} against {text[same : same + _SHOWN]!r}"
