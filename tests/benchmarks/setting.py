"""What all benchmarks of one run share: sizes, where things lie, and how ours and the peers are called."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dsindex.store.reading import digest_file
from tests.benchmarks.processes import ROOT, Run, RunError, measure
from tests.benchmarks.texts import write_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One run of the harness."""

    folder: Path
    """For inputs and outputs; emptied at the end."""
    tokenizer: Path
    corpus: Path | None = None
    megatron: Path | None = None
    """A checkout of Megatron-LM."""
    megatron_python: str = sys.executable
    """Of an environment with torch, in which the checkout runs."""
    peers_python: str = sys.executable
    """Of an environment with megatron-core and what dsindex needs."""
    datatrove_python: str = sys.executable
    modalities_python: str = sys.executable
    transformers_python: str = sys.executable
    """Of an environment with transformers and datasets."""
    bridge: Path | None = None
    """A checkout of Megatron-Bridge."""
    full: bool = False
    rounds: int = 2
    megabytes: float = 60
    """Input of the builds."""
    scale: float = 1.0
    """Makes every size that --full or the short form has smaller: for the test of the harness."""
    workers: int = 2
    against: str | None = None
    """An earlier commit of ours; None for the last release tag."""

    def size(self, short: float, full: float) -> int:
        """Return a size of this run: bytes, files, documents, as the caller counts."""
        return max(1, int((full if self.full else short) * self.scale))

    def text(self, name: str, size_bytes: int, *, seed: int = 1) -> Path:
        """Return an input of a size, made on first use."""
        path = self.folder / f"{name}.jsonl"
        return path if path.exists() else write_text(path, size_bytes, seed=seed, corpus=self.corpus)

    def fresh(self, name: str) -> Path:
        """Return an empty folder."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def drop(self, *paths: Path) -> None:
        """Remove what is not wanted any more, to make room."""
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    # Ours

    def build(
        self, source: Path | str, *options: str, engine: str = "auto", env: Mapping[str, str] | None = None
    ) -> Run:
        """Measure a whole `dsindex build`, with the digest of what it wrote."""
        output = self.fresh("ours")
        command = ["build", "--input", str(source), "--output-prefix", str(output / "out"), *self._tokenizing()]
        run = self.dsindex(*command, "--engine", engine, "--workers", str(self.workers), *options, env=env)
        return replace(run, digest=digest_dataset(output / "out_text_document"))

    def dsindex(self, *arguments: str, env: Mapping[str, str] | None = None) -> Run:
        """Measure a command of ours."""
        variables = {"PYTHONWARNINGS": "ignore", **(env or {})}
        return measure([sys.executable, "-m", "dsindex", *arguments], cwd=ROOT, env=variables)

    def _tokenizing(self) -> list[str]:
        return ["--tokenizer-model", str(self.tokenizer), "--append-eod"]

    # Peers

    def megatron_tool(self, program: str, *arguments: str) -> Run:
        """Measure a program of Megatron-LM's tools."""
        if self.megatron is None:
            msg = "no checkout of Megatron-LM was given"
            raise RunError(msg)
        env = {
            "PYTHONPATH": str(self.megatron),  # the tools would prefer an installed megatron-core to their checkout
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            # Megatron compiles its C++ with the python3 that it finds.
            "PATH": os.pathsep.join(filter(None, [os.path.dirname(self.megatron_python), os.environ.get("PATH")])),
        }
        tool = str(self.megatron / "tools" / program)
        return measure([self.megatron_python, tool, *arguments], env=env, cwd=self.folder)

    def preprocess(self, source: Path, *, fast: bool) -> Run:
        """Measure Megatron's preprocess_data.py or preprocess_data_fast.py, with the digest of what it wrote."""
        output = self.fresh("peer")
        arguments = ["--input", str(source), "--output-prefix", str(output / "out"), *self._tokenizing()]
        arguments += ["--tokenizer-type", "HuggingFaceTokenizer"]
        if fast:
            run = self.megatron_tool("preprocess_data_fast.py", *arguments, "--use-gigatoken")
        else:
            run = self.megatron_tool("preprocess_data.py", *arguments, "--workers", str(self.workers))
        return replace(run, digest=digest_dataset(output / "out_text_document"))

    def datatrove(self, source: Path) -> Run:
        """Measure datatrove's tokenization with as many tasks as we have workers, each on its part of the input."""
        parts = self.folder / "datatrove-parts"
        if not parts.exists():
            split_lines(source, parts, self.workers)
        output = self.fresh("peer")
        program = str(Path(__file__).with_name("datatrove_peer.py"))
        return measure([self.datatrove_python, program, str(parts), str(output), str(self.tokenizer)], cwd=self.folder)

    def bare(self, source: Path, engine: str) -> Run:
        """Let an engine encode alone; the run's times are those of encoding."""
        command = [sys.executable, "-m", "tests.benchmarks.bare", str(source), "--tokenizer", str(self.tokenizer)]
        run = measure([*command, "--engine", engine, "--threads", str(self.workers)], cwd=ROOT)
        found = json.loads(run.output)
        return replace(run, seconds=found["seconds"], cpu_seconds=found["cpu_seconds"], values=found)


def has_module(python: str, name: str) -> bool:
    """Tell whether an environment has a module, without importing it."""
    if python == sys.executable:
        return importlib.util.find_spec(name.partition(".")[0]) is not None
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name.partition('.')[0]!r}) is None)"
    try:
        return subprocess.run([python, "-c", code], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def digest_dataset(prefix: Path) -> str:
    """Return one digest of a `.bin` and its `.idx`."""
    return " ".join(digest_file(f"{prefix}.{suffix}") for suffix in ("bin", "idx"))


def check_same(what: str, runs: Sequence[Run]) -> None:
    """See to it that all runs wrote the same bytes: figures of different outputs mean nothing.

    Raises:
        RunError: If they did not.
    """
    if len({run.digest for run in runs}) > 1:
        msg = f"{what}: outputs differ: {sorted({str(run.digest) for run in runs})}"
        raise RunError(msg)


def split_lines(source: Path, folder: Path, count: int) -> None:
    """Cut a file into parts of whole lines, of about equal size."""
    folder.mkdir()
    size = source.stat().st_size
    with source.open("rb") as file:
        for number in range(count):
            with (folder / f"part-{number:04d}.jsonl").open("wb") as part:
                left = size * (number + 1) // count - file.tell()
                while left > 0 and (data := file.read(min(left, 8 << 20))):
                    part.write(data)
                    left -= len(data)
                part.write(file.readline())
