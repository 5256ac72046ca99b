"""The benchmarks: ours beside the peers in one run, alternating, whole processes with all their children.

    make bench                                  a short form, about three minutes
    make bench ARGS="--full"                    at the sizes of the targets; an hour and 40 GB of disk
    make bench ARGS="--only self --against main" a build by this checkout and by another commit, by CPU time
    make bench ARGS="--only build --megatron ../Megatron-LM --megatron-python ../megatron-venv/bin/python"

A peer that is not there is named in the table and left out. Results: a table, results.json, and a picture per group
(with the extra `bench`). Every build's output is compared, with the peer's too where that is the reference.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dsindex.demo.run import BENCHMARKS_MARKER, own_folder, train_demo_tokenizer
from dsindex.errors import OutputError
from tests.benchmarks.builds import (
    measure_build,
    measure_encoding,
    measure_growth,
    measure_ray,
    measure_start,
    measure_warm_ray,
)
from tests.benchmarks.caches import measure_caches
from tests.benchmarks.containers import measure_containers
from tests.benchmarks.cores import measure_cores
from tests.benchmarks.earlier import measure_against_earlier
from tests.benchmarks.instruct import measure_instruct
from tests.benchmarks.loading import measure_loading
from tests.benchmarks.merges import measure_many_documents, measure_many_shards, measure_merge
from tests.benchmarks.objects import measure_hub, measure_objects
from tests.benchmarks.packing import measure_packing
from tests.benchmarks.plans import measure_cluster, measure_planning
from tests.benchmarks.processes import ROOT, RunError, measure
from tests.benchmarks.report import describe_machine, draw, make_table, write_json
from tests.benchmarks.rows import Curve, Row
from tests.benchmarks.setting import Setting, has_module
from tests.benchmarks.texts import write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Measured = list[Row] | tuple[list[Row], list[Curve]]

TRAINING_BYTES = 3_000_000
GPT2_VOCABULARY = 50_257


def measure_against_megatron_core(setting: Setting, module: str) -> list[Row]:
    """Run a benchmark that needs megatron-core in one process with ours, in the environment that has it."""
    if not has_module(setting.peers_python, "megatron.core"):
        note = "not measured: name an environment with megatron-core with --peers-python"
        return [Row(group=module, name=f"all of {module}", against="megatron-core", note=note)]
    options = [module, "--scale", str(setting.scale), *(["--full"] if setting.full else [])]
    run = measure(
        [setting.peers_python, "-m", "tests.benchmarks.core", *options],
        cwd=ROOT,
        env={"PYTHONWARNINGS": "ignore", "CUDA_VISIBLE_DEVICES": ""},
    )
    found = json.loads(run.output.splitlines()[-1])
    return [Row.from_json(figures) for figures in found]


GROUPS: dict[str, tuple[Callable[[Setting], Measured], ...]] = {
    "self": (measure_against_earlier,),
    "start": (measure_start,),
    "build": (measure_build,),
    "encoding": (measure_encoding,),
    "containers": (measure_containers,),
    "ray": (measure_ray, measure_warm_ray),
    "objects": (measure_objects, measure_hub),
    "loading": (measure_loading,),
    "growth": (measure_growth,),
    "cores": (measure_cores,),
    "merge": (measure_merge,),
    "packing": (measure_packing,),
    "instruct": (measure_instruct,),
    "indices": (lambda setting: measure_against_megatron_core(setting, "indices"),),
    "caches": (measure_caches,),
    "reading": (lambda setting: measure_against_megatron_core(setting, "reading"),),
    "scale": (measure_planning, measure_cluster, measure_many_shards, measure_many_documents),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if something failed or outputs differ. A missed target is no failure."""
    options = _parse(arguments)
    try:
        own_folder(str(options.output), BENCHMARKS_MARKER)
    except OutputError as error:
        sys.exit(str(error))
    machine = describe_machine()
    rows: list[Row] = []
    curves: list[Curve] = []
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=options.temporary))
    console = Console(stderr=True)
    failed = False
    try:
        setting = _make_setting(options, folder)
        for group in options.only or GROUPS:
            for measure_rows in GROUPS[group]:
                console.print(f"measuring: {group} …", style="dim")
                try:
                    found = measure_rows(setting)
                except RunError as error:
                    console.print(f"{group}: {error}", style="red", highlight=False, markup=False)
                    rows.append(Row(group=group, name=group, note=f"failed: {str(error).splitlines()[0]}"))
                    failed = True
                    continue
                rows += found if isinstance(found, list) else found[0]
                curves += [] if isinstance(found, list) else found[1]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    machine["load_after"] = describe_machine()["load"]
    write_json(options.output / "results.json", rows, curves, machine, full=options.full, rounds=setting.rounds)
    pictures = draw(options.output, rows, curves, machine)
    Console(width=None if sys.stdout.isatty() else 200).print(make_table(rows, machine))
    shown = f"{len(pictures)} pictures" if pictures else "no pictures (install the extra `bench`)"
    console.print(
        f"{options.output}: results.json, {shown}; load {machine['load']} before, {machine['load_after']} after"
    )
    return 1 if failed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="the sizes of the targets")
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), metavar="GROUP", help=f"some of: {' '.join(GROUPS)}")
    parser.add_argument("--rounds", type=int, help="default: 2, with --full 3")
    parser.add_argument("--megabytes", type=float, help="input of a build (default: 60, with --full 1200)")
    parser.add_argument("--scale", type=float, default=1.0, help="make all other sizes smaller")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--against", metavar="COMMIT", help="of `--only self` (default: the last release tag)")
    parser.add_argument("--corpus", type=_file, help="JSONL to measure with instead of drawn words")
    parser.add_argument("--tokenizer", type=_folder, help="default: a BPE of GPT-2's size, trained on the drawn words")
    parser.add_argument("--megatron", type=_folder, metavar="PATH", help="a checkout of Megatron-LM")
    parser.add_argument("--megatron-python", default=sys.executable, metavar="PY", help="Python that can run its tools")
    parser.add_argument("--peers-python", default=sys.executable, metavar="PY", help="Python that has megatron-core")
    parser.add_argument("--datatrove-python", default=sys.executable, metavar="PY", help="Python that has datatrove")
    parser.add_argument("--modalities-python", default=sys.executable, metavar="PY", help="Python that has modalities")
    parser.add_argument("--transformers-python", default=sys.executable, metavar="PY", help="the same for transformers")
    parser.add_argument("--bridge", type=_folder, metavar="PATH", help="a checkout of Megatron-Bridge")
    parser.add_argument("--temporary", type=_folder, help="where inputs and outputs go (default: the system's folder)")
    parser.add_argument("--output", type=Path, default=Path("bench-output"), help="default: bench-output")
    return parser.parse_args(arguments)


def _folder(name: str) -> Path:
    return _existing(Path(name), "a folder", Path.is_dir)


def _file(name: str) -> Path:
    return _existing(Path(name), "a file", Path.is_file)


def _existing(path: Path, what: str, is_there: Callable[[Path], bool]) -> Path:
    if not is_there(path):
        raise argparse.ArgumentTypeError(f"expected {what} that is there, got {path}")
    return path


def _make_setting(options: argparse.Namespace, folder: Path) -> Setting:
    tokenizer = options.tokenizer
    if tokenizer is None:
        sample = write_text(folder / "sample.jsonl", TRAINING_BYTES, seed=0, corpus=options.corpus)
        tokenizer = train_demo_tokenizer([sample], folder / "tokenizer", vocabulary_size=GPT2_VOCABULARY)
    return Setting(
        folder=folder.resolve(),
        tokenizer=tokenizer.resolve(),
        corpus=options.corpus,
        megatron=None if options.megatron is None else options.megatron.resolve(),
        megatron_python=options.megatron_python,
        peers_python=options.peers_python,
        datatrove_python=options.datatrove_python,
        modalities_python=options.modalities_python,
        transformers_python=options.transformers_python,
        bridge=None if options.bridge is None else options.bridge.resolve(),
        full=options.full,
        rounds=options.rounds or (3 if options.full else 2),
        megabytes=options.megabytes or (1200 if options.full else 60),
        scale=options.scale,
        workers=options.workers,
        against=options.against,
    )


if __name__ == "__main__":
    sys.exit(main())
