"""A build by this checkout beside one by an earlier commit, by CPU time: a slow-down is seen before it lands."""

import subprocess
import sys
import tarfile
from dataclasses import replace
from io import BytesIO

from tests.benchmarks.processes import ROOT, RunError, alternate, measure
from tests.benchmarks.rows import Row, absent
from tests.benchmarks.setting import Setting, check_same, digest_dataset

LEAST_ROUNDS = 5
TARGET = 0.95
"""Less is a slow-down of more than 5 %."""


def measure_against_earlier(setting: Setting) -> list[Row]:
    """Alternate builds of the same text by both trees, after one of each that is not counted."""
    commit, name = setting.against, "build, CPU time"
    try:
        commit = commit or _git("describe", "--tags", "--abbrev=0").decode().strip()
        archive = _git("archive", commit)
    except subprocess.CalledProcessError:
        remedy = f"there is no commit {commit}" if commit else "there is no release tag: name a commit with --against"
        return [absent("self", name, commit or "the last release", remedy)]
    tree = setting.fresh("earlier")
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(tree, filter="data")
    if not (tree / "dsindex/__main__.py").exists():
        raise RunError(f"{commit}: expected a commit with `python -m dsindex`, got an older one")
    source = setting.text("build", setting.size(setting.megabytes * 1e6, setting.megabytes * 1e6))

    def build_earlier(_):
        output = setting.fresh("peer")
        command = ["build", "--input", source, "--output-prefix", output / "out", "--append-eod"]
        command += ["--tokenizer-model", setting.tokenizer, "--workers", setting.workers]
        run = measure([sys.executable, "-m", "dsindex", *map(str, command)], cwd=tree, env={"PYTHONWARNINGS": "ignore"})
        return replace(run, digest=digest_dataset(output / "out_text_document"))

    rounds = max(LEAST_ROUNDS, setting.rounds) + 1
    runs = alternate({"ours": lambda _: setting.build(source), "peer": build_earlier}, rounds)
    ours, peer = runs["ours"][1:], runs["peer"][1:]
    check_same(name, [*ours, *peer])
    return [
        Row(
            group="self",
            name=name,
            against=commit,
            ours=tuple(run.cpu_seconds for run in ours),
            peer=tuple(run.cpu_seconds for run in peer),
            ratios=tuple(theirs.cpu_seconds / mine.cpu_seconds for mine, theirs in zip(ours, peer, strict=True)),
            target=TARGET,
        )
    ]


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout
