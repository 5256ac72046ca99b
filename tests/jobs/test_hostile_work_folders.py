"""What is written into a work folder leads to nothing outside of it, and its files are what they must be."""

import os
import shutil
import tracemalloc
from pathlib import Path

import pytest
import xxhash

from dsindex.cli.main import main
from dsindex.engine.identity import Plan, id_of_plan
from dsindex.engine.ledger import Ledger, read_history
from dsindex.errors import FormatError, OutputError
from dsindex.json_text import decode_json, encode_json
from dsindex.store.journal import FileJournal
from dsindex.store.storage import require_path
from tests.faults.corpus import write_corpus
from tests.support.golden import OWN
from tests.support.killed import run_until_killed

LEDGER = Path("x.build/ledger.jsonl")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A build that was killed after three shards, beside a finished dataset `q`, and a copy of both."""
    folder = tmp_path_factory.mktemp("killed")
    write_corpus(folder / "text.jsonl", num_lines=100, broken={})
    tokenizer = ["--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod", "--executor", "local"]
    command = ["build", "--input", str(folder / "text.jsonl"), *tokenizer, "--shard-size", "6KiB"]
    command += ["--output-prefix", str(folder / "x")]
    run_until_killed(command, num_shards=3)
    inputs = list(map(str, OWN.merge_inputs))
    assert main(["merge", "--input", *inputs, "--output-prefix", str(folder / "q"), "--executor", "local"]) == 0
    return command, Path(shutil.copytree(folder, f"{folder}.copy"))


@pytest.fixture
def command(killed, monkeypatch):
    """The command of the killed build, in its folder as it was left."""
    command, copy = killed
    folder = Path(command[-1]).parent
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    monkeypatch.chdir(folder)
    return command


def append(entry):
    body = encode_json(entry)
    with LEDGER.open("ab") as file:
        file.write(xxhash.xxh3_64_hexdigest(body).encode() + b" " + body + b"\n")


def last_run():
    lines = [decode_json(line.partition(b" ")[2]) for line in LEDGER.read_bytes().splitlines()]
    return dict(next(line for line in reversed(lines) if line["kind"] == "run"))


def contents(*names):
    return {name: Path(name).read_bytes() for name in names}


TEMPORARY = "0123456789abcdef" * 2
FOREIGN = ("thesis.tex", f"thesis.tex.{TEMPORARY}.tmp", "q.bin", "q.idx", "q.manifest.json")


def entries(plan):
    here = Path.cwd()
    stranger = {"settings": {**plan["settings"], "output-prefix": str(here / "q")}, "inputs": []}
    return {
        "partial": {"kind": "partial", "path": str(here / "thesis.tex")},
        "obsolete": {"kind": "publishing", "prefix": str(here / "x"), "files": [], "obsolete": [str(here / "q")]},
        "outputs": {"kind": "run", "plan": plan, "outputs": [str(here / "q"), "/", "", f"{here}/x_/../q"]},
        "plan of another": {"kind": "run", "plan": stranger, "outputs": [str(here / "q")]},
    }


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", ["partial", "obsolete", "outputs", "plan of another"])
def test_ledger_names_no_file_to_remove(kind, command):
    run = last_run()
    entry = entries(run["plan"])[kind]
    partial = f"q.bin.{id_of_plan(run['plan'])}.partial"
    for name in ("thesis.tex", f"thesis.tex.{TEMPORARY}.tmp", partial):
        Path(name).write_text("mine")
    before = contents(*FOREIGN, partial)
    append(entry)
    if kind == "plan of another":
        append(run)  # otherwise it is refused
    assert main(command) == 0
    assert contents(*FOREIGN, partial) == before
    assert Path("x_text_document.idx").exists()
    assert not Path("x.build").exists()


def as_pipe(path):
    path.unlink()
    os.mkfifo(path)


def as_link(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def as_linked_file(path):
    path.rename("elsewhere")
    path.symlink_to(Path("elsewhere").absolute())


@pytest.mark.parametrize("replace", [as_pipe, as_link, as_linked_file], ids=["pipe", "device", "link"])
@pytest.mark.parametrize("name", ["ledger.jsonl", "plan.json"])
def test_file_of_ours_is_a_regular_file(name, replace, command, cli):
    replace(Path("x.build", name))
    if name == "plan.json":  # the ledger has the plan, too
        assert main(command) == 0
        return
    for arguments in (command, ["inspect", "x.build"]):
        assert "ledger.jsonl: cannot be read (a " in "".join(cli(arguments, 1))


def test_line_that_is_none_is_not_held(tmp_path):
    path = tmp_path / "ledger.jsonl"
    plan = {"settings": {}, "inputs": []}
    ledger = Ledger(str(path))
    ledger.record_run(Plan(settings={}, inputs=()), keep=False, fresh=False)
    ledger.close()
    with path.open("ab") as file:
        file.truncate(file.tell() + (100 << 20))
    tracemalloc.start()
    try:
        history = read_history(str(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20
    assert history.plan == plan
    ledger = Ledger(str(path))
    ledger.record_finished()
    ledger.close()
    assert read_history(str(path)).finished


@pytest.mark.parametrize(
    ("size_bytes", "reason"),
    [(3 << 30, "a line of more than 268,435,456 bytes"), (1 << 40, "1,099,511,627,776 bytes, and at most")],
)
def test_ledger_that_cannot_be_one_is_refused(size_bytes, reason, tmp_path):
    with (tmp_path / "ledger.jsonl").open("wb") as file:
        file.truncate(size_bytes)
    with pytest.raises(FormatError, match=rf"ledger\.jsonl: cannot be read \(it has {reason}"):
        list(FileJournal(str(tmp_path / "ledger.jsonl")).read())


DEVICES = (
    "/dev/stdout", "/dev/stdout_text_document.bin", "/dev", "/dev/../dev/null", "/proc/self/fd/x", "/sys/x", "link/x",
)  # fmt: skip
DISKS = ("/dev/shm/x", "/dev/shm", "/devices/x", "out/dev/x")


@pytest.mark.parametrize("place", DEVICES + DISKS)
def test_no_output_is_written_among_devices(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("/dev")
    if place in DISKS:
        require_path(place)
        return
    with pytest.raises(OutputError, match=f"{place}: expected a place on a disk, got one in a folder of devices"):
        require_path(place)


HOSTILE = [
    *({"kind": "shard", "task": key} for key in ["x", "\0\0\0", "a\0b\0c\x000\0e", "a\x00-1\0c\x000\0e", 1, None]),
    *({"kind": "run", "places": places} for places in [[-1], ["1"], [1, 2], [1.5], [1 << 62], {"0": 0}, None]),
]


def test_cuts_that_none_made_change_nothing(command):
    run = last_run()
    nothing = "\0".join([run["plan"]["inputs"][0][0], "0", "", "0", "0"])  # a shard of no bytes of the first input
    for entry in [*HOSTILE, {"kind": "shard", "task": nothing}]:
        append({**run, **entry} if entry["kind"] == "run" else {**entry, "result": {}})
    assert main([*command[:-1], "y"]) == 0
    assert main(command) == 0
    for suffix in ("bin", "idx", "provenance.parquet"):
        assert Path(f"x_text_document.{suffix}").read_bytes() == Path(f"y_text_document.{suffix}").read_bytes()
