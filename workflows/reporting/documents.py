"""What is said of documents: their lengths, their sources, and those that are unusual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.amounts import count
from workflows.reporting.amounts import number, percent, short
from workflows.reporting.bars import draw_shares
from workflows.reporting.model import Block, Table
from workflows.reporting.pictures import draw_lengths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.inspection.lengths import LengthSummary
    from dsindex.reporting.measuring import Measurement
    from dsindex.reporting.sources import SourceTotals
    from workflows.reporting.examples import DocumentTexts

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
    rows = [
        (name, [each for each in found.lengths if least <= each.begin and each.end <= most])
        for name, least, most in bounds
    ]
    tables = [
        Table(
            caption="Short and long documents",
            head=("tokens of a document", "documents", "share", "tokens", "share"),
            rows=(
                ("none", number(found.empty), percent(found.empty, found.documents), "0", "-"),
                *(
                    (
                        name,
                        number(sum(each.documents for each in bins)),
                        percent(sum(each.documents for each in bins), found.documents),
                        number(sum(each.tokens for each in bins)),
                        percent(sum(each.tokens for each in bins), found.tokens),
                    )
                    for name, bins in rows
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
        cells = [
            name,
            number(documents),
            number(own),
            percent(own, tokens),
            short(own / documents) if documents else "-",
        ]
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
