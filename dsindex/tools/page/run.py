"""What is said of how a dataset was made: the run, its stages, the records of its inputs, and digests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.amounts import count
from dsindex.tools.page.page import Block, Table, number, percent, seconds, size
from dsindex.tools.page.pictures import draw_throughput
from dsindex.tools.page.stages import read_stages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.engine.manifest import Content, Manifest, RecordedInput

SHOWN_INPUTS = 30
MOST_STAGES = 8


def show_run(prefix: str, manifest: Manifest) -> Block:
    """Return when, where and how fast a dataset was made."""
    run = manifest.run
    where = f" on {run.host}" if run.host else ""
    when = (
        f"Made {run.started or 'at an unknown time'}{where} in {seconds(run.seconds)} by dsindex {run.dsindex or '?'}"
    )
    amounts = f"{count(run.workers, 'worker')}, {count(run.shards, 'shard')}"
    troubles = f"{count(run.lost_workers, 'lost worker')}, {count(run.stragglers, 'straggler')}"
    sentences = [
        f"{when}; {run.executor or 'unknown'} executor, {amounts}.",
        f"Tasks that were repeated: {number(run.retries)}; {troubles}.",
    ]
    if run.engine is not None:
        texts = count(run.engine.reference_texts, "text")
        sentences.append(f"Engine: {run.engine.name} {run.engine.version}; the reference encoded {texts}.")
    stages, problem = read_stages(prefix, run)
    stages = stages[:MOST_STAGES]
    if problem is not None:
        sentences.append(f"{problem[0].upper()}{problem[1:]}.")
    tables = []
    if stages:
        rows = [
            (
                stage.name,
                stage.describe(),
                number(stage.retries),
                number(stage.lost_workers),
                number(stage.stragglers),
            )
            for stage in stages
        ]
        head = ("stage", "amount and speed", "retries", "lost workers", "stragglers")
        tables.append(
            Table(caption="Stages of the run that finished it", head=head, rows=tuple(rows), texts=frozenset({0, 1}))
        )
    return Block(
        title="Run",
        sentences=tuple(sentences),
        pictures=tuple(draw_throughput(stage) for stage in stages if len(stage.speeds()) > 2),
        tables=tuple(tables),
    )


def show_records(content: Content) -> Block:
    """Return what became of the records of each input."""
    account = content.account
    if account is None:
        return Block(title="Records")
    parts = {"kept": account.kept, "filtered": account.filtered, "quarantined": account.quarantined}
    parts["of another split"] = account.elsewhere
    shown = ", ".join(
        f"{number(amount)} {name} ({percent(amount, account.records)})"
        for name, amount in parts.items()
        if amount or name in {"kept", "quarantined"}
    )
    sentences = [f"{number(account.lines)} lines, {number(account.blank)} of them blank: {shown}."]
    sentences += [f"{file.path} was left out: {file.reason}." for file in (content.damaged_inputs or [])[:SHOWN_INPUTS]]
    if content.options.split_name is not None:
        sentences.append(_describe_split(content, account.kept, account.elsewhere))
    tables = [_records_table(content.inputs)] if len(content.inputs) > 1 else []
    for caption, amounts in (("Messages and tokens by role", content.statistics), ("Bad records", content.bad_records)):
        if amounts:
            rows = tuple((name, number(amount)) for name, amount in amounts.items())[:SHOWN_INPUTS]
            tables.append(Table(caption=caption, head=("kind", "amount"), rows=rows))
    return Block(title="Records", sentences=tuple(sentences), tables=tuple(tables))


def _describe_split(content: Content, kept: int, elsewhere: int) -> str:
    options = content.options
    names = ("train", "valid", "test")
    intended = ""
    if options.split is not None and options.split_name in names and sum(options.split) > 0:
        place = names.index(options.split_name)
        share = options.split[place] if place < len(options.split) else 0.0
        intended = f" {percent(share, sum(options.split))} intended,"
    return f"Split {options.split_name}:{intended} {percent(kept, kept + elsewhere)} of the records taken."


def _records_table(inputs: Sequence[RecordedInput]) -> Table:
    names = ("lines", "blank", "kept", "filtered", "quarantined", "elsewhere")
    ordered = sorted(range(len(inputs)), key=lambda place: -(inputs[place].quarantined or 0))
    shown = [inputs[place] for place in sorted(ordered[:SHOWN_INPUTS])]
    others = [inputs[place] for place in ordered[SHOWN_INPUTS:]]
    used = [name for name in names if any(getattr(file, name) for file in inputs)]
    rows = [(file.path, *(number(getattr(file, name) or 0) for name in used)) for file in shown]
    if others:
        sums = (number(sum(getattr(file, name) or 0 for file in others)) for name in used)
        rows.append((f"{count(len(others), 'other input')} with fewer quarantined records", *sums))
    return Table(caption="Records by source", head=("source", *used), rows=tuple(rows))


def show_digests(content: Content) -> Block:
    """Return the digests of a dataset's files."""
    rows = tuple((f".{suffix}", size(file.size_bytes), file.digest) for suffix, file in sorted(content.digests.items()))
    table = Table(
        caption="XXH3-128 over blocks of 64 MiB, as the manifest has them; dsindex verify compares them with the files",
        head=("file", "size", "digest"),
        rows=rows,
        texts=frozenset({0, 2}),
        code=frozenset({2}),
    )
    return Block(title="Digests", tables=(table,))
