"""What is said of a dataset's tokens: the most frequent ones, unused vocabulary, and how documents end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.amounts import count
from dsindex.text.tokenizer import shared_tokenizer
from dsindex.tools.inspect_excerpts import cut_pieces, show_text
from dsindex.tools.page.page import Block, Table, distinct, number, percent
from dsindex.tools.page.pictures import draw_drawn, draw_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.text.tokenizer import Tokenizer
    from dsindex.tools.report_measures import DrawnCaches, TokenCounts


SHOWN_UNUSED = 48
SHOWN_RUNS = 8
SHOWN_LAST = 5
_COVERED = (50, 90, 99)
_ANCHORS = 64
"""Frequent ids among which one is looked for that is a word, after which others are decoded."""


class TokenTexts:
    """Texts of single tokens, as they are within a text.

    Args:
        tokenizer: The dataset's tokenizer; None if it is not known.
        frequent: Ids by descending frequency.
    """

    def __init__(self, tokenizer: Tokenizer | None, frequent: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._before: tuple[int, ...] = ()
        if tokenizer is not None:
            words = (token for token in frequent[:_ANCHORS] if (self._text((), token) or "").strip().isalpha())
            self._before = tuple(words)[:1]

    def of(self, token: int) -> str:
        """Return the text of a token with visible spaces; what it is instead, if it has none by itself."""
        if self._tokenizer is None:
            return ""
        text = self._text(self._before, token)
        if text is None:
            return "(not in the tokenizer)"
        if "\ufffd" in text:
            return "(part of a character)"
        return show_text(text).replace(" ", "␣") or "(no text)"

    def _text(self, before: tuple[int, ...], token: int) -> str | None:
        return None if self._tokenizer is None else cut_pieces(self._tokenizer, [token], before=before)[0].text


def show_tokens(counts: TokenCounts, tokenizer: Tokenizer | None, vocabulary_size: int | None, *, shown: int) -> Block:
    """Return what is said of the tokens.

    Args:
        counts: How often each id occurs.
        tokenizer: The dataset's tokenizer; None if it is not known.
        vocabulary_size: Number of its ids; None if it is not known.
        shown: The number of frequent ids to list.
    """
    by_id = counts.by_id
    total = int(by_id.sum()) + counts.others
    order = np.lexsort((np.arange(len(by_id)), -by_id))
    order = order[: int(np.count_nonzero(by_id))]
    if not len(order):
        return Block(title="Tokens")
    texts = TokenTexts(tokenizer, order[:_ANCHORS].tolist())
    ranked = by_id[order].tolist()
    sentences = [_describe_use(len(order), vocabulary_size), _describe_cover(ranked, total)]
    head = ("id", "text", "occurrences", "share") if tokenizer is not None else ("id", "occurrences", "share")
    text_columns = frozenset({1}) if tokenizer is not None else frozenset()

    def row(token: int, amount: int, of: int) -> tuple[str, ...]:
        text = (texts.of(token),) if tokenizer is not None else ()
        return (str(token), *text, number(amount), percent(amount, of))

    tables = [
        Table(
            caption=f"The {min(shown, len(order)):,} most frequent tokens",
            head=head,
            rows=tuple(row(int(token), int(by_id[token]), total) for token in order[:shown]),
            texts=text_columns,
            code=text_columns,
        )
    ]
    last = counts.last_by_id
    ends = np.lexsort((np.arange(len(last)), -last))[:SHOWN_LAST]
    num_ends = int(last.sum())
    tables.append(
        Table(
            caption="The most frequent last tokens of documents",
            head=(*head[:-2], "documents", "share"),
            rows=tuple(row(int(token), int(last[token]), num_ends) for token in ends if last[token]),
            texts=text_columns,
            code=text_columns,
        )
    )
    if vocabulary_size is not None:
        tables += _unused(by_id, vocabulary_size, texts if tokenizer is not None else None)
    return Block(
        title="Tokens",
        sentences=tuple(sentences),
        pictures=(draw_ranks(ranked),) if len(ranked) > 1 else (),
        tables=tuple(tables),
    )


def find_foreign_ids(counts: TokenCounts, vocabulary_size: int | None, tokenizer: Tokenizer | None) -> list[str]:
    """Return sentences about ids that no tokenizer, or not the dataset's, has."""
    found = []
    if counts.others and counts.other_ids is not None:
        low, high = counts.other_ids
        found.append(
            f"expected ids of a vocabulary, got {count(counts.others, 'token')} with ids from {low:,} to {high:,}"
        )
    beyond = np.flatnonzero(counts.by_id[vocabulary_size:]) + vocabulary_size if vocabulary_size is not None else ()
    foreign = [int(token) for token in beyond if not _has_id(tokenizer, int(token))]
    if foreign:
        found.append(
            f"expected ids below the {vocabulary_size:,} of the tokenizer, got "
            f"{count(int(counts.by_id[foreign].sum()), 'token')} with larger ids, up to {foreign[-1]:,}"
        )
    return found


def _has_id(tokenizer: Tokenizer | None, token: int) -> bool:
    """Tell whether a tokenizer whose ids have holes has an id."""
    if tokenizer is None or tokenizer.library != "tokenizers":
        return False
    return shared_tokenizer(tokenizer).id_to_token(token) is not None


def _describe_use(used: int, vocabulary_size: int | None) -> str:
    if vocabulary_size is None:
        return f"{count(used, 'id')} occur; the size of the vocabulary is not known."
    unused = max(vocabulary_size - used, 0)
    share = percent(min(used, vocabulary_size), vocabulary_size)
    return f"{number(used)} of {number(vocabulary_size)} ids occur ({share}); {number(unused)} are not used."


def _describe_cover(ranked: Sequence[int], total: int) -> str:
    sums = np.cumsum(np.array(ranked, np.int64))
    parts = []
    for share in _COVERED:
        needed = min(int(np.searchsorted(sums, -(-total * share // 100))) + 1, len(ranked))
        parts.append(f"{share}% of all tokens are of the {number(needed)} most frequent ids")
    return f"{parts[0]}, {', '.join(part.replace(' of all tokens are', '') for part in parts[1:])}."


def _unused(by_id: NDArray[np.int64], vocabulary_size: int, texts: TokenTexts | None) -> list[Table]:
    is_unused = np.ones(vocabulary_size, bool)
    size = min(len(by_id), vocabulary_size)
    is_unused[:size] = by_id[:size] == 0
    unused = np.flatnonzero(is_unused)
    if not len(unused):
        return []
    cuts = np.flatnonzero(np.diff(unused) > 1) + 1
    begins, ends = unused[np.concatenate([[0], cuts])], unused[np.concatenate([cuts - 1, [len(unused) - 1]])]
    longest = np.sort(np.lexsort((begins, begins - ends))[:SHOWN_RUNS])
    runs = tuple(
        (f"{begins[place]}-{ends[place]}", number(int(ends[place] - begins[place]) + 1))
        for place in longest
        if ends[place] > begins[place]
    )
    tables = [Table(caption="The longest runs of unused ids", head=("ids", "unused"), rows=runs)] if runs else []
    if texts is not None:
        some = unused[np.unique(np.linspace(0, len(unused) - 1, min(SHOWN_UNUSED, len(unused))).astype(np.int64))]
        which = "Unused tokens" if len(some) == len(unused) else f"{len(some)} unused tokens, drawn evenly"
        rows = tuple((str(token), texts.of(token)) for token in some.tolist())
        code = frozenset({1})
        tables.append(Table(caption=which, head=("id", "text"), rows=rows, texts=code, code=code))
    return tables


# What is said of splits, epochs and blends.

MOST_BARS = 30


def show_caches(folder: str, caches: DrawnCaches) -> list[Block]:
    """Return what the caches in a folder draw from the datasets."""
    blocks = []
    if caches.splits:
        rows = tuple(
            (
                each.prefix,
                each.split,
                "-" if each.intended is None else f"{each.intended:.2%}",
                f"{each.part_tokens / each.dataset_tokens:.2%}" if each.dataset_tokens else "-",
                number(each.part_tokens),
                f"{number(each.num_samples)} of {number(each.sequence_length)}",
                f"{each.epochs:,.3f}",
            )
            for each in caches.splits
        )
        table = Table(
            caption="What each split draws",
            head=(
                *("dataset", "split", "share of sequences intended", "share of tokens", "tokens of the split"),
                *("samples of tokens", "epochs"),
            ),
            rows=rows,
            texts=frozenset({0, 1}),
        )
        sentence = f"By the index caches in {folder}. An epoch is all tokens of the split once."
        if caches.blends:
            sentence += " These are what each index has; blends below may draw less of it."
        blocks.append(Block(title="Splits and epochs", sentences=(sentence,), tables=(table,)))
    tokens_of = {(each.prefix, each.split): each.part_tokens for each in caches.splits}
    for blend in caches.blends:
        total = sum(blend.num_samples)
        shares = [num / total if total else 0.0 for num in blend.num_samples]
        names = distinct(blend.prefixes)
        largest = sorted(range(len(names)), key=lambda place: (-blend.intended[place], place))[:MOST_BARS]
        picture = draw_drawn(
            f"Drawn and intended shares, split {blend.split}",
            {names[place]: blend.intended[place] for place in largest},
            {names[place]: shares[place] for place in largest},
        )
        table = Table(
            caption=f"What the blend of {blend.split} draws",
            head=("dataset", "samples", "tokens", "epochs", "drawn", "intended"),
            rows=tuple(
                (
                    name,
                    number(num),
                    number(num * blend.sequence_length),
                    _epochs(num * blend.sequence_length, tokens_of.get((prefix, blend.split))),
                    f"{drawn:.3%}",
                    f"{share:.3%}",
                )
                for name, prefix, num, drawn, share in zip(
                    names, blend.prefixes, blend.num_samples, shares, blend.intended, strict=True
                )
            ),
        )
        sentence = (
            f"{count(len(names), 'dataset')}, {count(total, 'sample')} of {number(blend.sequence_length)} tokens. "
            "A sample has tokens of one dataset only, so shares of samples are shares of tokens."
        )
        blocks.append(
            Block(title=f"Blend of {blend.split}", sentences=(sentence,), pictures=(picture,), tables=(table,))
        )
    if caches.findings:
        blocks.append(Block(title="Caches that cannot be read", sentences=caches.findings))
    return blocks


def _epochs(tokens: int, part_tokens: int | None) -> str:
    return f"{tokens / part_tokens:,.3f}" if part_tokens else "-"
