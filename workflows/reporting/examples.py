"""Documents of a report to read: their texts, cut so that the page stays small."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import escape

from dsindex.amounts import count
from dsindex.inspection.borders import show_text, text_of
from workflows.reporting.amounts import number
from workflows.reporting.model import Example
from workflows.reporting.shown import show_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dsindex.inspection.stores import TokenStore
    from dsindex.reporting.measuring import Measurement
    from dsindex.text.tokenizer import Tokenizer

SAMPLED_TOKENS = 2000
"""Tokens decoded of a document to measure the bytes of its text."""
BEGINNING = 80
"""Characters that name a document."""
BEGINNING_TOKENS = 64
TOKENS_PER_BYTE = 1.5
"""Tokens decoded for each byte that an example may have; some tokens have no text."""
LONGEST_EXAMPLE = 4000
"""Bytes of an example on the page, at most."""


class DocumentTexts:
    """The texts of documents that were chosen before.

    Args:
        store: The dataset.
        spans: First token, and one past the last, of each chosen document.
        tokenizer: The dataset's tokenizer; None if it is not known, so that ids stand for texts.
    """

    def __init__(self, store: TokenStore, spans: Mapping[int, tuple[int, int]], tokenizer: Tokenizer | None) -> None:
        self._store = store
        self._spans = spans
        self._tokenizer = tokenizer

    @property
    def has_texts(self) -> bool:
        """Whether there is a tokenizer."""
        return self._tokenizer is not None

    def num_tokens(self, document: int) -> int:
        """Return the number of tokens of a document."""
        begin, end = self._spans[document]
        return end - begin

    def text(self, document: int, max_tokens: int) -> str:
        """Return the text of the first tokens of a document, or their ids."""
        begin, end = self._spans[document]
        ids = self._store.tokens[begin : min(end, begin + max_tokens)].tolist()
        return " ".join(map(str, ids)) if self._tokenizer is None else text_of(self._tokenizer, ids)

    def beginning(self, document: int) -> str:
        """Return some characters on one line."""
        text = show_text(self.text(document, BEGINNING_TOKENS))
        return text if len(text) <= BEGINNING else f"{text[: BEGINNING - 1]}…"

    def bytes_per_token(self, documents: Iterable[int]) -> float | None:
        """Return the bytes of text per token of documents; None without tokens or a tokenizer."""
        num_bytes = tokens = 0
        for document in documents if self.has_texts else ():
            num_bytes += len(self.text(document, SAMPLED_TOKENS).encode(errors="replace"))
            tokens += min(self.num_tokens(document), SAMPLED_TOKENS)
        return num_bytes / tokens if tokens else None


def draw_evenly(num_documents: int, num: int) -> list[int]:
    """Return up to `num` numbers of documents at even distances.

    >>> draw_evenly(10, 4), draw_evenly(2, 4)
    ([1, 3, 6, 8], [0, 1])
    """
    num = min(num, num_documents)
    return [(2 * place + 1) * num_documents // (2 * num) for place in range(num)]


def choose_examples(found: Measurement, drawn: Sequence[int], each: int) -> dict[int, list[str]]:
    """Return the documents to show, and for each why.

    Args:
        found: The measurement.
        drawn: Documents that were drawn.
        each: The largest number of longest, shortest and repeated documents.
    """
    repeated = [document.first for document in found.repeats.most[:each]]
    chosen: dict[int, list[str]] = {}
    groups = {"longest": found.longest[:each], "shortest": found.shortest[:each], "repeated": repeated, "drawn": drawn}
    for kind, documents in groups.items():
        for document in documents:
            chosen.setdefault(document, []).append(kind)
    return dict(sorted(chosen.items()))


def make_examples(
    chosen: Mapping[int, Sequence[str]],
    texts: DocumentTexts,
    found: Measurement,
    *,
    source_of: Callable[[int], str | None],
    room_bytes: int,
) -> tuple[Example, ...]:
    """Return the chosen documents with the beginnings of their texts.

    Args:
        chosen: Documents, and why each was chosen.
        texts: Their texts.
        found: The measurement, which knows the copies.
        source_of: Returns where a document comes from; None if that is not recorded.
        room_bytes: Bytes that all texts may have together.
    """
    copies = {each.first: each.copies for each in found.repeats.most}
    most_bytes = min(LONGEST_EXAMPLE, room_bytes // max(len(chosen), 1))
    examples = []
    for document, kinds in chosen.items():
        max_tokens = int(most_bytes * TOKENS_PER_BYTE)
        text = texts.text(document, max_tokens)
        short = cut_to_fit(text, most_bytes)
        source = source_of(document)
        facts = [source] if source is not None else []
        facts += [f"{number(copies[document])} copies"] if document in copies else []
        examples.append(
            Example(
                document=document,
                num_tokens=texts.num_tokens(document),
                kinds=tuple(kinds),
                facts=(count(texts.num_tokens(document), "token"), *facts),
                text=short,
                is_cut=short != text or texts.num_tokens(document) > max_tokens,
            )
        )
    return tuple(examples)


def cut_to_fit(text: str, most_bytes: int) -> str:
    """Return the beginning of a text that takes at most so many bytes on the page, with its escapes."""
    room = most_bytes
    while True:
        short = cut_text(text, room)
        size = len(escape(show_lines(short)).encode())
        if size <= most_bytes:
            return short
        room = room * most_bytes // (size + 1)


def cut_text(text: str, most_bytes: int) -> str:
    """Return the beginning of a text that has at most so many bytes in UTF-8.

    >>> cut_text("naïve", 3), cut_text("naïve", 4)
    ('na', 'naï')
    """
    encoded = text.encode("utf-8", "surrogatepass")
    return text if len(encoded) <= most_bytes else encoded[:most_bytes].decode("utf-8", "ignore")
