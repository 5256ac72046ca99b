"""The benchmarks: whole commands of dsindex and of what a user would take instead, in turn, in one run.

    make bench                                    what needs no other program; a few minutes
    make bench ARGS="--only self --against main"  a build by this checkout and by another commit, by CPU time
    make bench ARGS="--megatron ../Megatron-LM --megatron-python ../megatron-venv/bin/python --megabytes 1200"

A program that is not there is named in the table. Outputs are compared; a difference is an error. Exit code: 1 if a
program failed or outputs differ.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.measure import Row, Run, RunError, alternate, digest_files, run_program, show_row
from tests.benchmarks.texts import train_tokenizer, write_chats, write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).parents[2]
CHAT_TEMPLATE = ROOT / "dsindex" / "chat" / "templates" / "qwen2.5.jinja"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all groups of one run share."""

    folder: Path
    tokenizer: Path
    text: Path
    megatron: Path | None
    """A checkout of Megatron-LM."""
    megatron_python: str
    """Of an environment with torch, megatron-core and transformers."""
    against: str | None
    rounds: int
    workers: int

    def fresh(self, name: str) -> Path:
        """Return an empty folder."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def dsindex(self, *words: object, tree: Path = ROOT) -> Run:
        """Run a command of ours, or of another checkout."""
        environment = {"PYTHONPATH": str(tree), "PYTHONWARNINGS": "ignore"}
        return run_program([sys.executable, "-m", "dsindex", *words], cwd=self.folder, env=environment)

    def build(self, name: str, *words: object, tree: Path = ROOT) -> Run:
        """Build the text into a folder, and digest the dataset."""
        out = self.fresh(name) / "out"
        options = ["--input", self.text, "--output-prefix", out, "--workers", self.workers]
        run = self.dsindex("build", *options, *self.tokenizing(), *words, tree=tree)
        return replace(run, digest=digest_dataset(f"{out}_text_document"))

    def tokenizing(self) -> list[object]:
        """Return the options of the tokenizer, which are Megatron's too."""
        return ["--tokenizer-model", self.tokenizer, "--append-eod"]

    def megatron_tool(self, name: str, *words: object) -> Run:
        """Run a program of Megatron-LM's tools."""
        path = os.pathsep.join([os.path.dirname(self.megatron_python), os.environ["PATH"]])
        environment = {"PYTHONPATH": str(self.megatron), "PATH": path}
        environment |= {"TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
        command = [self.megatron_python, f"{self.megatron}/tools/{name}", *words]
        return run_program(command, cwd=self.folder, env=environment)

    @property
    def no_megatron(self) -> str:
        """The note of a comparison with Megatron-LM if there is no checkout, else nothing."""
        return "" if self.megatron else "name a checkout with --megatron"

    def compare(self, row: Row, ours: Callable[[], Run], other: Callable[[], Run]) -> Row:
        """Return the row with the runs of both programs; a row with a note is not measured."""
        if row.note:
            return row
        our_runs, other_runs = alternate(ours, other, self.rounds)
        return replace(row, ours=our_runs, other=other_runs)


def digest_dataset(prefix: str) -> str:
    """Return one digest of a `.bin` and its `.idx`."""
    return digest_files(Path(f"{prefix}.{suffix}") for suffix in ("bin", "idx"))


def measure_self(setting: Setting) -> Iterable[Row]:
    """Compare a build with that of an earlier commit, by CPU time."""
    commit = setting.against
    row = Row(group="self", work="build", against=commit or "an earlier commit", by_cpu=True)
    if commit is None:
        yield replace(row, note="name a commit with --against")
        return
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    tree = setting.fresh("earlier")
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(tree, filter="data")
    yield setting.compare(row, lambda: setting.build("ours"), lambda: setting.build("other", tree=tree))


def measure_build(setting: Setting) -> Iterable[Row]:
    """Compare a build with Megatron's two programs, whose bytes are ours."""
    work = f"build of {setting.text.stat().st_size / 1e6:,.0f} MB"
    for program, extra in {
        "preprocess_data_fast.py": ["--use-gigatoken"],
        "preprocess_data.py": ["--workers", setting.workers],
    }.items():
        row = Row(group="build", work=work, against=program, note=setting.no_megatron)

        def preprocess(program: str = program, extra: list[object] = extra) -> Run:
            out = setting.fresh("other") / "out"
            words = ["--input", setting.text, "--output-prefix", out, "--tokenizer-type", "HuggingFaceTokenizer"]
            run = setting.megatron_tool(program, *words, *setting.tokenizing(), *extra)
            return replace(run, digest=digest_dataset(f"{out}_text_document"))

        yield setting.compare(row, lambda: setting.build("ours"), preprocess)


def measure_ray(setting: Setting) -> Iterable[Row]:
    """Compare a build on a running cluster of one node with a local one."""
    import ray

    row = Row(group="ray", work="build on a running cluster", against="the same locally")
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        started = ray.init(address="local", num_cpus=setting.workers, include_dashboard=False, _temp_dir=folder)
        words = ["--address", started.address_info["gcs_address"]]
        try:
            yield setting.compare(row, lambda: setting.build("ours", *words), lambda: setting.build("other"))
        finally:
            ray.shutdown()


def measure_merge(setting: Setting) -> Iterable[Row]:
    """Compare a merge of 64 datasets with merge_datasets.py, and with a copy of the files."""
    setting.build("part")
    part = setting.folder / "part"
    parts = setting.fresh("parts")
    for number in range(64):
        for suffix in ("bin", "idx"):
            os.link(part / f"out_text_document.{suffix}", parts / f"part-{number:02d}.{suffix}")
    prefixes = sorted(str(path.with_suffix("")) for path in parts.glob("*.bin"))
    work = f"merge of 64 datasets, {64 * (parts / 'part-00.bin').stat().st_size / 1e9:.2f} GB"

    def merge() -> Run:
        out = setting.fresh("ours") / "out"
        run = setting.dsindex("merge", "--input", *prefixes, "--output-prefix", out, "--workers", setting.workers)
        return replace(run, digest=digest_dataset(str(out)))

    def merge_by_megatron() -> Run:
        out = setting.fresh("other") / "out"
        run = setting.megatron_tool("merge_datasets.py", "--input", parts, "--output-prefix", out)
        return replace(run, digest=digest_dataset(str(out)))

    row = Row(group="merge", work=work, against="merge_datasets.py", note=setting.no_megatron)
    yield setting.compare(row, merge, merge_by_megatron)
    copy = ["sh", "-c", 'cat "$0"/*.bin > "$1" && sync "$1"', parts, setting.fresh("other") / "out.bin"]
    row = Row(group="merge", work=work, against="cat and sync")
    yield setting.compare(row, lambda: replace(merge(), digest=""), lambda: run_program(copy, cwd=setting.folder))


def measure_caches(setting: Setting) -> Iterable[Row]:
    """Compare the caches of a training command with those that Megatron's prepare_cache.py makes of it."""
    row = Row(group="caches", work="index caches of a training command, 8 epochs", against="prepare_cache.py")
    if setting.megatron is None or not (setting.megatron / "tools/prepare_cache.py").is_file():
        yield replace(row, note="name a checkout of 0.18 or later with --megatron")
        return
    setting.build("part")
    prefix = setting.folder / "part" / "out_text_document"
    tokens = Path(f"{prefix}.bin").stat().st_size // 2
    steps = max(1, 8 * tokens // (512 * 8))
    job = (
        "--num-layers 1 --hidden-size 64 --num-attention-heads 1 --max-position-embeddings 512 --lr 1e-4"
        f" --seq-length 512 --micro-batch-size 1 --global-batch-size 8 --prepare-cache-world-size 8 --split 98,1,1"
        f" --train-iters {steps} --eval-interval {steps} --eval-iters 1 --tokenizer-type HuggingFaceTokenizer"
    ).split()
    words = [*job, "--tokenizer-model", setting.tokenizer, "--data-path", prefix]
    words += ["--data-cache-path", setting.folder / "caches"]
    release = _release_of(setting.megatron)

    def prepare(run: Callable[[], Run]) -> Run:
        folder = setting.fresh("caches")
        done = run()
        files = sorted(path for path in folder.iterdir() if not path.name.endswith("-dsindex.json"))
        return replace(done, digest=digest_files(files))

    command = ["index", "--megatron-release", release, "--", "python", "prepare_cache.py", *words]
    other = partial(setting.megatron_tool, "prepare_cache.py", *words)
    yield setting.compare(row, lambda: prepare(partial(setting.dsindex, *command)), lambda: prepare(other))


def _release_of(megatron: Path) -> str:
    text = (megatron / "megatron/core/package_info.py").read_text(encoding="utf-8")
    release = ".".join(re.findall(r"^(?:MAJOR|MINOR) = (\d+)", text, re.MULTILINE))
    return release if release in {"0.16", "0.17", "0.18", "0.19"} else "main"


def measure_reading(setting: Setting) -> Iterable[Row]:
    """Compare reading documents and samples with megatron-core's classes, by CPU time in one process."""
    row = Row(group="reading", work="ds[i], samples", against="megatron-core", note=setting.no_megatron)
    if row.note:
        yield row
        return
    setting.build("part")
    prefix = setting.folder / "part" / "out_text_document"
    cache = setting.fresh("caches")
    words = ["--seq-length", 512, "--split", 1, "--epochs", 1, "--data-cache-path", cache]
    setting.dsindex("index", "--data-path", prefix, *words)
    [description] = cache.glob("*-train-description.txt")
    command = [setting.megatron_python, "-m", "tests.benchmarks.reading", prefix, description]
    environment = {"PYTHONPATH": f"{ROOT}:{setting.megatron}"}
    run_program(command, cwd=setting.folder, env=environment)
    pairs_by_work = json.loads((setting.folder / "program.log").read_text().splitlines()[-1])
    for work, pairs in pairs_by_work.items():
        runs = [[Run(seconds=seconds, cpu_seconds=seconds, peak_bytes=0) for seconds in pair] for pair in pairs]
        ours, other = ([pair[side] for pair in runs] for side in (0, 1))
        yield replace(row, work=work, ours=ours, other=other)


def measure_instruct(setting: Setting) -> Iterable[Row]:
    """Compare chats to tokens and masks with `apply_chat_template` in `datasets.map`."""
    chats = write_chats(setting.folder / "chats.jsonl", setting.text.stat().st_size // 4)
    work = f"{chats.stat().st_size / 1e6:,.0f} MB of chats"
    config = setting.folder / "chat.yaml"
    config.write_text(f"chat_template_file: {CHAT_TEMPLATE}\ncontrol_tokens: allow\n", encoding="utf-8")

    def ours() -> Run:
        out = setting.fresh("ours") / "out"
        words = ["--input", chats, "--tokenizer-model", setting.tokenizer, "--workers", setting.workers]
        return setting.dsindex("instruct", config, *words, "--output-prefix", out)

    def other() -> Run:
        out = setting.fresh("other")
        program = Path(__file__).with_name("instruct_peer.py")
        words = [chats, out, setting.tokenizer / "tokenizer.json", CHAT_TEMPLATE, setting.workers]
        return run_program([setting.megatron_python, program, *words], cwd=setting.folder)

    has_peer = [setting.megatron_python, "-c", "import datasets, transformers"]
    is_missing = subprocess.run(has_peer, check=False, capture_output=True).returncode != 0
    note = "no transformers and datasets in --megatron-python" if is_missing else ""
    row = Row(group="instruct", work=work, against="apply_chat_template, map", note=note)
    yield setting.compare(row, ours, other)


def measure_scale(setting: Setting) -> Iterable[Row]:
    """Simulate the driver of a large build; there is nothing to compare it with but an earlier table."""
    command = [sys.executable, "-m", "tests.benchmarks.scale", "--executor", "local", "processes", "ray"]
    run_program(command, cwd=setting.folder, env={"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"})
    print((setting.folder / "program.log").read_text())  # noqa: T201 - the report
    return ()


GROUPS: dict[str, Callable[[Setting], Iterable[Row]]] = {
    "self": measure_self,
    "build": measure_build,
    "ray": measure_ray,
    "merge": measure_merge,
    "caches": measure_caches,
    "reading": measure_reading,
    "instruct": measure_instruct,
    "scale": measure_scale,
}


def main() -> int:
    """Measure, print a line for each comparison, and write results.json."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.benchmarks", description=__doc__, formatter_class=raw)
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS), metavar="GROUP")
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--megabytes", type=float, default=64, help="input of a build (default: %(default)s)")
    parser.add_argument("--input", type=Path, help="JSONL to measure with, in place of drawn words")
    parser.add_argument("--tokenizer", type=Path, help="default: a BPE of GPT-2's size, trained on drawn words")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--megatron", type=Path, help="a checkout of Megatron-LM")
    parser.add_argument("--megatron-python", default=sys.executable, metavar="PYTHON", help="Python that can run it")
    parser.add_argument("--output", type=Path, default=Path("bench-output/results.json"))
    options = parser.parse_args()
    rows: list[Row] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="dsindex-bench-") as name:
        folder = Path(name)
        text = options.input or write_text(folder / "text.jsonl", int(options.megabytes * 1e6))
        tokenizer = options.tokenizer or train_tokenizer(folder / "tokenizer")
        paths = {"folder": folder, "tokenizer": tokenizer.resolve(), "text": text.resolve()}
        paths["megatron"] = options.megatron and options.megatron.resolve()
        names = ("megatron_python", "against", "rounds", "workers")
        setting = Setting(**paths, **{name: getattr(options, name) for name in names})
        for group in options.only:
            try:
                for row in GROUPS[group](setting):
                    rows.append(row)
                    print(show_row(row), flush=True)  # noqa: T201 - the report
            except RunError as error:
                failed = True
                print(f"{group}: {error}", file=sys.stderr)  # noqa: T201 - the report
    options.output.parent.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0))
    machine = {"machine": platform.machine(), "cores": cores, "python": platform.python_version()}
    measured = [asdict(row) | {"ratio": statistics.median(row.ratios) if row.ours else None} for row in rows]
    options.output.write_text(json.dumps({"machine": machine, "rows": measured}, indent=2) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
