"""Commands without a work folder on a disk that fills up at any point: nothing is left, and that is what is said."""

import os

import pytest

from dsindex.cli.main import main
from dsindex.commands.convert import convert_to_pbin
from tests.support.datasets import write_dataset
from tests.support.pbin_files import write_pbin

PAGE = 4096
DOCUMENTS = [[list(range(number % 60, 60))] for number in range(1500)]


def make_sources(folder):
    folder.mkdir()
    write_dataset(folder / "set", DOCUMENTS)
    convert_to_pbin(str(folder / "set"), str(folder / "set.pbin"))
    write_pbin(folder / "other.pbin", [[1, 2, 3]] * 900, token_bytes=2)
    (folder / "lines.jsonl").write_bytes(b'{"text": "a"}\n' * 9000)


COMMANDS = {
    "convert to .pbin": lambda source, disk: ["convert", f"{source}/set", f"{disk}/out.pbin"],
    "convert to MMIDIDX": lambda source, disk: ["convert", f"{source}/set.pbin", f"{disk}/out"],
    "convert version": lambda source, disk: [
        "convert",
        f"{source}/set.pbin",
        f"{disk}/out.pbin",
        "--pbin-era",
        "2024-04",
    ],
    "pack --merge": lambda source, disk: [
        *("pack", "--merge", f"{source}/set.pbin", f"{source}/other.pbin", "--output", f"{disk}/out.pbin")
    ],
    "raw-index": lambda source, disk: ["raw-index", f"{source}/lines.jsonl", "--output", f"{disk}/out.idx"],
    "index": lambda source, disk: [
        *("index", "--data-path", f"{source}/set", "--seq-length", "4", "--num-samples", "20000", "--split", "1"),
        *("--data-cache-path", str(disk)),
    ],
}


def leave_free(disk, pages):
    """Fill the disk but for so many pages."""
    ballast = disk / "ballast"
    ballast.unlink(missing_ok=True)
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
    ballast.write_bytes(bytes(free - pages * PAGE))


def outputs(disk):
    """All files but those that tell of the run."""
    names = {path.name: path for path in disk.iterdir() if path.name != "ballast"}
    return {name: path.read_bytes() for name, path in names.items() if not name.endswith(".progress.json")}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", COMMANDS)
def test_full_disk_leaves_nothing_and_the_same_command_works_later(name, tmp_path, small_disk, capsys, monkeypatch):
    source = tmp_path / "source"
    make_sources(source)
    command = COMMANDS[name](source, small_disk)
    whole = tmp_path / "whole"
    whole.mkdir()
    assert main(COMMANDS[name](source, whole)) == 0
    expected = outputs(whole)
    needed = sum(-(-len(content) // PAGE) for content in expected.values())
    monkeypatch.setattr("dsindex.commands.index.free_bytes", lambda _folder: 1 << 40)  # looks before it leaps
    stopped = 0
    for pages in [*range(0, needed, max(1, needed // 12)), needed + 5]:
        leave_free(small_disk, pages)
        capsys.readouterr()
        code = main(command)
        said = capsys.readouterr().err
        if code == 0:
            break
        stopped += 1
        assert code == 1
        assert "cannot be written (No space left on device)" in said, said
        assert "then rerun the command" in said
        if name == "index":
            left = outputs(small_disk)
            assert not any(path.endswith("-description.txt") for path in left), "Megatron takes no cache without it"
            assert not any(path.endswith(".tmp") for path in left)
        else:
            assert outputs(small_disk) == {}
    assert stopped > 5
    left = outputs(small_disk)
    if name == "index":  # whose records name their paths
        left, expected = ({key: of[key] for key in of if not key.endswith(".json")} for of in (left, expected))
    assert left == expected
