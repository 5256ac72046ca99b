"""What is said of documents: their lengths, their sources, and those that are unusual."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import escape

from dsindex.amounts import count
from dsindex.tools.inspect_excerpts import show_text, text_of
from dsindex.tools.page.page import Block, Example, Table, number, percent, short, show_lines
from dsindex.tools.page.pictures import draw_lengths, draw_lengths_of_many, draw_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dsindex.text.tokenizer import Tokenizer
    from dsindex.tools.inspect_kinds import TokenStore
    from dsindex.tools.inspect_origin import LengthSummary
    from dsindex.tools.report_measures import LengthBin, Measurement, SourceTotals


# Documents of a report to read: their texts, cut so that the page stays small.

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


# Several datasets side by side.

MOST_LINES = 6
"""Datasets whose lengths are lines of one picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSummary:
    """The numbers of a dataset that are compared with those of others."""

    name: str
    documents: int
    tokens: int
    median: int | None
    """Tokens that half of the documents have at most."""
    longest: int | None
    extra_documents: int
    extra_tokens: int
    bytes_per_token: float | None
    used_ids: int
    vocabulary_size: int | None
    lengths: tuple[LengthBin, ...]
    tokenizer: str | None
    digest: str | None


def show_overview(datasets: Sequence[DatasetSummary]) -> tuple[Block, ...]:
    """Return what compares datasets; nothing for a single one."""
    if len(datasets) < 2:
        return ()
    tokens = sum(each.tokens for each in datasets)
    rows = [
        (
            each.name,
            number(each.documents),
            number(each.tokens),
            percent(each.tokens, tokens),
            "-" if each.median is None else number(each.median),
            "-" if each.longest is None else number(each.longest),
            "-" if each.bytes_per_token is None else f"{each.bytes_per_token:.2f}",
            percent(each.extra_documents, each.documents),
            "-" if each.vocabulary_size is None else percent(each.used_ids, each.vocabulary_size),
            each.tokenizer or "-",
        )
        for each in datasets
    ]
    head = (
        *("dataset", "documents", "tokens", "share", "median length", "longest", "bytes per token"),
        *("repeated", "ids used", "tokenizer"),
    )
    table = Table(caption="Datasets", head=head, rows=tuple(rows), texts=frozenset({0, 9}))
    pictures = []
    if tokens:
        shares = {each.name: each.tokens for each in datasets}
        pictures.append(draw_shares("Tokens by dataset", "dataset", shares, unit="tokens"))
    lined = sorted((each for each in datasets if each.lengths), key=lambda each: -each.tokens)[:MOST_LINES]
    names = {each.name for each in lined}
    if len(lined) > 1:
        lengths = {each.name: each.lengths for each in datasets if each.name in names}
        pictures.append(draw_lengths_of_many(lengths))
    sentences = [*_same_tokens(datasets), *_different_tokenizers(datasets)]
    return (Block(title="Datasets", sentences=tuple(sentences), tables=(table,), pictures=tuple(pictures)),)


def _same_tokens(datasets: Sequence[DatasetSummary]) -> list[str]:
    by_digest: dict[str, list[str]] = defaultdict(list)
    for each in datasets:
        if each.digest is not None:
            by_digest[each.digest].append(each.name)
    return [f"The same tokens, by their digests: {', '.join(names)}." for names in by_digest.values() if len(names) > 1]


def _different_tokenizers(datasets: Sequence[DatasetSummary]) -> list[str]:
    known = {each.tokenizer for each in datasets if each.tokenizer is not None}
    return [] if len(known) < 2 else [f"The tokenizers differ: {', '.join(sorted(known))}."]


SHOWN_SOURCES = 25
SHOWN_BARS = 10
SHORT, LONG = (2, 8, 32, 128), (4096, 32768, 131072, 1048576)
"""Bounds by which documents are called short and long, in tokens; powers of two, which begin bins."""


def show_lengths(found: Measurement, summary: LengthSummary) -> Block:
    """Return how long documents are."""
    title = "Document lengths"
    if not found.lengths:
        return Block(title=title, sentences=(f"{count(found.documents, 'document')}, none of them with tokens.",))
    quantiles = Table(
        caption="Quantiles: this share of the documents has at most this many tokens",
        head=("share", *(f"{share}%" for share in summary.quantiles)),
        rows=(("tokens", *map(number, summary.quantiles.values())),),
    )
    mean = f"{found.tokens / max(found.documents, 1):,.1f} tokens on average"
    return Block(
        title=title,
        sentences=(f"{count(found.documents, 'document')}, {number(found.empty)} of them empty; {mean}.",),
        pictures=(draw_lengths(found.lengths),),
        tables=(quantiles,),
    )


def show_unusual(found: Measurement, texts: DocumentTexts) -> Block:
    """Return the short, long and repeated documents."""
    repeats = found.repeats
    sentence = "No document with tokens occurs more than once, by the XXH3-128 of its tokens."
    if repeats.num_repeated:
        documents = f"{count(repeats.num_extra, 'document')} ({percent(repeats.num_extra, found.documents)})"
        tokens = f"{count(repeats.extra_tokens, 'token')} ({percent(repeats.extra_tokens, found.tokens)})"
        sentence = (
            f"Documents that occur more than once, by the XXH3-128 of their tokens: {number(repeats.num_repeated)}. "
            f"Their repetitions are {documents} with {tokens}."
        )
    bounds = [("1" if bound == 2 else f"1 to {bound - 1:,}", 1, bound) for bound in SHORT]
    longest = found.lengths[-1].end if found.lengths else 0
    bounds += [(f"{bound:,} or more", bound, 2**63) for bound in LONG if bound == LONG[0] or bound < longest]
    rows = []
    for name, least, most in bounds:
        bins = [each for each in found.lengths if least <= each.begin and each.end <= most]
        rows.append((name, sum(each.documents for each in bins), sum(each.tokens for each in bins)))
    tables = [
        Table(
            caption="Short and long documents",
            head=("tokens of a document", "documents", "share", "tokens", "share"),
            rows=(
                ("none", number(found.empty), percent(found.empty, found.documents), "0", "-"),
                *(
                    (name, *_amount_and_share(documents, found.documents), *_amount_and_share(tokens, found.tokens))
                    for name, documents, tokens in rows
                ),
            ),
        )
    ]
    if repeats.most:
        tables.append(
            Table(
                caption="The most repeated documents",
                head=("first at", "begins with", "copies", "tokens of each"),
                rows=tuple(
                    (
                        f"document {number(each.first)}",
                        texts.beginning(each.first),
                        number(each.copies),
                        number(each.num_tokens),
                    )
                    for each in repeats.most
                ),
                texts=frozenset({0, 1}),
                code=frozenset({1}),
            )
        )
    return Block(title="Short, long and repeated documents", sentences=(sentence,), tables=tuple(tables))


def _amount_and_share(amount: int, total: int) -> tuple[str, str]:
    return number(amount), percent(amount, total)


def show_sources(
    totals: Sequence[SourceTotals], names: Sequence[str], input_bytes: Sequence[int | None], texts: DocumentTexts
) -> Block:
    """Return the documents and tokens of each source.

    Args:
        totals: What there is of each source.
        names: Names of the sources.
        input_bytes: Size of the text of each source; None where it is not recorded.
        texts: The texts of documents drawn of each source.
    """
    order = sorted(range(len(totals)), key=lambda place: (-totals[place].tokens, place))
    shown, rest = order[:SHOWN_SOURCES], order[SHOWN_SOURCES:]
    tokens = sum(each.tokens for each in totals)
    has_inputs, has_texts = any(size for size in input_bytes), texts.has_texts
    head = ["source", "documents", "tokens", "share", "tokens per document"]
    head += ["bytes of input per token"] if has_inputs else []
    head += ["bytes of text per token"] if has_texts else []

    def row(name: str, places: Sequence[int], *, is_rest: bool = False) -> tuple[str, ...]:
        documents = sum(totals[place].documents for place in places)
        own = sum(totals[place].tokens for place in places)
        mean = short(own / documents) if documents else "-"
        cells = [name, number(documents), *_amount_and_share(own, tokens), mean]
        if has_inputs:
            sizes = [input_bytes[place] for place in places]
            known = sum(size for size in sizes if size is not None)
            cells.append(f"{known / own:.2f}" if own and None not in sizes else "-")
        if has_texts:
            share = None if is_rest else texts.bytes_per_token(totals[places[0]].drawn)
            cells.append("-" if share is None else f"{share:.2f}")
        return tuple(cells)

    rows = [row(names[place], [place]) for place in shown]
    if rest:
        rows.append(row(count(len(rest), "smaller source"), rest, is_rest=True))
    pictures = []
    if len(totals) > 1 and tokens:
        bars = {names[place]: totals[place].tokens for place in order[:SHOWN_BARS]}
        others = order[SHOWN_BARS:]
        remaining = (count(len(others), "other source"), sum(totals[place].tokens for place in others))
        picture = draw_shares("Tokens by source", "source", bars, unit="tokens", rest=remaining if others else None)
        pictures.append(picture)
    sentences = []
    if has_inputs:
        sentences.append(
            "Bytes of input count a file as it is (unpacked, if compressed), with all fields of its records."
        )
    if has_texts:
        sentences.append("Bytes of text are of up to 16 documents of each source, drawn evenly and decoded.")
    return Block(
        title="Sources",
        sentences=tuple(sentences),
        pictures=tuple(pictures),
        tables=(Table(caption="Documents and tokens by source", head=tuple(head), rows=tuple(rows)),),
    )
