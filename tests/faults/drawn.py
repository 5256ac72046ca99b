"""Draws jobs, disturbs and continues them, and compares every name and byte with those of a run that nothing disturbed.

    python -m tests.faults.drawn FIRST [LAST] [--long]

draws the jobs of these seeds. A job is a command with its inputs, options and events; an event is a strike at a call
(see tests.faults.zygote), damage to what an interrupted run left, a run with other options or inputs, or a move of a
folder. Everything is drawn from the seed. A job that fails is drawn again with fewer inputs, options and events for as
long as it still fails, and is printed as commands.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

from tests.faults.corpus import BROKEN, TOKENIZER, committed_shards
from tests.faults.zygote import HANGS, Strike, Zygote
from tests.support.compressed import COMPRESSORS
from tests.support.conversations import CONVERSATIONS
from tests.support.datasets import write_dataset
from tests.support.golden import GOLDEN, OWN
from tests.support.pbin_files import write_pbin

WORDS = OWN.docs.read_text(encoding="utf-8").split()
CHATS = CONVERSATIONS.read_bytes().splitlines(keepends=True)
CHAT_CONFIG = """\
special_tokens: {bos_token: <|endoftext|>, eos_token: <|endoftext|>}
message_construction: [role, instruction, conversations]
loss_masking_jq_patterns: ['.conversations | select(.from == "human")', .instruction, .role]
"""
SUFFIXES = {"gz": "one.gz", "members": "members.gz", "blocks": "blocks.gz", "zst": "one.zst", "frames": "frames.zst"}
SUFFIXES |= {"xz": "one.xz", "bz2": "one.bz2"}
TEXT_KINDS = (
    *("plain", "twice", "link", "overlap", "folder", "tiny", "blank", "empty", "list", "stdin", "listed on stdin"),
    *("parquet", "arrow", *SUFFIXES),
)
CHAT_KINDS = ("plain", "twice", "link", "list", "stdin", "folder", "parquet", "gz", "zst")
STRIKES = (
    *("kill", "kill", "kill", "tear", "tear", "SIGINT", "SIGTERM"),
    *("EIO", "ESTALE", "ENOSPC", "EDQUOT", "EIO read", "ESTALE read"),
)
DAMAGES = ("flip", "flip", "flip", "truncate", "lengthen", "remove")
COMPLETING = re.compile(
    r"(?P<stem>.*?)(?P<end>\.idx|\.pbin|\.manifest\.json|-description\.txt|/export\.manifest\.json)"
)
"""A file that says to a reader that the others of its dataset, cache or export are complete."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """What happens to a job before it is left alone."""

    kind: str
    """`strike`, `damage`, `other` (a run of another job of the same output), or `move`."""
    what: str
    share: float = 0.0
    """Where it strikes: a share of the calls of an undisturbed run, or of the bytes of a file."""
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
    executors: tuple[str, ...] = ("local",)
    """Executors of the runs, in turn."""
    varies_shards: bool = False
    """Whether every run has a shard size of its own."""


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
    return Job(
        seed=seed,
        command=command,
        inputs=tuple(f"{rng.choice(kinds)} {number}" for number in range(count)),
        options=tuple(words for words, share in OPTIONS.get(command, ()) if rng.random() < share),
        events=tuple(draw_events(rng, command)),
        is_replacing=command in OTHERS and rng.random() < 0.3,
        executors=tuple(executors),
        varies_shards=rng.random() < 0.15,
    )


def draw_events(rng, command):
    """Draw what happens: a few strikes, and something after some of them."""
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        share = rng.random() if rng.random() < 0.8 else 1 - rng.random() ** 3 * 0.1
        yield Event(kind="strike", what=rng.choice(STRIKES), share=share)
        kind = rng.choice(("", "", "", "damage", "damage", "other", "move"))
        if kind == "damage":
            yield Event(kind=kind, what=rng.choice(DAMAGES), share=rng.random())
        elif kind == "other" and command in OTHERS:
            what = rng.choice(OTHERS[command])
            yield Event(kind=kind, what=what, share=rng.random() * 2, replaces=rng.random() < 0.5)
        elif kind == "move" and command in {"build", "pack", "instruct", "merge"}:
            yield Event(kind=kind, what=rng.choice(("work", "output")))


OF_RECORDS = ((("--on-bad-record", "quarantine"), 0.5), (("--no-provenance",), 0.15))
OF_TEXT = (
    (("--json-keys", "text", "title"), 0.4),
    (("--sample", "60%"), 0.15),
    (("--where", ".title != null"), 0.2),
    (("--empty-documents", "eod"), 0.2),
)
OPTIONS = {
    "build": (*OF_RECORDS, *OF_TEXT, (("--hold-out", "30%"), 0.2)),
    "build with index": (*OF_RECORDS, *OF_TEXT, (("--join", "\\n"), 0.2)),
    "pack": OF_RECORDS,
    "instruct": (
        *OF_RECORDS,
        (("--seq-length", "768", "--export", "parquet"), 0.3),
        (("--seq-length", "768", "--export", "bridge"), 0.3),
        (("--seq-length", "768"), 0.3),
        (("--split", "8,1,1"), 0.2),
    ),
    "convert": ((("--flatten",), 0.3),),
    "index": ((("--document-order", "packed"), 0.3),),
}
"""Groups of words of each command, and how often they are taken."""
OTHERS = {
    "build": ("--append-eod", "shard size", "inputs", "records"),
    "build with index": ("shard size", "inputs", "records"),
    "pack": ("shard size", "inputs", "records"),
    "instruct": ("shard size", "inputs", "records"),
    "merge": ("inputs",),
}
"""What the other run of a command has of its own: its files have the same names."""


# Inputs.


def write_text(path, *, rng, num_lines=None, is_chat=False, broken=0.03):
    """Write records, of which some are blank or bad; return the bytes."""
    lines = []
    for number in range(rng.choice((3, 12, 30) if is_chat else (3, 30, 80)) if num_lines is None else num_lines):
        if rng.random() < broken and not is_chat:
            lines.append(rng.choice((b" \n", *(bad + b"\n" for bad in BROKEN.values()))))
        elif is_chat:
            lines.append(rng.choice(CHATS))
        else:
            text = " ".join(rng.choices(WORDS, k=rng.randrange(60)))
            lines.append(json.dumps({"title": f"document {number}", "text": text}).encode() + b"\n")
    data = b"".join(lines)
    path.write_bytes(data if rng.random() < 0.8 else data.rstrip(b"\n"))
    return path.read_bytes()


def write_table(path, rows, *, kind):
    """Write rows as a table of several row groups or batches."""
    table = pa.Table.from_pylist(rows)
    if kind == "parquet":
        pa.parquet.write_table(table, path, row_group_size=max(1, len(rows) // 7))
    else:
        pa.feather.write_feather(table, path, compression="uncompressed", chunksize=max(1, len(rows) // 7))


def write_inputs(job, folder):
    """Write the inputs of a job below a folder; return the words that name them, and what is standard input."""
    (folder / "in").mkdir()
    broken = 0.03 if any("quarantine" in words for words in job.options) else 0.0
    words, lists, stdin = [], [], None
    for piece in job.inputs:
        kind, _, number = piece.rpartition(" ")
        kind = "plain" if stdin and "stdin" in kind else kind
        rng = random.Random(f"{job.seed} {piece}")
        write = partial(write_text, rng=rng, is_chat=job.command == "instruct", broken=broken)
        paths = write_piece(kind, folder / "in" / f"{number}.jsonl", rng, write)
        if kind in {"list", "listed on stdin"}:
            listed = paths[0].with_suffix(".txt")
            listed.write_text(f"{paths[0]}\n# a comment\n\n{paths[0]}\n")
            lists.append("-" if "stdin" in kind else str(listed))
            stdin = listed if "stdin" in kind else stdin
        elif kind == "stdin":
            stdin = paths[0].rename(folder / "in.stdin")
            words.append("-")
        else:
            words += map(str, paths)
    return [*(["--input", *words] if words else []), *(["--input-list", *lists] if lists else [])], stdin


def write_piece(kind, path, rng, write):
    """Write what one input of a kind names; return its paths."""
    if kind in {"folder", "tiny"}:
        folder = path.with_suffix("")
        folder.mkdir()
        for each in range(rng.randint(30, 80) if kind == "tiny" else 3):
            write(folder / f"{each:03}.jsonl", num_lines=rng.randint(1, 2) if kind == "tiny" else None)
        (folder / "README.md").write_text("no record\n")
        return [folder, folder / "001.jsonl"] if kind == "folder" else [folder]
    if kind in {"parquet", "arrow"}:
        rows = [json.loads(line) for line in write(path, broken=0.0).splitlines()]
        path.unlink()
        write_table(path.with_suffix(f".{kind}"), rows, kind=kind)
        return [path.with_suffix(f".{kind}")]
    if kind in SUFFIXES:
        data = write(path)
        path.unlink()
        path = path.with_name(f"{path.name}.{SUFFIXES[kind].rpartition('.')[2]}")
        path.write_bytes(COMPRESSORS[SUFFIXES[kind]](data))
        return [path]
    write(path)
    if kind in {"blank", "empty"}:
        path.write_bytes(b"\n \n" if kind == "blank" else b"")
    if kind == "link":
        path.with_suffix(".link.jsonl").symlink_to(path)
        return [path.with_suffix(".link.jsonl"), path]
    if kind == "overlap":
        write(path.with_suffix(".b.jsonl"))
        return [path.with_name(f"{path.stem}*.jsonl"), path]
    return [path, path] if kind == "twice" else [path]


def write_datasets(job, folder):
    """Write or choose the datasets that a job reads; return their paths."""
    (folder / "in").mkdir()
    paths = []
    for piece in job.inputs:
        number = piece.rpartition(" ")[2]
        rng = random.Random(f"{job.seed} {piece}")
        documents = [[[rng.randrange(500) for _ in range(rng.randrange(60))]] for _ in range(rng.choice((1, 30, 400)))]
        if job.command == "pack --merge" or (job.command == "convert" and job.seed % 2):
            documents = [[token for part in document for token in part] for document in documents]
            path = write_pbin(folder / "in" / f"{number}.pbin", documents, token_bytes=2)
        elif rng.random() < 0.4:
            path = str(GOLDEN / rng.choice(("eod_text_document", "keys_title_document", "sentences_text_document")))
        else:
            path = write_dataset(folder / "in" / number, documents)
        paths += [path] * (2 if piece.startswith("twice") and job.command != "convert" else 1)
    return paths


# Commands.


def words_of(job, folder, out, work=None):
    """Write the inputs of a job; return its words without those of its executor, and its standard input."""
    command, options = job.command, [word for group in job.options for word in group]
    own = ["--work-dir", str(work)] if work else []
    if command in {"merge", "pack --merge", "convert", "index"}:
        paths = write_datasets(job, folder)
        match command:
            case "merge":
                words = ["merge", "--input", *paths, "--output-prefix", f"{out}/x"]
            case "pack --merge":
                words = ["pack", "--merge", *paths, "--output", f"{out}/x.pbin"]
            case "convert":
                words = ["convert", paths[0], f"{out}/x" if paths[0].endswith(".pbin") else f"{out}/x.pbin"]
            case _:
                words = ["index", "--data-path", *paths, "--seq-length", "32", "--num-samples", "300", "--split", "1"]
                words += ["--data-cache-path", f"{out}/cache", "--plain-names"]
        return [*words, *options, *own], None
    words, stdin = write_inputs(job, folder)
    if command == "raw-index":
        path = folder / "in" / "0.jsonl"
        write_text(path, rng=random.Random(job.seed), broken=0.0)
        return ["raw-index", str(path), "--output", f"{out}/x.idx"], None
    if command == "instruct":
        (folder / "chat.yaml").write_text(CHAT_CONFIG)
        words = ["instruct", str(folder / "chat.yaml"), *words, "--output-prefix", f"{out}/x", *TOKENIZER[:2]]
    elif command == "pack":
        words = ["pack", *words, *TOKENIZER[:2], "--output", f"{out}/x.pbin"]
    else:
        words = ["build", *words, *TOKENIZER, "--output-prefix", f"{out}/x"]
        if command == "build with index":
            words += ["--seq-length", "32", "--num-samples", "100", "--split", "1", "--plain-names"]
            words += ["--data-cache-path", f"{out}/cache"]
    return [*words, *options, *own], stdin


SHARD_SIZES = ("2KiB", "4KiB", "8KiB", "20KiB")


def run_options(job, number):
    """Return the options of a run that do not change what is made."""
    rng = random.Random(f"{job.seed} run {number if job.varies_shards else 0}")
    words = []
    if job.command in {"build", "build with index", "pack", "instruct"}:
        words += ["--shard-size", rng.choice(SHARD_SIZES)]
    if job.command not in {"convert", "raw-index", "pack --merge"}:
        rng = random.Random(f"{job.seed} workers {number}")
        words += ["--workers", str(rng.randint(1, 3)), "--executor", job.executors[number % len(job.executors)]]
    return words


# What happens.


class Failed(Exception):
    """A run or an output is not as it must be; the first argument names the kind."""


class Trial:
    """One job in a folder: its runs, one after the other."""

    def __init__(self, job, zygote, folder, counts):
        self.job, self.zygote, self.folder, self.counts = job, zygote, folder, counts
        self.log: list[str] = []
        self.number = 0
        self.out, self.work = folder / "out", None
        self.expected, self.before_job = {}, {}
        """Snapshots of what an undisturbed run leaves, and of what stood before the job."""
        self.touched = ""
        """What was damaged, for the kind of a failure."""
        self.replaces = job.is_replacing
        self.was_killed = False
        (folder / "tmp").mkdir()
        self.zygote_folder = folder / "run"
        self.words, self.stdin = words_of(job, folder, "OUT")
        self.inputs = snapshot(folder / "in")

    def run(self, strike=None, *, words=None, stdin=None):
        """Run the job, or another one, once; check how it ends."""
        words = [word.replace("OUT", str(self.out)) for word in words or self.words]
        words += run_options(self.job, self.number)
        words += ["--work-dir", str(self.work)] if self.work else []
        words += ["--replace"] if self.replaces and self.job.command in OTHERS else []
        self.number += 1
        stdin = stdin or self.stdin or os.devnull
        began = time.monotonic()
        ended = self.zygote.run(self.zygote_folder, words, strike, stdin=stdin)
        shown = f"dsindex {shlex.join(words)}" + (f" < {stdin}" if stdin != os.devnull else "")
        struck = f"  # {strike.what} at {'read' if strike.reads else 'call'} {strike.at}" if strike else ""
        self.log.append(f"{shown}{struck}: {ended.code} after {time.monotonic() - began:.1f} s")
        said = ended.errors.strip().splitlines()
        if ended.code not in {0, -9}:
            self.log += [f"    {line}" for line in said[-40 if ended.code == HANGS else -4 :]]
        if ended.code == HANGS:
            raise Failed("hang")
        shown = [line for line in said if re.search(r"Traceback|internal error|panicked|Error\b", line)]
        if shown and ended.code != -9:
            raise Failed(f"traceback: {shown[0][:80]}")
        if ended.code not in {0, 1, -9, 130, 143} or (ended.code and ended.code != -9 and not said):
            raise Failed(f"exit code {ended.code}")
        self.was_killed |= ended.code == -9
        if ended.code == 0 or not self.was_killed:
            left = [path for path in names_below(self.out) if path.endswith(".tmp") and path not in USERS]
            if left:
                raise Failed(f"temporary file after exit {ended.code}: {kind_of(left[0])}")
        return ended


def snapshot(folder):
    """Return all names below a folder with their bytes; of manifests the part under the law, of progress the name."""
    files = {}
    for top, folders, names in os.walk(folder):
        for name in folders:
            files[f"{os.path.relpath(os.path.join(top, name), folder)}/"] = b""
        for name in names:
            path = os.path.join(top, name)
            data = Path(path).read_bytes() if os.path.isfile(path) else b""
            if name.endswith(".progress.json"):
                data = b""
            elif name.endswith("manifest.json"):
                data = json.dumps(json.loads(data).get("content", {})).encode() if b'"run"' in data else data
            elif name.endswith("-dsindex.json"):
                data = b""
            files[os.path.relpath(path, folder)] = data
    return files


def names_below(folder):
    return sorted(os.path.relpath(os.path.join(top, name), folder) for top, _, own in os.walk(folder) for name in own)


def check_what_stands(found, before, expected):
    """Check that what is complete to a reader is all from before the job, or all as it will be."""
    for name, match in (
        (name, match) for name in found if (match := COMPLETING.fullmatch(name)) and ".build/" not in name
    ):
        stem, end = match["stem"], match["end"]
        for source in (before, expected):
            own = [f"{stem}.bin"] if end == ".idx" else [each for each in source if each.startswith(stem + end[0])]
            own = (
                []
                if end == ".pbin"
                else [each for each in own if each in source and not each.endswith((".progress.json", "-dsindex.json"))]
            )
            if all(found.get(each) == source.get(each) for each in (name, *own)):
                break
        else:
            raise Failed(f"a mixture stands: {kind_of(name)}")


def kind_of(path):
    """Return a path with its numbers and digests left out, for the kind of a failure."""
    return re.sub(r"[0-9a-f]{16,}", "*", re.sub(r"\b\d+\b", "N", str(path)))


USERS = {"x.txt": b"mine", "x_text_document.bin.old": b"mine", "x_notes.tmp": b"mine", "x.pbin.bak": b"mine",
         "x.build.tar": b"mine", "cache/mine.npy": b"mine", "x_parquet.old/a": b"mine"}  # fmt: skip
"""Files of the user's beside the outputs."""


def prepare(trial):
    """Put what stands before the job into the output folder: files of the user's, and an older output."""
    trial.out.mkdir()
    for name, data in USERS.items():
        (trial.out / name).parent.mkdir(exist_ok=True)
        (trial.out / name).write_bytes(data)
    if trial.job.is_replacing:
        words, stdin = other_words(trial, "inputs")
        ended = trial.run(words=words, stdin=stdin)
        if ended.code:
            trial.counts["older output refused"] += 1


def other_words(trial, what):
    """Return the words of another job of the same output, and its standard input."""
    job, words = trial.job, list(trial.words)
    if what == "--append-eod":
        words = [word for word in words if word not in {"--append-eod", "--empty-documents", "eod"}]
    elif what == "records" and "--where" not in words and job.command != "pack":
        words += ["--max-record-size", "100KiB"] if job.command == "instruct" else ["--where", ".title != null"]
    elif what == "inputs":
        place = trial.folder / f"others{trial.number}"
        place.mkdir()
        fewer = replace(job, seed=job.seed + 10**6, inputs=job.inputs[: max(1, len(job.inputs) - 1)])
        return words_of(fewer, place, "OUT")
    return words, trial.stdin


def damage(trial, event):
    """Damage one of the files that an interrupted run left: of the work folder, or not yet under a final name."""
    places = [trial.out, *([trial.work] if trial.work else [])]
    paths = [place / name for place in places for name in names_below(place) if name not in USERS]
    paths = [path for path in paths if re.search(r"\.build/|\.partial|\.tmp|\.replaced", str(path))]
    rng = random.Random(f"{trial.job.seed} {event}")
    if not paths:
        trial.counts["damage: nothing to damage"] += 1
        return
    groups = {}
    for path in paths:
        groups.setdefault(re.sub(r"[0-9a-f]{32}|\d+", "*", str(path.relative_to(trial.folder))), []).append(path)
    path = rng.choice(rng.choice(list(groups.values())))
    data = bytearray(path.read_bytes())
    at = min(int(event.share * len(data)), len(data) - 1)
    if event.what == "flip" and data:
        data[at] ^= 1 << rng.randrange(8)
    elif event.what == "truncate":
        del data[max(0, at) :]
    elif event.what == "lengthen":
        data += rng.randbytes(rng.choice((1, 8, 100)))
    if event.what == "remove":
        path.unlink()
    else:
        path.write_bytes(data)
    trial.touched = f"{event.what} {kind_of(path.relative_to(trial.folder))}"
    trial.log.append(f"# {event.what} at byte {at}: {path}")
    trial.counts[f"damage: {event.what}"] += 1


def play(job, zygote, folder, counts):
    """Run a job with its events in a folder.

    Raises:
        Failed: If something is not as it must be.
    """
    trial = Trial(job, zygote, folder, Counter())
    try:
        prepare(trial)
        ended = trial.run(Strike())
        num_writes = len(ended.calls)
        if ended.code:  # such as for an empty file
            counts["refused"] += 1
            counts[f"refused: {kind_of(ended.errors.splitlines()[-1])[-100:]}"] += 1
            return
        expected = snapshot(trial.out)
        num_reads = 0
        if any(event.what.endswith(" read") for event in job.events):
            shutil.rmtree(trial.out)
            prepare(trial)
            num_reads = len(trial.run(Strike(reads=True, place=f"{folder}/{READ}")).calls)
        for path in folder.iterdir():
            if path.name != "run":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        trial = Trial(job, zygote, folder, counts)
        trial.expected = expected
        disturb(trial, num_writes, num_reads)
        compare(trial)
    except Failed as failed:
        failed.trial = trial  # type: ignore[attr-defined]
        raise


def disturb(trial, num_writes, num_reads):
    """Let the events happen, then run the job until it succeeds."""
    job = trial.job
    moves = any(event.what == "output" for event in job.events)
    trial.out = trial.folder / ("first" if moves else "out")
    prepare(trial)
    trial.before_job = snapshot(trial.out)
    for event in job.events:
        if event.kind == "strike":
            is_done = strike(trial, event, num_reads if event.what.endswith(" read") else num_writes)
            if is_done and job.command in {"convert", "pack --merge"}:  # which refuse to write again
                return
        elif event.kind == "damage":
            damage(trial, event)
        elif event.kind == "other":
            run_other(trial, event, num_writes)
        elif event.kind == "move":
            move(trial, event.what)
    if trial.out.name == "first":
        move(trial, "output")
    finish(trial)


def finish(trial):
    """Run the job, which must succeed; after damage it may fail once. No recorded shard is made again."""
    job = trial.job
    is_plain = {"strike"} == {event.kind for event in job.events} and not job.varies_shards
    has_once = {piece.partition(" ")[0] for piece in job.inputs} <= {"plain", "tiny", "parquet", "arrow", *SUFFIXES}
    committed = committed_shards(trial.out / "x.build") if is_plain and has_once else set()
    ended = trial.run()
    if committed & set(ended.tokenized):
        raise Failed("a shard that was recorded is made again")
    if ended.code and trial.touched:
        trial.counts["failed once after damage"] += 1
        ended = trial.run()
    if ended.code:
        raise Failed(f"does not continue: {kind_of(' '.join(ended.errors.split())[-200:])}")


def strike(trial, event, num_calls):
    """Run the job with a strike; return whether it succeeded all the same."""
    what, reads = event.what.removesuffix(" read"), event.what.endswith(" read")
    at = min(int(event.share * num_calls), num_calls - 1)
    place = f"{trial.folder}/{READ}" if reads else f"{trial.folder}/" if what.startswith("E") else ""
    ended = trial.run(Strike(at=at, what=what, reads=reads, lasts=what in {"ENOSPC", "EDQUOT"}, place=place))
    trial.counts[f"strike: {event.what}{'' if ended.struck else ', not reached'}"] += 1
    if not any(each.kind == "other" for each in trial.job.events):
        check_what_stands(snapshot(trial.out), trial.before_job, trial.expected)
    if ended.code == 1 and not trial.was_killed and trial.job.command in {"convert", "raw-index", "pack --merge"}:
        check_nothing_changed(trial)
    if what in {"kill", "tear"} and ended.struck and ended.code != -9:
        raise Failed(f"exit code {ended.code} after {what}")
    if reads and ended.code and re.search(r"Input/output error|Stale file handle", ended.errors):
        raise Failed("one error of a disk ends a run that reads")
    return ended.code == 0


def check_nothing_changed(trial):
    """Check that a command without a work folder leaves nothing if it fails."""
    found, expected = snapshot(trial.out), trial.before_job | trial.expected
    left = sorted(name for name in found if found[name] != expected.get(name) and not name.endswith(".progress.json"))
    if left and not any(name.endswith(".commit") for name in left):  # which the next run carries out
        raise Failed(f"left over after a failure: {kind_of(left[0])}")


def run_other(trial, event, num_calls):
    """Run another job of the same output, perhaps until it is killed; the job then replaces what that one made."""
    words, stdin = other_words(trial, event.what)
    replaced, trial.replaces = trial.replaces, trial.replaces or event.replaces
    at = int(event.share * num_calls)
    ended = trial.run(Strike(at=at) if event.share < 1 else None, words=words, stdin=stdin)
    trial.counts[f"other: {event.what}{', replacing' if trial.replaces else ''}"] += 1
    trial.replaces = replaced or ended.code != 1


READ = "(in|out|first|elsewhere|chat.yaml)"
"""What a run reads in the folder of its job."""


def move(trial, what):
    if what == "output" and trial.out.name == "first":
        trial.log.append(f"# mv {trial.out} {trial.folder / 'out'}")
        trial.out = trial.out.rename(trial.folder / "out")
        trial.counts["move: output"] += 1
    work = next(iter(trial.out.glob("x*.build")), None)
    if what == "work" and trial.work is None and work:
        (trial.folder / "elsewhere").mkdir()
        trial.work = work.rename(trial.folder / "elsewhere" / "w.build")
        trial.log.append(f"# mv {work} {trial.work}")
        trial.counts["move: work folder"] += 1


def compare(trial):
    """Compare what stands at the end with what an undisturbed run leaves."""
    found, expected = snapshot(trial.out), trial.expected
    if missing := sorted(expected.keys() - found.keys()):
        raise Failed(f"missing: {kind_of(missing[0])}")
    if added := sorted(found.keys() - expected.keys()):
        raise Failed(f"left over: {kind_of(added[0])}")
    if other := [name for name in sorted(found) if found[name] != expected[name]]:
        raise Failed(f"other bytes: {kind_of(other[0])}")
    if (trial.folder / "elsewhere").exists() and (left := names_below(trial.folder / "elsewhere")):
        raise Failed(f"left over in the moved work folder: {kind_of(left[0])}")
    if snapshot(trial.folder / "in") != trial.inputs:
        raise Failed("inputs were touched")


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
    for name, least in (("is_replacing", False), ("executors", ("local",)), ("varies_shards", False)):
        if getattr(job, name) != least:
            yield replace(job, **{name: least})


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
        counts["jobs"] += 1
        counts[f"command: {job.command}"] += 1
        counts.update(f"input: {piece.rpartition(' ')[0]}" for piece in job.inputs)
        counts.update(f"executor: {name}" for name in set(job.executors))
        failure = try_job(job, zygote, base, counts)
        if failure is not None:
            yield describe(*(minimise(job, failure, zygote, base) if minimises else (job, failure)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--no-minimise", action="store_true")
    chosen = parser.parse_args()
    seeds = range(chosen.first, (chosen.first if chosen.last is None else chosen.last) + 1)
    counts, num_failed = Counter(), 0
    with Zygote() as zygote, tempfile.TemporaryDirectory(prefix="drawn") as base:
        failures = run_seeds(seeds, zygote, base, is_long=chosen.long, counts=counts, minimises=not chosen.no_minimise)
        for text in failures:
            num_failed += 1
            print(text, end="\n\n", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:6}  {name}")
    print(f"{num_failed} of {counts['jobs']} jobs failed")
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
