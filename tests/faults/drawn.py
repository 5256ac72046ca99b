"""Draws jobs, disturbs and continues them, and compares every name and byte with those of a run that nothing disturbed.

    python -m tests.faults.drawn FIRST [LAST] [--long]

draws the jobs of these seeds. A job is a command with its inputs, options and events; an event is a strike at a call
(see tests.faults.zygote), damage to what an interrupted run left, a run with other options or inputs, or a move of a
folder. Everything is drawn from the seed. A job that fails is drawn again with fewer inputs, options and events for as
long as it still fails, and is printed as commands.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from tests.faults.damage import DAMAGES
from tests.faults.drawn_inputs import CHAT_KINDS, TEXT_KINDS
from tests.faults.trial import REPLACING, SHARDING, Failed, play
from tests.faults.zygote import Zygote

STRIKES = (
    *("kill", "kill", "kill", "kill", "tear", "tear", "tear", "SIGINT", "SIGTERM"),
    *("EIO", "ESTALE", "ENOSPC", "EDQUOT", "EIO read", "ESTALE read"),
)


@dataclass(frozen=True, kw_only=True)
class Event:
    """What happens to a job before it is left alone."""

    kind: str
    """`strike`, `damage`, `other` (a run of another job of the same output), or `move`."""
    what: str
    share: float = 0.0
    """Where it strikes: a share of the calls of an undisturbed run."""
    file: str = ""
    """A regular expression of the files of which one is damaged between runs."""
    is_publishing: bool = False
    """Whether only calls count that touch commits and final names."""
    replaces: bool = False
    """Whether the run with other options has --replace."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is run and what happens to it; every part of it can be left out."""

    seed: int
    command: str
    inputs: tuple[str, ...]
    """Kinds of inputs, each with a number."""
    options: tuple[tuple[str, ...], ...]
    events: tuple[Event, ...]
    is_replacing: bool = False
    """Whether a finished output of fewer inputs stands where it writes."""
    is_keeping: bool = False
    """Whether that one's shards are kept, and the job's until a last run."""
    has_work_dir: bool = False
    """Whether the work folder is elsewhere."""
    executors: tuple[str, ...] = ("local",)
    """Executors of the runs, in turn."""
    varies_shards: bool = False
    """Whether every run has a shard size of its own."""
    range_bytes: int = 1 << 10
    """Size of the ranges of outputs and of the blocks of shards that have a digest."""


OF_JOBS = ("is_replacing", "is_keeping", "has_work_dir", "varies_shards")


def draw(seed, *, is_long=False):
    """Draw a job."""
    rng = random.Random(seed)
    commands = ("build", "build", "build", "build with index", "pack", "instruct", "instruct", "merge")
    command = rng.choice((*commands, "pack --merge", "convert", "raw-index", "index"))
    kinds = CHAT_KINDS if command == "instruct" else TEXT_KINDS
    count = 1 if command in {"convert", "raw-index"} else rng.choice((1, 1, 2, 2, 3, 4))
    executors = ["local"] * rng.randint(1, 3)
    if rng.random() < (0.1 if is_long else 0.03):
        executors[rng.randrange(len(executors))] = "ray" if is_long and rng.random() < 0.1 else "processes"
    is_keeping = command in SHARDING and rng.random() < 0.3
    return Job(
        seed=seed,
        command=command,
        inputs=tuple(f"{rng.choice(kinds)} {number}" for number in range(count)),
        options=tuple(words for words, share in OPTIONS.get(command, ()) if rng.random() < share),
        events=tuple(draw_events(rng, command, is_keeping=is_keeping)),
        is_replacing=command in REPLACING and rng.random() < (0.8 if is_keeping else 0.25),
        is_keeping=is_keeping,
        has_work_dir=command in REPLACING and rng.random() < 0.2,
        executors=tuple(executors),
        varies_shards=rng.random() < 0.15,
        range_bytes=8 << 10 if command == "index" else rng.choice((512, 1 << 10, 2 << 10, 8 << 10)),  # of its input
    )


def draw_events(rng, command, *, is_keeping):
    """Draw what happens: a few strikes, and something before or after some of them."""
    strikes = [*STRIKES, *(["meet"] if command not in {"index", "build with index"} and rng.random() < 0.2 else [])]
    if command in SHARDING:
        strikes += [*DAMAGES[::2], "truncate partial", "lengthen partial"]
    if is_keeping and rng.random() < 0.5:
        yield Event(kind="damage", what=rng.choice(DAMAGES))
    for number in range(rng.choice((1, 1, 2, 2, 3))):
        share = rng.random() if rng.random() < 0.8 else 1 - rng.random() ** 3 * 0.1
        share = share**2 if number else share  # less is left to do
        kind = rng.choice(("", "", "damage", "damage", "damage", "other", "other", "move"))
        if kind == "other" and command in REPLACING:
            action = rng.choice(OTHERS[command])
            yield Event(kind=kind, what=action, share=rng.random() * 1.5, replaces=rng.random() < 0.5)
        action = rng.choice(STRIKES[:9] if kind == "damage" else strikes)  # which leave something
        yield Event(kind="strike", what=action, share=share, is_publishing=action not in DAMAGES and rng.random() < 0.3)
        if kind == "damage":
            file = rng.choice(("", "", "journal", "/shards/", "/shards/", r"\.partial"))
            yield Event(kind=kind, what=rng.choice(DAMAGES), file=file)
        elif kind == "move" and command in REPLACING - {"build with index"}:
            yield Event(kind=kind, what=rng.choice(("work", "output")))


OF_RECORDS = ((("--on-bad-record", "quarantine"), 0.5), (("--no-provenance",), 0.15))
OF_TEXT = ((("--json-keys", "text", "title"), 0.4), (("--sample", "60%"), 0.15), (("--empty-documents", "eod"), 0.2))
OPTIONS = {
    "build": (*OF_RECORDS, *OF_TEXT, (("--where", ".title != null"), 0.2), (("--hold-out", "30%"), 0.2)),
    "build with index": (*OF_RECORDS, *OF_TEXT, (("--where", ".title | length > 0"), 0.2), (("--join", "\\n"), 0.2)),
    "pack": (*OF_RECORDS, (("--shuffle-documents", "7"), 0.5)),
    "instruct": (
        *OF_RECORDS,
        (("--seq-length", "768", "--export", "parquet"), 0.3),
        (("--seq-length", "768", "--export", "bridge"), 0.3),
        (("--seq-length", "768"), 0.3),
        (("--split", "8,1,1"), 0.2),
    ),
    "pack --merge": ((("--shuffle-documents", "7"), 0.3),),
    "convert": ((("--flatten",), 0.3), (("--shuffle-documents", "7"), 0.3)),
    "index": (
        (("--document-order", "packed"), 0.3),
        (("--continue-from", "IN/cache", "--consumed-samples", "100", "--global-batch-size", "10"), 0.3),
    ),
}
"""Groups of words of each command, and how often they are taken."""
OTHERS = dict.fromkeys(SHARDING, ("fewer inputs", "without --replace", "changed input", "nothing piped", "shard size"))
OTHERS["build"] += ("--append-eod", "records", "prefix")
OTHERS["pack"] += ("prefix", "order")
OTHERS["instruct"] += ("records",)
OTHERS["merge"] = ("fewer inputs", "without --replace", "prefix")
"""What the other run of a command has of its own: its files have the same names, or its work folder."""


# Failures.


def try_job(job, zygote, base, counts):
    """Play a job in a new folder; return None, or the failure's kind, what was damaged, and the commands."""
    folder = Path(tempfile.mkdtemp(prefix="d", dir=base))
    try:
        play(job, zygote, folder, counts)
    except Failed as failed:
        return str(failed), failed.trial.touched, failed.trial.log  # type: ignore[attr-defined]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None


def fewer(job):
    """Yield jobs that are a little less than a job."""
    for name in ("events", "options", "inputs"):
        parts = getattr(job, name)
        for number in range(len(parts)):
            if len(parts) > (name != "options"):
                yield replace(job, **{name: parts[:number] + parts[number + 1 :]})
    for number, piece in enumerate(job.inputs):
        if not piece.startswith("plain"):
            plain = f"plain {piece.rpartition(' ')[2]}"
            yield replace(job, inputs=(*job.inputs[:number], plain, *job.inputs[number + 1 :]))
    for name in OF_JOBS:
        if getattr(job, name):
            yield replace(job, **{name: False})
    if job.executors != ("local",):
        yield replace(job, executors=("local",))


def minimise(job, failure, zygote, base):
    """Return the least job that fails in the same way, and how."""
    kind = failure[0].partition(":")[0]
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in fewer(job):
            tried = try_job(candidate, zygote, base, Counter())
            if tried is not None and tried[0].partition(":")[0] == kind:
                job, failure, is_smaller = candidate, tried, True
                break
    return job, failure


def describe(job, failure):
    """Return a failure as a paragraph."""
    kind, touched, log = failure
    return "\n".join([f"seed {job.seed}: {kind}" + (f" [{touched}]" if touched else ""), f"  {job}", *log])


def run_seeds(seeds, zygote, base, *, is_long=False, counts=None, minimises=True):
    """Play the jobs of seeds; yield each failure as a paragraph."""
    counts = Counter() if counts is None else counts
    for seed in seeds:
        job = draw(seed, is_long=is_long)
        counts["Commands", job.command] += 1
        counts.update(("Inputs", piece.rpartition(" ")[0]) for piece in job.inputs)
        counts.update(("Executors", name) for name in set(job.executors))
        counts.update(("Options", name) for name in OF_JOBS if getattr(job, name))
        failure = try_job(job, zygote, base, counts)
        if failure is not None:
            yield describe(*(minimise(job, failure, zygote, base) if minimises else (job, failure)))


def show_counts(counts):
    """Return what was drawn and what happened as a list, the most frequent first."""
    lines = []
    for heading in sorted({heading for heading, _ in counts}):
        ranks = sorted(((count, name) for (group, name), count in counts.items() if group == heading), reverse=True)
        lines += ["", f"{heading} ({sum(count for count, _ in ranks):,})", *(f"{n:7,}  {name}" for n, name in ranks)]
    return "\n".join(lines)


MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where the folders of jobs are: a disk would wait for every sync."""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--no-minimise", action="store_true")
    chosen = parser.parse_args()
    seeds = range(chosen.first, (chosen.first if chosen.last is None else chosen.last) + 1)
    counts, num_failed, options = Counter(), 0, {"is_long": chosen.long, "minimises": not chosen.no_minimise}
    with Zygote() as zygote, tempfile.TemporaryDirectory(prefix="drawn", dir=MEMORY) as base:
        for begin in range(0, len(seeds), 100):
            batch = seeds[begin : begin + 100]
            for text in run_seeds(batch, zygote, base, counts=counts, **options):
                num_failed += 1
                print(text, end="\n\n", flush=True)
            print(f"{begin + len(batch):,} of {len(seeds):,} jobs, {num_failed} failed", file=sys.stderr)
    print(show_counts(counts))
    print(f"{num_failed} of {len(seeds):,} jobs failed")
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
