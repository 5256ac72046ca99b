"""Find the thoughts (reasoning) in a reply by the tags around them, in time linear in the length of the text.

A thought may lack one of its tags. If the template writes `<think>` into the prompt (DeepSeek R1, Qwen3-Thinking), the
model returns only `</think>`; an answer that was cut off has only `<think>`.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

CharacterSpan: TypeAlias = tuple[int, int]
"""Index of the first character, and of the one after the last."""
TagPair: TypeAlias = tuple[str, str]
"""Opening and closing tag."""

THINK: TagPair = ("<think>", "</think>")
TAG_PAIRS: tuple[TagPair, ...] = (
    THINK,
    *((f"<{name}>", f"</{name}>") for name in ("thinking", "thought", "reasoning", "seed:think")),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("to=self<|message|>", "<|eom|>"),
)
"""The tags of the known model families."""
_END_OF_ANYTHING = frozenset({"<|end|>", "<|eom|>"})
"""Closing tags that also end other text, so one without an opening tag does not close a thought."""
_NOT_QUOTED = "(?<![`'\"])"
"""Lookbehind in front of a tag: `<think>` in quotes is text about tags, not a tag."""
_TAG_NAME = re.compile(r"<([\w:.-]{0,16}(?:think|thought|reason)[\w:.-]{0,16})>", re.IGNORECASE)
_OPENING_TAGS = "|".join(re.escape(opening) for opening, _ in TAG_PAIRS)
_TAG_LIKE = re.compile(
    rf"{_NOT_QUOTED}(?:<[^\s<>]{{0,16}}(?:think|thought|reason|scratchpad|reflect)[^<>\n]{{0,24}}>|{_OPENING_TAGS})",
    re.IGNORECASE,
)
_BLANKS = re.compile(r"\s*")


def find_tag_pairs(template: str) -> tuple[TagPair, ...]:
    """Return the tag pairs that appear in a template's source or in a list of tokens, always including `<think>`.

    >>> find_tag_pairs("{{ '[THINK]' + m.reasoning + '[/THINK]' }}")
    (('<think>', '</think>'), ('[THINK]', '[/THINK]'))
    """
    known_pairs = [pair for pair in TAG_PAIRS if pair[0] in template]
    new_pairs = [(f"<{name}>", f"</{name}>") for name in _TAG_NAME.findall(template) if f"</{name}>" in template]
    return tuple(dict.fromkeys([THINK, *known_pairs, *new_pairs]))


def find_thoughts(
    text: str, pairs: tuple[TagPair, ...], begin: int = 0, end: int | None = None
) -> Iterator[CharacterSpan]:
    """Yield the spans of a reply's thoughts in order, including the tags.

    A closing tag without an opening tag ends a thought that began at the start of the reply or at the end of the
    previous thought. An opening tag without a closing tag begins a thought that lasts to the end of the reply. Tags of
    other model families count only if the reply begins with one.

    Args:
        text: The text that contains the reply.
        pairs: The tags in use.
        begin: Index of the reply's first character.
        end: Index after its last character; None for the end of the text.

    >>> list(find_thoughts("a</think>b<think>c", (THINK,)))
    [(0, 9), (10, 18)]
    """
    end = len(text) if end is None else end
    tags, closing_tags = _compile(add_first_pair(pairs, text, begin, end))
    while match := tags.search(text, begin, end):
        family, is_close = divmod((match.lastindex or 1) - 1, 2)
        if is_close:
            yield begin, match.end()
            begin = match.end()
            continue
        close = closing_tags[family].search(text, match.end(), end)
        begin = close.end() if close else end
        yield match.start(), begin


def add_first_pair(pairs: tuple[TagPair, ...], text: str, begin: int, end: int) -> tuple[TagPair, ...]:
    """Return the tags in use, and the tags of another family if a reply begins with one."""
    first = skip_blanks(text, begin, end)
    return pairs + tuple(pair for pair in TAG_PAIRS if pair not in pairs and text.startswith(pair[0], first, end))


def skip_blanks(text: str, begin: int, end: int) -> int:
    """Return the index of the first character from `begin` on that is not white space; at most `end`."""
    return _BLANKS.match(text, begin, end).end()  # type: ignore[union-attr]  # it matches any text


@functools.lru_cache(maxsize=64)
def _compile(pairs: tuple[TagPair, ...]) -> tuple[re.Pattern[str], list[re.Pattern[str]]]:
    """Return a pattern with two groups (opening, closing) for each pair, and a pattern for each closing tag."""
    groups = []
    for opening, closing in pairs:
        is_element = opening[1:-1].isalnum() and opening[0] == "<"
        attributes = r"(?:\s[^<>\n]{0,64})?>" if is_element else re.escape(opening[-1])
        closing_pattern = r"(?!)" if closing in _END_OF_ANYTHING else re.escape(closing)
        groups.append(f"({re.escape(opening[:-1])}{attributes})|({closing_pattern})")
    closing_tags = [re.compile(_NOT_QUOTED + re.escape(closing), re.IGNORECASE) for _, closing in pairs]
    return re.compile(f"{_NOT_QUOTED}(?:{'|'.join(groups)})", re.IGNORECASE), closing_tags


def drop_thoughts(text: str, pairs: tuple[TagPair, ...]) -> str:
    """Remove the thoughts from a reply, keeping white space between the words around a thought.

    >>> drop_thoughts("<think>Sum.</think> Sure<think>I add.</think>two.", (THINK,))
    'Sure two.'
    """
    pieces: list[str] = []
    position = 0
    for begin, end in find_thoughts(text, pairs):
        piece = text[position:begin].rstrip()
        gap, position = text[position + len(piece) : begin], skip_blanks(text, end, len(text))
        if piece:
            pieces += [piece, max(gap, text[end:position], key=len) or " "]
    rest = text[position:]
    return "".join(pieces if rest else pieces[:-1]) + rest


def has_other_tags(text: str) -> bool:
    """Tell whether a text contains something that looks like the opening tag of a thought, known or unknown."""
    return _TAG_LIKE.search(text) is not None
