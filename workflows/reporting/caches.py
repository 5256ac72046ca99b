"""What is said of splits, epochs and blends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.amounts import count
from workflows.reporting.amounts import number
from workflows.reporting.bars import draw_drawn
from workflows.reporting.model import Block, Table, distinct

if TYPE_CHECKING:
    from dsindex.reporting.caches import DrawnCaches

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
