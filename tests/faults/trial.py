"""One drawn job in a folder of its own: its runs, what happens between them, and what must hold after each."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import shutil
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from dsindex.runtime.work_folder import Journal
from tests.faults.corpus import committed_shards
from tests.faults.damage import DAMAGES, damage_one, paths_below
from tests.faults.drawn_inputs import SUFFIXES, words_of
from tests.faults.zygote import HANGS, Strike

COMPLETING = re.compile(
    r"(?P<stem>.*?)(?P<end>\.idx|\.pbin|\.manifest\.json|-description\.txt|/export\.manifest\.json)"
)
"""A file that says to a reader that the others of its dataset, cache or export are complete."""
LEFT = r"\.build/|/w\.build|\.partial|\.tmp|\.commit|\.withdrawn|-lock"
"""Files of ours that are not published."""
OTHERS = r"\.build/|(\.progress|-dsindex)\.json$"
"""Files that are not compared while a dataset, cache or export stands."""
READ = "(in|out|first|elsewhere|chat.yaml)"
"""What a run reads in the folder of its job."""
PUBLISHED = r"(?!x[^/ ]*\.build(/|$))(?!.*(\.partial$|progress|-lock))"
"""What publishing touches in the folder of the outputs: commits, final names, and temporary files of whole files."""
USERS = {"x.txt": b"mine", "x_text_document.bin.old": b"mine", "x_notes.tmp": b"mine", "x.pbin.bak": b"mine",
         "x.build.tar": b"mine", "cache/mine.npy": b"mine", "x_parquet.old/a": b"mine"}  # fmt: skip
"""Files of the user's beside the outputs."""
REPLACING = {"build", "build with index", "pack", "instruct", "merge"}
"""Commands with --replace."""
SHARDING = REPLACING - {"merge"}
"""Commands with --keep-shards and --shard-size."""
ONCE = {"convert", "raw-index", "pack --merge"}
"""Commands without a work folder, which do not write again what is there."""
SHARD_SIZES = ("2KiB", "4KiB", "8KiB", "20KiB")


class Failed(Exception):
    """A run or an output is not as it must be; the first argument names the kind."""


class Trial:
    """One job in a folder: its runs, one after the other.

    Args:
        job: The job.
        zygote: Runs commands.
        folder: An empty folder.
        counts: Counts what happens.
        expected: A snapshot of what an undisturbed run leaves.
        calls: The calls of an undisturbed run that change something, and those that read.
    """

    def __init__(self, job, zygote, folder, counts, *, expected=None, calls=((), ())):
        self.job, self.zygote, self.folder, self.counts = job, zygote, folder, counts
        self.expected, self.calls = expected or {}, calls
        self.log: list[str] = []
        self.number = 0
        self.out, self.work = folder / "out", folder / "elsewhere" / "w.build" if job.has_work_dir else None
        self.before_job: dict[str, bytes] = {}
        """A snapshot of what stood before the job."""
        self.touched = ""
        """What was damaged, for the kind of a failure."""
        self.replaces = job.is_replacing
        self.keeps = False
        """Whether runs have --keep-shards."""
        self.was_killed = False
        self.words, self.stdin = words_of(job, folder, "OUT")
        self.inputs = snapshot(folder / "in")

    # Runs.

    def prepare(self):
        """Put what stands before the job into the output folder: files of the user's, and an older output."""
        self.out.mkdir()
        for name, data in USERS.items():
            (self.out / name).parent.mkdir(exist_ok=True)
            (self.out / name).write_bytes(data)
        self.keeps = self.job.is_keeping
        if self.job.is_replacing:
            ended = self.run(words=fewer_inputs(self.words))
            if ended.code:
                self.counts["Before the job", "older output refused"] += 1

    def run(self, strike=None, *, words=None, stdin=None):
        """Run the job, or another one, once; check how it ends."""
        words = [word.replace("OUT", str(self.out)) for word in words or self.words]
        words += self.run_options()
        self.number += 1
        stdin = stdin or self.stdin or os.devnull
        began = time.monotonic()
        ended = self.zygote.run(self.folder / "run", words, strike, stdin=stdin, range_bytes=self.job.range_bytes)
        shown = f"dsindex {shlex.join(words)}" + (f" < {stdin}" if stdin != os.devnull else "")
        if strike:
            shown += f"  # {strike.action} at {'read' if strike.reads else 'call'} {strike.at} {strike.place}"
        self.log.append(f"{shown}: {ended.code} after {time.monotonic() - began:.1f} s; {ended.struck or ''}")
        said = ended.errors.strip().splitlines()
        if ended.code not in {0, -9}:
            self.log += [f"    {line}" for line in (said[:80] if ended.code < 0 else said[-4:])]
        if ended.code == HANGS:
            raise Failed("hang")
        check_said(said if ended.code != -9 else [])
        if ended.code not in {0, 1, -9, 130, 143} or (ended.code and ended.code != -9 and not said):
            raise Failed(f"exit code {ended.code}")
        if "damaged since it was written" in ended.errors and not self.touched:
            raise Failed("damage is reported, and there was none")
        self.was_killed |= ended.code == -9
        if (ended.code == 0 or not self.was_killed) and f"{self.out}/y" not in " ".join(words):
            leftovers = [path for path in names_below(self.out) if path.endswith(".tmp") and path not in USERS]
            if leftovers:
                raise Failed(f"temporary file after exit {ended.code}: {kind_of(leftovers[0])}")
        if ended.code not in {0, -9} and not self.was_killed and not self.touched and self.job.command in REPLACING:
            self.check_tidied()
        return ended

    def check_tidied(self):
        """Check that a run which fails leaves only what the next one uses."""
        leftovers = [name for name in names_below(self.out) if name.endswith(".partial")]
        leftovers += [name for name in names_below(self.work_dir) if name.startswith("shards/")]
        if leftovers and not Journal(str(self.work_dir)).has_work:
            raise Failed(f"left over after a failure: {kind_of(leftovers[0])}")

    def run_options(self):
        """Return the options of a run that do not change what is made."""
        job, words = self.job, []
        if job.command in SHARDING:
            rng = random.Random(f"{job.seed} run {self.number if job.varies_shards else 0}")
            words += ["--shard-size", rng.choice(SHARD_SIZES), *(["--keep-shards"] if self.keeps else [])]
        if job.command not in ONCE:
            rng = random.Random(f"{job.seed} workers {self.number}")
            executor = job.executors[self.number % len(job.executors)]
            words += ["--workers", str(rng.randint(1, 3)), "--executor", executor]
        words += ["--work-dir", str(self.work)] if self.work else []
        return words + (["--replace"] if self.replaces and job.command in REPLACING else [])

    @property
    def work_dir(self):
        """The work folder, whether there is one or not."""
        return self.work or self.out / "x.build"

    # What happens.

    def let_happen(self, event):
        """Let an event happen; return whether nothing is left to do, since the command refuses to write again."""
        match event.kind:
            case "strike":
                return self.strike(event) and self.job.command in {"convert", "pack --merge"}
            case "damage":
                self.damage(event)
            case "other":
                self.run_other(event)
            case "move":
                self.move(event.what)
        return False

    def strike_of(self, event):
        """Return the strike of an event, at its share of the calls of an undisturbed run."""
        action, reads = event.what.split(" ")[0], event.what.endswith(" read")
        place = f"{self.folder}/" if action.startswith("E") else ""
        target = str(self.stdin or os.devnull)
        if reads:
            place = f"{self.folder}/{READ}"
        elif event.what.endswith(" partial"):  # a file that is complete, before its size is compared and it is renamed
            target = f"{self.out}::\\.(bin|pbin|idx|parquet|zst)\\.[0-9a-f]+\\.partial$"
            place = r"manifest\.json\.[0-9a-f]+\.partial"
            return Strike(at=0, action=action, place=place, target=target, seed=self.job.seed)
        elif event.is_publishing:
            place = f"{self.folder}/(out|first)/{PUBLISHED}"
        if event.what in DAMAGES:
            target = f"{self.work_dir}::/shards/.*(?<!\\.tmp)$"
        seed, lasts = self.job.seed, action in {"ENOSPC", "EDQUOT"}
        strike = Strike(action=action, reads=reads, lasts=lasts, place=place, target=target, seed=seed)
        num_calls = sum(strike.counts(*call.split(" ", 1)) for call in self.calls[reads])
        return replace(strike, at=min(int(event.share * num_calls), max(num_calls - 1, 0)))

    def strike(self, event):
        """Run the job with a strike; return whether it succeeded all the same."""
        strike = self.strike_of(event)
        self.touched += f" {event.what}" if strike.action in DAMAGES else ""
        ended = self.run(strike)
        shown = f"{event.what}{' while publishing' if event.is_publishing and not strike.reads else ''}"
        self.counts["Interruptions" if ended.struck is not None else "Interruptions not reached", shown] += 1
        if not any(happening.kind == "other" for happening in self.job.events) and "final name" not in self.touched:
            check_what_stands(snapshot(self.out), self.before_job, self.expected)
        if ended.code == 1 and not self.was_killed and self.job.command in ONCE:
            self.check_nothing_changed()
        self.check_one_plan(ended)
        if ended.struck is not None:
            check_end(strike, ended)
        return ended.code == 0

    def damage(self, event):
        """Damage one of the files that an interrupted run left: of the work folder, or not yet under a final name."""
        rng = random.Random(f"{self.job.seed} {event}")
        paths = [*paths_below(self.out), *(paths_below(self.work) if self.work else [])]
        paths = [path for path in paths if os.path.relpath(path, self.out) not in USERS]
        # One of each pair has to say that the folder is a work folder, or that the output is ours.
        for pair in (("journal", "work-folder.json"), ("final name", "commit")):
            for name, other_name in (pair, pair[::-1]):
                if name in self.touched:
                    paths = [path for path in paths if file_kind(path) != other_name]
        commits = b"".join(Path(path).read_bytes() for path in paths if path.endswith(".commit"))
        paths = [path for path in paths if re.search(LEFT, path) or f'"{os.path.basename(path)}"'.encode() in commits]
        done = damage_one(event.what, [path for path in paths if re.search(event.file, path)] or paths, rng)
        if done is None:
            self.counts["Damage between runs", "nothing was left to damage"] += 1
            return
        self.touched += f" {file_kind(done)}: {kind_of(done.replace(f'{self.folder}/', ''))}"
        self.log.append(f"# {done}")
        self.counts["Damage between runs", event.what] += 1
        self.counts["Files damaged between runs", file_kind(done)] += 1

    def run_other(self, event):
        """Run another job of the same output, perhaps until it is killed; the job then replaces what that one made."""
        replaced = self.replaces
        self.replaces = (replaced or event.replaces) and event.what != "without --replace"
        is_killed = event.share < 1 and event.what != "prefix"
        strike = Strike(at=int(event.share * len(self.calls[0]))) if is_killed else None
        with self.changed_input() if event.what == "changed input" else contextlib.nullcontext():
            stdin = os.devnull if event.what == "nothing piped" else None
            ended = self.run(strike, words=other_words(self.words, event.what), stdin=stdin)
        self.counts["Runs of another job", f"{event.what}{', replacing' if self.replaces else ''}"] += 1
        self.replaces = replaced
        if event.what == "prefix":
            for path in self.out.glob("y*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif event.what not in {"without --replace", "nothing piped"}:  # which may finish this job, and no other
            self.replaces |= ended.code != 1

    @contextlib.contextmanager
    def changed_input(self):
        """Let an input, or standard input, have other records while the block runs."""
        paths = [*sorted((self.folder / "in").rglob("*.jsonl")), *self.folder.glob("in.stdin")]
        data = (path := paths[-1]).read_bytes() if paths else b""
        lines = data.splitlines(keepends=True)
        if len(lines) < 2:
            yield
            return
        status = path.stat()
        path.write_bytes(b"".join(lines[1:] if self.job.seed % 2 else [lines[-1].rstrip(b"\n") + b"\n", *lines[:-1]]))
        yield
        path.write_bytes(data)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def move(self, target):
        """Move the output folder or the work folder."""
        if target == "output" and self.out.name == "first":
            self.log.append(f"# mv {self.out} {self.folder / 'out'}")
            self.out = self.out.rename(self.folder / "out")
            self.counts["Moves", "output"] += 1
        work = next(iter(self.out.glob("x*.build")), None)
        if target == "work" and self.work is None and work:
            (self.folder / "elsewhere").mkdir()
            self.work = work.rename(self.folder / "elsewhere" / "w.build")
            self.log.append(f"# mv {work} {self.work}")
            self.counts["Moves", "work folder"] += 1

    def finish(self):
        """Run the job, which must succeed; after damage it may fail once. No recorded shard is made again."""
        job = self.job
        is_plain = {"strike"} == {event.kind for event in job.events} and not job.varies_shards
        is_plain &= not any(event.what.split()[0] in DAMAGES for event in job.events)
        has_once = {piece.partition(" ")[0] for piece in job.inputs} <= {"plain", "tiny", "parquet", "arrow", *SUFFIXES}
        committed = committed_shards(self.work_dir) if is_plain and has_once else set()
        ended = self.run()
        if committed & set(ended.tokenized):
            raise Failed("a shard that was recorded is made again")
        if ended.code and any(event.kind == "damage" for event in job.events):
            self.counts["Failed once after damage of", file_kind(self.touched)] += 1
            ended = self.run()
        if ended.code:
            raise Failed(f"does not continue: {kind_of(' '.join(ended.errors.split())[-200:])}")
        if self.keeps:
            self.check_kept_shards()
            self.keeps = False
            if self.run().code:
                raise Failed("finished output is not accepted without --keep-shards")

    # What must hold.

    def check_nothing_changed(self):
        """Check that a command without a work folder leaves nothing if it fails."""
        files, expected = snapshot(self.out), self.before_job | self.expected
        leftovers = sorted(name for name in files if files[name] != expected.get(name))
        leftovers = [name for name in leftovers if not name.endswith(".progress.json")]
        if leftovers and not any(name.endswith(".commit") for name in leftovers):  # which the next run carries out
            raise Failed(f"left over after a failure: {kind_of(leftovers[0])}")

    def check_one_plan(self, ended):
        """Check that a run which makes shards has removed what a run of another plan assembled."""
        matches = [re.search(r"\.p?bin\.([0-9a-f]{16})\.partial$", name) for name in names_below(self.out)]
        if ended.tokenized and len({match[1] for match in matches if match}) > 1:
            raise Failed("what a run of another plan assembled stays")

    def check_kept_shards(self):
        """Check that a work folder has the shards of its journal and no other files."""
        if not self.work_dir.exists():
            return
        journal = Journal(str(self.work_dir))
        used = {file.name for result in journal.shards.values() for file in result.stored_files}
        shard_names = {name for name in names_below(self.work_dir) if name.startswith("shards/")}
        if shard_names - used:
            raise Failed(f"not a shard of the journal: {kind_of(min(shard_names - used))}")
        manifests = [json.loads(path.read_bytes()) for path in self.out.glob("x*.manifest.json")]
        num_shards = max(manifest["run"]["shards"] for manifest in manifests if "run" in manifest)
        # Another job that was killed may have removed shards, but no output, so that no shard is needed again.
        is_complete = not self.touched and not any(
            event.kind == "other" and event.share < 1 for event in self.job.events
        )
        if is_complete and len(journal.shards) < num_shards:
            raise Failed("two shards have one key in the journal")

    def compare(self):
        """Compare what stands at the end with what an undisturbed run leaves."""
        files, expected = snapshot(self.out), self.expected
        if missing := sorted(expected.keys() - files.keys()):
            raise Failed(f"missing: {kind_of(missing[0])}")
        if added := sorted(files.keys() - expected.keys()):
            raise Failed(f"left over: {kind_of(added[0])}")
        if other := [name for name in sorted(files) if files[name] != expected[name]]:
            raise Failed(f"other bytes: {kind_of(other[0])}")
        if (self.folder / "elsewhere").exists() and (leftovers := names_below(self.folder / "elsewhere")):
            raise Failed(f"left over in the work folder: {kind_of(leftovers[0])}")
        if snapshot(self.folder / "in") != self.inputs:
            raise Failed("inputs were touched")


def play(job, zygote, folder, counts):
    """Run a job undisturbed, and once more with its events; compare what is left.

    Raises:
        Failed: If something is not as it must be; its `trial` has the commands.
    """
    trial = Trial(job, zygote, folder, Counter())
    try:
        trial.prepare()
        trial.keeps = False
        ended = trial.run(Strike())
        if ended.code:  # such as for an empty file
            counts["Refused undisturbed", kind_of(ended.errors.splitlines()[-1])[-100:]] += 1
            return
        expected, reads = snapshot(trial.out), []
        if any(event.what.endswith(" read") for event in job.events):
            shutil.rmtree(trial.out)
            trial.prepare()
            reads = trial.run(Strike(reads=True)).calls
        for path in folder.iterdir():
            if path.name != "run":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        trial = Trial(job, zygote, folder, counts, expected=expected, calls=(ended.calls, reads))
        trial.out = folder / ("first" if any(event.what == "output" for event in job.events) else "out")
        trial.prepare()
        trial.before_job = snapshot(trial.out)
        if not any(trial.let_happen(event) for event in job.events):
            trial.move("output")
            trial.finish()
        trial.compare()
    except Failed as failed:
        failed.trial = trial  # type: ignore[attr-defined]
        raise


def fewer_inputs(words):
    """Return the words of a job without its last input, unless that is its only one."""
    begin = words.index("--input") + 1 if "--input" in words else len(words)
    end = next((number for number in range(begin, len(words)) if words[number].startswith("--")), len(words))
    return words[: end - 1] + words[end:] if end - begin > 1 else [*words]


def other_words(words, variant):
    """Return the words of another job of the same output."""
    match variant:
        case "--append-eod":
            return [word for word in words if word not in {"--append-eod", "--empty-documents", "eod"}]
        case "records" if "instruct" in words:
            return [*words, "--max-record-size", "100KiB"]
        case "records" if "--where" not in words and words[0] == "build":
            return [*words, "--where", ".title != null"]
        case "order":
            return [*words, "--shuffle-documents", "5"]
        case "fewer inputs":
            return fewer_inputs(words)
        case "prefix":
            return [re.sub(r"^OUT/x", "OUT/y", word) for word in words]
    return [*words]


def check_end(strike, ended):
    """Check how a run ended that a strike met."""
    if strike.action in {"kill", "tear"} and ended.code != -9:
        raise Failed(f"exit code {ended.code} after {strike.action}")
    if strike.reads and ended.code and re.search(r"Input/output error|Stale file handle", ended.errors):
        raise Failed("one error of a disk ends a run that reads")
    if strike.action in DAMAGES and "/shards/" in strike.target and ended.code:
        raise Failed(f"a damaged shard ends a run: {kind_of(ended.struck)}")
    if strike.action == "meet":
        check_said(ended.struck.splitlines())
        met = ended.struck.split("\n")[0]
        if met not in {"0", "1"} or (met == "0" and ended.code):  # both were let in
            raise Failed(f"another driver ends with {met}, and the first with {ended.code}: {ended.struck[:300]}")


def check_said(lines):
    """Check that a command's messages are sentences."""
    shown = [line for line in lines if re.search(r"Traceback|internal error|panicked|Error\b", line)]
    if shown:
        raise Failed(f"traceback: {shown[0][:80]}")


def check_what_stands(files, before, expected):
    """Check that what is complete to a reader is all from before the job, or all as it will be."""
    for match in filter(None, map(COMPLETING.fullmatch, files)):
        name, stem, end = match[0], match["stem"], match["end"]
        if re.search(r"\.build/|\.partial/", name):
            continue
        for source in (before, expected):
            paths = [f"{stem}.bin"] if end == ".idx" else [path for path in source if path.startswith(stem + end[0])]
            paths = [path for path in paths if path in source and not re.search(OTHERS, path)] if end != ".pbin" else []
            if all(files.get(path) == source.get(path) for path in (name, *paths)):
                break
        else:
            raise Failed(f"a mixture stands: {kind_of(name)}")


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
                with contextlib.suppress(ValueError):  # a damaged one
                    data = json.dumps(json.loads(data).get("content", {})).encode() if b'"run"' in data else data
            elif name.endswith("-dsindex.json"):
                data = b""
            files[os.path.relpath(path, folder)] = data
    return files


def names_below(root):
    """Return the names of all files below a folder, relative to it."""
    return sorted(os.path.relpath(os.path.join(top, name), root) for top, _, names in os.walk(root) for name in names)


def file_kind(path):
    """Return what kind of file a damaged one is."""
    kinds = ("journal", "work-folder.json", "owner.json", "-lock", "shard-size.txt", "stdin", "/shards/", "commit")
    return next((kind for kind in (*kinds, "partial", "tmp") if kind in path), "final name")


def kind_of(path):
    """Return a path with its numbers and digests left out, for the kind of a failure."""
    return re.sub(r"[0-9a-f]{16,}", "*", re.sub(r"\b\d+\b", "N", str(path)))
