"""Find the replies in the rendered text of a template that does not mark them with `{% generation %}`.

The rendered text is not changed. Two methods, which use different evidence, must agree on each reply; otherwise the
record is refused, because a wrong guess would silently train on the wrong tokens.

- **By the loop**: the reply is the text that the template writes in the loop iteration of the reply's message, without
  the header in front.
- **By sentinels**: the conversation is rendered a second time with sentinels, characters that no record contains,
  around the texts of its messages. The reply begins after the last header before its first sentinel. After its last
  sentinel, it ends with the same text as in a conversation that ends with this reply.

The header is the text that `add_generation_prompt` adds after the messages before the reply, up to an opening tag of a
thought.
"""

from __future__ import annotations

import functools
import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import accumulate, groupby, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from dsindex.chat.conversations import change_call, content_text, function_of, last_turn
from dsindex.chat.thoughts import TAG_PAIRS
from dsindex.errors import RecordProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from dsindex.chat.conversations import Message

    Render: TypeAlias = Callable[[Sequence[Message], bool], "Rendered"]
    """Renders messages, with or without the generation prompt; each piece of output is a span."""

_SENTINEL = re.compile("([\ud800-\udbff])")
_FIRST_SENTINEL, _NUM_SENTINELS = 0xD800, 0x400
_TAG = re.compile("(" + "|".join(re.escape(tag) for pair in TAG_PAIRS for tag in pair) + ")")
_OPENER = re.compile("|".join(re.escape(pair[0]) for pair in TAG_PAIRS))
_WORD = re.compile(r"<[^<>]*>|\[[^\[\]]*\]|.", re.DOTALL)
_TEXT_KEYS = ("content", "reasoning_content", "thinking", "reasoning")
_MAX_SHOWN = 60


class Span(NamedTuple):
    """A span of the rendered text: a `{% generation %}` block, a reply, or a piece of output."""

    begin: int
    end: int
    message: int | None
    """Position of the message that the template's loop is at; None outside a loop over the messages."""


class Rendered(NamedTuple):
    """The rendered text of a conversation, with its generated spans."""

    text: str
    spans: list[Span]

    def pieces(self) -> list[tuple[str, int | None]]:
        """Return the text and the message of each span."""
        return [(self.text[span.begin : span.end], span.message) for span in self.spans]


class ReplyFinder:
    """Finds the replies of one conversation.

    Args:
        render: Renders messages with the template.
        messages: The whole conversation.
        role: The role of replies.
    """

    def __init__(self, render: Render, messages: Sequence[Message], role: str) -> None:
        self._render, self._messages = render, messages
        self._replies = [number for number, message in enumerate(messages) if message["role"] == role]
        self._last_turn = last_turn([message["role"] for message in messages], role)
        self._headers: dict[str, tuple[str, str, str]] = {}
        self._tails: dict[tuple[object, ...], list[str]] = {}
        contents = [message["content"] for message in messages if message.get("content") and message["role"] == role]
        has_parts = isinstance((contents or [messages[0].get("content")])[0], list)
        plain = {"role": role, "content": [{"type": "text", "text": "x"}] if has_parts else "x"}
        self._plain = plain, _mark(plain, 0)
        """A reply without thoughts and calls, and the same with sentinels."""

    def find(self, rendered: Rendered) -> Rendered:
        """Return the text with the spans of its replies.

        Args:
            rendered: The whole conversation; each piece of output is a span.

        Raises:
            RecordProblem: If a reply is not found, or the two methods disagree on it.
        """
        text, outputs = rendered
        if not self._replies:
            return Rendered(text, [])
        self._marked = [_mark(message, number) for number, message in enumerate(self._messages)]
        pieces = _SENTINEL.split(self._render(self._marked, False).text)
        if "".join(pieces[::2]) != text:
            raise _problem("the template changes the texts of messages, so that its replies cannot be found")
        self._places = [*accumulate(map(len, pieces[:-1:2]))]
        sentinel_places: defaultdict[int, list[int]] = defaultdict(list)
        for place, sentinel in zip(self._places, pieces[1::2], strict=True):
            sentinel_places[ord(sentinel) - _FIRST_SENTINEL].append(place)
        loop_spans: defaultdict[int | None, list[Span]] = defaultdict(list)
        for message, run in groupby((span for span in outputs if span.begin < span.end), key=attrgetter("message")):
            first, *more = run
            loop_spans[message].append(first._replace(end=[first, *more][-1].end))
        spans: list[Span] = []
        for number in self._replies:
            if number in loop_spans:
                spans += self._check_reply(text, number, loop_spans[number], sentinel_places[number % _NUM_SENTINELS])
            elif sentinel_places[number % _NUM_SENTINELS] and len(self._messages) <= _NUM_SENTINELS:
                raise _problem(f"message {number + 1}: the template does not write it in a loop over the messages")
        return Rendered(text, spans)

    def _check_reply(self, text: str, number: int, spans: list[Span], places: list[int]) -> list[Span]:
        """Return a reply's spans by the loop, without the header, if the sentinels agree with them."""
        where, message = f"message {number + 1}", self._messages[number]
        header, prompt, behind_loop = self._find_header(number)
        begin, end = spans[0].begin + len(header), spans[-1].end
        if number == len(self._messages) - 1:
            rest = text[end:].strip()
            repeats_text = rest and rest in behind_loop and not _WORD.fullmatch(rest)
            if repeats_text or (header.strip() and header.strip() in rest):
                raise _problem(f"{where}: behind it, the template writes a prompt for another reply: {_clip(rest)}")
            end = len(text)
            spans[-1] = spans[-1]._replace(end=end)
        other_headers = [other_header for other_header, *_ in self._headers.values() if other_header and not header]
        if not text.startswith(header, spans[0].begin) or any(text.startswith(other, begin) for other in other_headers):
            shown = text[spans[0].begin :][:_MAX_SHOWN]
            raise _problem(f"{where}: the generation prompt is {header!r}, but the template writes {shown!r}")
        opens_thought = _OPENER.fullmatch(prompt[len(header) :].rstrip()) is not None
        if number >= self._last_turn and opens_thought and not _OPENER.match(text, begin):
            raise _problem(
                f"{where}: the generation prompt opens a thought, but the template writes the reply without one"
            )
        spans[0] = spans[0]._replace(begin=begin)
        places = [place for place in places if spans[0].begin - len(header) <= place <= spans[-1].end]
        first, last = (places[0], places[-1]) if places else (begin, begin)
        start = text.rfind(header, 0, first) + len(header) if places and header else begin
        tails = functools.partial(self._find_tails, message, self._marked[number], header, prompt)
        is_mixed = any(_count_inside(self._places, span) > _count_inside(places, span) for span in spans)
        if is_mixed or start != begin or begin > first or not any(_has_tail(text, last, end, tail) for tail in tails()):
            by_loop = text[begin:end]
            by_sentinels = text[first if is_mixed else start : last] + next(tails(), "")
            raise _problem(
                f"{where}: it is {_clip(by_loop)} by the template's loop, but {_clip(by_sentinels)} by its own texts"
            )
        is_open = "tool_calls" not in message and not text[last:end].strip()
        if is_open or not any(tail.strip() for tail in self._find_tails(*self._plain, header, prompt)):
            raise _problem(
                f"{where}: the template writes nothing that ends a reply, so a model would not learn to stop"
            )
        closing_tag = _OPENER.sub("", prompt[len(header) :]).strip()
        if closing_tag and text.startswith(closing_tag, begin):  # DeepSeek V3.2 leaves out the opening one
            spans[0] = spans[0]._replace(begin=begin + len(closing_tag))
        return spans

    def _find_header(self, number: int) -> tuple[str, str, str]:
        """Return the header before a reply, the generation prompt that begins with it, and all text behind the loop.

        They are cached by the role of the message before the reply.

        Raises:
            RecordProblem: If the template writes a header that is not in its generation prompt.
        """
        before = self._messages[:number]
        key = before[-1]["role"] if before else ""
        if key not in self._headers:
            pieces, prompt_pieces = self._render_part(before, False).pieces(), self._render_part(before, True).pieces()
            pairs = zip(pieces, prompt_pieces, strict=False)
            num_equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            prompt = "".join(text for text, _ in prompt_pieces[num_equal:])
            last_pieces = [*takewhile(lambda piece: piece[1] is None and before, reversed(prompt_pieces))]
            behind_loop = "".join(text for text, _ in reversed(last_pieces))
            if not prompt.strip():  # the template ignores `add_generation_prompt`, or needs no header
                plain_pieces = self._render_part([*before, self._plain[1]], False).pieces()
                written = "".join(text for text, message in plain_pieces if message == number)
                lead = _SENTINEL.split(written)[0]
                if behind_loop.strip() and lead.startswith(behind_loop):
                    prompt = behind_loop
                elif _TAG.sub("", lead).strip():
                    problem = f"the generation prompt is {prompt!r}, but the template writes {lead!r}"
                    raise _problem(f"message {number + 1}: {problem}")
            opener = _OPENER.search(prompt)
            self._headers[key] = prompt[: opener.start()] if opener else prompt, prompt, behind_loop
        return self._headers[key]

    def _render_part(self, messages: Sequence[Message], with_prompt: bool) -> Rendered:
        try:
            return self._render(messages, with_prompt)
        except RecordProblem as problem:
            raise _problem(f"a part of the conversation, which is needed to find replies: {problem}") from problem

    def _find_tails(self, message: Message, marked: Message, header: str, prompt: str) -> Iterator[str]:
        """Yield the texts that may follow a reply's last sentinel, before the next message and at the end.

        They are cached for all messages with the same text after their last sentinel and values under the same keys,
        because each tail takes a rendering.
        """
        texts = {**message, "content": content_text(message)}
        has_values = [bool(str(texts.get(name) or "").strip()) for name in ("tool_calls", *_TEXT_KEYS)]
        for with_prompt in (True, False):
            key = (with_prompt, _tail_text(marked), *has_values)
            if key not in self._tails:
                self._tails[key] = self._render_tails(marked, header, prompt, with_prompt)
            yield from self._tails[key]

    def _render_tails(self, marked: Message, header: str, prompt: str, with_prompt: bool) -> list[str]:
        text = self._render_part([*self._messages[: self._replies[0]], marked], with_prompt).text
        if with_prompt and not text.endswith(prompt):
            return []
        text = text.removesuffix(prompt) if with_prompt else text
        *texts_before, tail = _SENTINEL.split(text)
        if texts_before:
            return [tail]
        # The reply has no text: take what follows the header, and what follows an empty thought.
        after_header = text.rpartition(header)[2] if header else ""
        return [after_header, _TAG.split(after_header)[-1].lstrip()]


def _count_inside(places: Sequence[int], span: Span) -> int:
    """Count the places, which are ascending, strictly inside a span."""
    return bisect_left(places, span.end) - bisect_right(places, span.begin)


def _tail_text(marked: Message) -> str:
    """Return the text after a message's last sentinel: blanks and tags of its content, or the end of its calls."""
    calls = marked.get("tool_calls")
    return _SENTINEL.split(json.dumps(calls, ensure_ascii=False) if calls else content_text(marked))[-1]


def _has_tail(text: str, last: int, end: int, tail: str) -> bool:
    """Tell whether `text[last:end]` is the tail except for blanks, or a prefix after which text and tail differ."""
    written_tail = text[last:end]
    if written_tail.rstrip() == tail.rstrip():
        return True
    word, tail_word = _WORD.match(text, end), _WORD.match(tail, len(written_tail))
    return tail.startswith(written_tail) and word is not None and tail_word is not None and word[0] != tail_word[0]


def _mark(message: Message, number: int) -> Message:
    """Return a message with sentinels around each of its texts, inside surrounding blanks and between thought tags.

    Templates strip blanks and split at the tags, so sentinels outside would change what they write.
    """
    sentinel = chr(_FIRST_SENTINEL + number % _NUM_SENTINELS)

    def mark(value: Any) -> Any:  # noqa: ANN401 - JSON data
        if isinstance(value, dict):
            return {key: mark(item) for key, item in value.items()}
        if isinstance(value, list):
            return [mark(item) for item in value]
        if not isinstance(value, str):
            return value
        pieces = _TAG.split(value) if "<" in value or "[" in value or "◁" in value else [value]
        for place in range(0, len(pieces), 2):
            piece = pieces[place]
            if inner := piece.strip():
                begin = len(piece) - len(piece.lstrip())
                pieces[place] = f"{piece[:begin]}{sentinel}{inner}{sentinel}{piece[begin + len(inner) :]}"
        return "".join(pieces)

    marked = {key: mark(value) if key in _TEXT_KEYS else value for key, value in message.items()}
    if isinstance(content := message.get("content"), list):
        marked["content"] = [{**part, "text": mark(part["text"])} for part in content]
    if "tool_calls" in message:
        marked["tool_calls"] = [_mark_call(call, mark, sentinel) for call in message["tool_calls"]]
    return marked


def _mark_call(call: dict[str, Any], mark: Callable[[Any], Any], sentinel: str) -> dict[str, Any]:
    function = function_of(call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        # Put the sentinels inside the braces: templates test whether the arguments begin with `{`.
        marked = arguments[:1] + sentinel + arguments[1:-1] + sentinel + arguments[-1:]
    else:
        marked = mark(arguments)
    name = function.get("name")
    return change_call(call, arguments=marked, name=mark(name) if marked == arguments else name)


def _clip(text: str) -> str:
    return repr(text if len(text) <= 2 * _MAX_SHOWN else f"{text[:_MAX_SHOWN]} … {text[-_MAX_SHOWN:]}")


def _problem(reason: str) -> RecordProblem:
    hint = "mark what the model writes in the template with {% generation %}"
    return RecordProblem("generation-not-found", f"{reason}; {hint}")
