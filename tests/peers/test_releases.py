"""Jobs of every release of Megatron-LM find caches that dsindex made from their flags alone.

`DSINDEX_MEGATRON_RELEASES=FOLDER pytest -o addopts= tests/peers/test_releases.py`, where FOLDER has a checkout or an
unpacked wheel of each release under its name: 0.16, 0.17, 0.18, 0.19 and main, with helpers_cpp compiled. 0.16 has to
be a checkout, as its wheel lacks megatron.training. A release that is not there is skipped. Wheels from 0.17 on are for
Python 3.12: name one with torch in DSINDEX_PEER_PYTHON, and releases run in it.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from dsindex.cli.main import main
from dsindex.datasets import BlendedDataset, GPTDataset
from dsindex.megatron.flags import FIM_CLASS, RELEASES
from tests.peers.three_datasets import NAMES

RELEASES_FOLDER = Path(os.environ.get("DSINDEX_MEGATRON_RELEASES", "/none"))
JOBS = int(os.environ.get("DSINDEX_PEER_JOBS", "150"))
PYTHON = os.environ.get("DSINDEX_PEER_PYTHON", sys.executable)
PROGRAM = Path(__file__).with_name("release_program.py")
SPLITS = ("train", "valid", "test")


class Release:
    """A process of a release, which answers jobs."""

    def __init__(self, name, log):
        self._log = log
        self._environment = {**os.environ, "PYTHONPATH": str(RELEASES_FOLDER / name)}
        self._start()

    def _start(self):
        with self._log.open("wb") as said:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": said}
            self.process = subprocess.Popen([PYTHON, str(PROGRAM)], env=self._environment, text=True, **pipes)

    def close(self):
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait(timeout=60)

    def ask(self, flags, folder):
        self.process.stdin.write(json.dumps({"flags": flags, "folder": str(folder)}) + "\n")
        self.process.stdin.flush()
        reply = self.process.stdout.readline()
        if not reply:  # some jobs end in C++
            code = self.process.wait(timeout=60)
            assert code < 0, self._log.read_text(errors="replace")[-3000:]
            self.close()
            self._start()
            return {"stops": f"the process ended with {code}"}
        return json.loads(reply)


@pytest.fixture(params=RELEASES)
def release(request):
    name = request.param
    if not (RELEASES_FOLDER / name / "megatron").is_dir():
        pytest.skip(f"there is no Megatron {name} in DSINDEX_MEGATRON_RELEASES")
    return name


@pytest.fixture
def process(release, tmp_path):
    started = Release(release, tmp_path / "log")
    yield started
    started.close()


def draw_tokenizer(rng, release):
    kinds = [
        ["HuggingFaceTokenizer", "--tokenizer-model", "größe/x"],
        ["Llama2Tokenizer", "--tokenizer-model", "x.model"],
        ["TikTokenizer", "--tokenizer-model", "r.json", "--tiktoken-pattern", "v2", "--vocab-size", "1100"],
        ["GPT2BPETokenizer", "--vocab-file", "v.json", "--merge-file", "m.txt"],
        ["NullTokenizer", "--vocab-size", "100"],
    ]
    flags = ["--tokenizer-type", *rng.choice(kinds)]
    if rng.random() < 0.3:
        flags += ["--tokenizer-special-tokens", "<a>", "it's"]
    if rng.random() < 0.3:
        flags.append("--trust-remote-code")
    if release != "0.16" and rng.random() < 0.3:
        flags.append("--tokenizer-hf-no-use-fast")
    if release in {"0.18", "0.19", "main"} and rng.random() < 0.3:
        flags += ["--chat-template", "{{ x }}"]
    if release == "main" and rng.random() < 0.3:
        flags.append("--use-gigatoken")
    return flags


def draw_paths(rng, folder):
    def words():
        names = rng.sample(NAMES, rng.randrange(1, 4))
        return [w for name in names for w in (str(rng.choice([0.3, 1, 7])), name)] if rng.random() < 0.7 else names

    kind = rng.choice(["together", "together", "apart", "file", "json"])
    split = ["--split", rng.choice(["80,10,10", "969, 30, 1", "6,2,2", "98,2"])]
    if kind == "together":
        return ["--data-path", *words(), *(split if rng.random() < 0.8 else [])]
    if kind == "file":
        (folder / "words").write_text(" ".join(words()))
        return ["--data-args-path", "words", *split]
    if kind == "json":
        content = {"train": words(), "valid": rng.choice([words(), " ".join(words()), None]), "test": None}
        (folder / "splits").write_text(json.dumps(content))
        return ["--per-split-data-args-path", "splits"]
    apart = ["--train-data-path", *words(), "--valid-data-path", *words()]
    return [*apart, *(["--multiple-validation-sets"] if rng.random() < 0.4 else [])]


def draw_length(rng, release):
    is_new = release in {"0.18", "0.19", "main"}
    by_samples = rng.random() < 0.5
    flags = ["--train-iters", str(rng.randrange(9, 99))]
    if by_samples:
        flags = ["--train-samples", str(rng.randrange(50, 400))]
    flags += ["--eval-interval", str(rng.choice([3, 10, 50])), "--eval-iters", str(rng.choice([1, 2]))]
    if is_new and by_samples and rng.random() < 0.2:
        flags += ["--step-batch-size-schedule", "0:1 1500:2 3K:3"]
    else:
        flags += ["--global-batch-size", str(rng.choice([2, 4]))]
        if not is_new and by_samples and rng.random() < 0.4:
            flags += ["--rampup-batch-size", "1", "1", "60"]
        elif by_samples and rng.random() < 0.3:
            flags += ["--phase-transition-iterations", "9,20"]
    if is_new:
        flags += rng.choice([[], [], ["--start-eval-at-iter", "12"], ["--eval-global-batch-size", "3"]])
    return flags + rng.choice([[], [], [], ["--full-validation"], ["--skip-train"]])


def draw_job(rng, release, folder):
    flags = [*draw_paths(rng, folder), *draw_length(rng, release), *draw_tokenizer(rng, release)]
    flags += ["--seq-length", str(rng.choice([16, 30])), "--seed", str(rng.randrange(99))]
    return [*flags, *(["--fim-data"] if rng.random() < 0.1 else [])]


def samples_of(folder, split):
    """Return the digests of the first samples in each topmost cache of a split, as our datasets read them."""
    descriptions = list(folder.glob(f"*-BlendedDataset-{split}-description.txt"))
    opened = [BlendedDataset.open_cache(path) for path in descriptions]
    opened += map(GPTDataset.open_cache, folder.glob(f"*-GPTDataset-{split}-description.txt"))
    numbers = [[dataset[n]["tokens"].tobytes() for n in range(min(8, len(dataset)))] for dataset in opened]
    return [
        [len(dataset), [hashlib.md5(sample, usedforsecurity=False).hexdigest() for sample in samples]]
        for dataset, samples in zip(opened, numbers, strict=True)
    ]


def state(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_jobs_find_caches_made_from_flags_alone(release, process, data, tmp_path, monkeypatch, capsys):
    """All caches are hits: nothing is written, and the samples are those that our readers give."""
    rng = random.Random(f"{release} {os.environ.get('DSINDEX_PEER_SEED', '')}")
    monkeypatch.chdir(data)
    compared = refused = drawn = 0
    while compared < JOBS:
        drawn += 1
        assert drawn < 4 * JOBS
        cache = tmp_path / str(drawn)
        cache.mkdir()
        flags = [*draw_job(rng, release, data), "--data-cache-path", str(cache)]
        ours = ["--executor", "local", "--megatron-release", release]
        if "--step-batch-size-schedule" in flags:
            ours += ["--global-batch-size", "1"]  # what the job prints: one micro-batch on one rank
        code = main(["index", *ours, "--", "torchrun", "pretrain_gpt.py", *flags])
        shown = capsys.readouterr().err
        before = state(cache)
        if code != 0 and "Megatron would loop forever" in shown:
            refused += 1
            continue
        theirs = process.ask(flags, data)
        if code != 0:
            # What we refuse, the job cannot do: it stops, or it runs out of data.
            assert "stops" in theirs or "run out of data" in shown or "a weighted blend needs" in shown, (flags, shown)
            refused += 1
            continue
        assert "stops" not in theirs, (flags, theirs)
        assert state(cache) == before, (flags, theirs["sizes"], sorted(state(cache).keys() - before.keys()))
        described = [json.loads(path.read_text()) for path in cache.glob("*-description.txt")]
        blocks = [description.get("tokenizer") or description["datasets"][0]["tokenizer"] for description in described]
        assert all(json.dumps(block) == json.dumps(theirs["identifiers"]) for block in blocks)
        if f"-{FIM_CLASS}-" not in " ".join(before):
            for phase in theirs["splits"]:
                for split, samples in zip(SPLITS, phase, strict=True):
                    several = samples if samples and isinstance(samples[0], list) else [samples]
                    for sample_digests in filter(None, several):
                        assert sample_digests in samples_of(cache, split), (flags, split)
        compared += 1
    assert refused < drawn / 2


def test_planned_caches_are_read_as_planned(release, tmp_path):
    """What test_indices.py and test_continuing.py say of the installed megatron-core holds for each release."""
    sampler = RELEASES_FOLDER / ("main" if release == "0.16" else release)  # where it is beside the package
    words = [PYTHON, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/t"]
    words += ["tests/peers/test_indices.py", "tests/peers/test_continuing.py", "-k", "packed or continuing"]
    environment = {**os.environ, "PYTHONPATH": str(RELEASES_FOLDER / release), "MEGATRON_LM": str(sampler)}
    done = subprocess.run(words, env=environment, cwd=PROGRAM.parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
