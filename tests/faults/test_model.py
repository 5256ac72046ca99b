"""Any sequence of commands, kills and a user's own doings leaves the user's files alone and completes correctly.

The model is a folder of the user's (inputs, notes, a dataset of another tool) and the builds and merges that are run
over it, each with options and a kill drawn by chance. After every command

- the user's files are byte for byte what they were;
- a dataset with a manifest is the one that a fresh build of what its manifest names gives;
- a command that ends with 0 has left exactly that dataset, and one that fails says so in one sentence.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import xxhash
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from dsindex.store.storage import combine_digests
from tests.faults.zygote import SMALL_RANGE_BYTES, Strike
from tests.support.golden import OWN

if TYPE_CHECKING:
    from tests.faults.zygote import Zygote

LINES = OWN.docs.read_bytes().splitlines(keepends=True)
INPUTS = st.lists(st.sampled_from(["a.jsonl", "b.jsonl", "c.jsonl"]), min_size=1, max_size=3)
PREFIXES = st.sampled_from(["out/x", "out/y", "link/x"])
WORK_DIRS = st.sampled_from([None, None, None, "work", "data", "out"])
OPTIONS = st.sets(st.sampled_from(["--replace", "--keep-shards", "--no-provenance"]), max_size=2)
KILLS = st.one_of(st.none(), st.none(), st.integers(0, 160))
SUFFIXES = ("bin", "idx", "provenance.parquet")

Key = tuple[str, ...]


class Model(RuleBasedStateMachine):
    """One user's folder."""

    zygote: Zygote
    references: dict[Key, dict[str, bytes]]
    """Data files of a fresh build or merge, by what was asked for and the inputs' bytes."""

    @initialize()
    def move_in(self):
        self.folder = Path(tempfile.mkdtemp(prefix="dsindex-model-"))
        self.mine = {}
        for number, name in enumerate("abc"):
            self.put(f"data/{name}.jsonl", b"".join(LINES[8 * number : 8 * number + 8]))
        self.put("out/notes.txt", b"mine")
        self.put("out/x_text_document.bin.0123456789abcdef.partial", b"mine")
        for suffix in ("bin", "idx"):
            self.put(f"out/z.{suffix}", OWN.run("eod").prefixes["text"].with_suffix(f".{suffix}").read_bytes())
        (self.folder / "link").symlink_to("out")

    def teardown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def put(self, name, data):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.mine[path] = data

    @rule(names=INPUTS, prefix=PREFIXES, work_dir=WORK_DIRS, options=OPTIONS, kill=KILLS)
    def build(self, names, prefix, work_dir, options, kill):
        inputs = [self.folder / "data" / name for name in names]
        command = ["build", "--input", *map(str, inputs), *FLAGS, *sorted(options)]
        where = [] if work_dir is None else ["--work-dir", str(self.folder / work_dir)]
        ended = self.run([*command, "--output-prefix", str(self.folder / prefix), *where], kill)
        if ended.code == 0:
            wanted = self.reference([*command[:2], *map(str, inputs), *FLAGS, *sorted(options - EPHEMERAL)], inputs)
            assert self.files(f"{prefix}_text_document") == wanted

    @rule(names=st.lists(st.sampled_from(["x_text_document", "y_text_document", "z"]), min_size=1, max_size=3),
          output=st.sampled_from(["out/m", "out/x_text_document", "link/y_text_document", "out/z"]),
          options=st.sets(st.sampled_from(["--replace", "--keep-shards"])), kill=KILLS)  # fmt: skip
    def merge(self, names, output, options, kill):
        prefixes = [self.folder / "out" / name for name in names]
        is_foreign = output == "out/z"
        command = ["merge", "--input", *map(str, prefixes)]
        chosen = sorted(options - {"--replace"} if is_foreign else options)  # it would replace the user's own
        ended = self.run([*command, "--output-prefix", str(self.folder / output), *chosen], kill)
        if ended.code == 0:
            files = [Path(f"{prefix}.{suffix}") for prefix in prefixes for suffix in ("bin", "idx")]
            assert self.files(output) == self.reference(command, files)

    @rule(name=st.sampled_from(["a.jsonl", "b.jsonl"]), line=st.sampled_from(LINES[30:34]))
    def edit_an_input(self, name, line):
        self.put(f"data/{name}", self.mine[self.folder / "data" / name] + line)

    @rule(place=st.sampled_from(["out/m.build", "out/x.build", "out/x.build/shards", "out/y.build/shards/0", "work"]),
          name=st.sampled_from(["notes", "plan.json.bak", "00000000.0.bin", "x.tmp"]))  # fmt: skip
    def leave_a_file(self, place, name):
        if (self.folder / place).is_dir():  # a user does not make our folders, but drops things into them
            self.put(f"{place}/{name}", b"mine too")

    @rule(prefix=st.sampled_from(["out/x_text_document", "out/y_text_document"]))
    def put_another_tools_dataset_in_its_place(self, prefix):
        for path in self.folder.glob(f"{prefix}.*"):
            if path not in self.mine and path.suffix != ".partial" and path.is_file():
                path.unlink()
        for suffix in ("bin", "idx"):
            self.put(f"{prefix}.{suffix}", self.mine[self.folder / f"out/z.{suffix}"])

    def run(self, command, kill):
        with tempfile.TemporaryDirectory() as scratch:
            strike = None if kill is None else Strike(at=kill, what="tear" if kill % 2 else "kill")
            ended = self.zygote.run(Path(scratch), command, strike)
        if "--replace" in command:  # which asks for it: what stood under the output's names is the user's no more
            self.give_up(command)
        for path, data in self.mine.items():
            assert path.read_bytes() == data, f"{path} was changed by {command}"
        assert ended.code in {0, 1, -9}, ended.errors
        assert "Traceback" not in ended.errors
        assert "internal error" not in ended.errors
        if ended.code == 1:
            assert ended.errors.splitlines()[-1].startswith(f"dsindex {command[0]}: ")
        for manifest in self.folder.glob("out/*.manifest.json"):
            self.check_complete(manifest)
        return ended

    def give_up(self, command):
        prefix = Path(command[command.index("--output-prefix") + 1]).name
        stem = prefix if command[0] == "merge" else f"{prefix}_text_document"
        for suffix in SUFFIXES:
            path = self.folder / "out" / f"{stem}.{suffix}"
            if path in self.mine and (not path.exists() or path.read_bytes() != self.mine[path]):
                del self.mine[path]

    def check_complete(self, manifest):
        """Compare a dataset that says it is complete with the digests that its manifest proves it by."""
        content = json.loads(manifest.read_bytes())["content"]
        prefix = str(manifest).removesuffix(".manifest.json")
        for suffix, entry in content["digests"].items():
            if Path(f"{prefix}.{suffix}") not in self.mine:
                assert digest_of(Path(f"{prefix}.{suffix}")) == entry["xxh3_128"], f"{prefix}.{suffix}"

    def files(self, prefix):
        found = {suffix: self.folder / f"{prefix}.{suffix}" for suffix in SUFFIXES}
        return {suffix: path.read_bytes() for suffix, path in found.items() if path.exists()}

    def reference(self, command, inputs):
        """What a fresh run in an empty folder gives."""
        shape = [word for word in command if not word.startswith(str(self.folder))]
        key = (*shape, *(f"{path.name} {path.read_bytes()!r}" for path in inputs))
        if key not in self.references:
            with tempfile.TemporaryDirectory() as scratch:
                prefix = Path(scratch, "fresh")
                assert self.zygote.run(Path(scratch, "run"), [*command, "--output-prefix", str(prefix)]).code == 0
                stem = prefix if command[0] == "merge" else Path(f"{prefix}_text_document")
                found = {suffix: Path(f"{stem}.{suffix}") for suffix in SUFFIXES}
                self.references[key] = {name: path.read_bytes() for name, path in found.items() if path.exists()}
        return self.references[key]


def digest_of(path):
    """The digest as the commands compute it here, where every range of a `.bin` is a block."""
    data = path.read_bytes()
    block_bytes = SMALL_RANGE_BYTES if path.suffix == ".bin" else len(data) or 1
    blocks = [data[begin : begin + block_bytes] for begin in range(0, len(data), block_bytes)]
    return combine_digests(xxhash.xxh3_128_digest(block) for block in blocks)


FLAGS = ("--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod", "--shard-size", "2KiB", "--workers", "2")
EPHEMERAL = {"--replace", "--keep-shards"}


@pytest.mark.exhaustive
def test_no_sequence_of_commands_changes_a_users_file(zygote, is_long):
    Model.zygote = zygote
    Model.references = {}
    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=150 if is_long else 12,
            stateful_step_count=20 if is_long else 10,
            deadline=None,
            derandomize=not is_long,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )
    assert {key[0] for key in Model.references} == {"build", "merge"}  # some of either ended, and were compared
