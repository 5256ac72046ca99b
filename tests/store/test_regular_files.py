"""Pipes, sockets, devices and standard input are refused by their right name, and nothing waits for them."""

import os
import socket

import pytest

from dsindex.cli.main import main
from dsindex.store.local import LocalFile, open_file, what_is_no_file
from tests.support.golden import OWN


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to stand in, with one of each kind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    for name in ("pipe", "pipe.jsonl", "pipe.idx", "pipe.bin", "pipe.pbin"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "linked pipe").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    return tmp_path


KINDS = {
    "pipe": "a pipe",
    "linked pipe": "a pipe",
    "socket": "a socket",
    "/dev/zero": "a device",
    "/dev/null": "a device",
    "/dev/stdin": "standard input",
    "-": "standard input",
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("name", "kind"), KINDS.items(), ids=KINDS)
def test_what_is_no_file_is_named_and_not_opened(name, kind):
    assert what_is_no_file(name) == kind
    for opener in (open_file, LocalFile):
        with pytest.raises(OSError, match=f"{kind} in place of a file"):
            opener(name)


@pytest.mark.usefixtures("folder")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("command", "name"), [
    *(("build --input {} --output-prefix x", name) for name in ("linked pipe", "socket", "/dev/null", "/dev/stdin")),
    ("build --dry-run --input {} --output-prefix x", "pipe"),
    ("pack --input {} --output x.pbin", "pipe"),
])  # fmt: skip
def test_inputs_that_are_no_files_are_refused_by_name(command, name, capsys):
    kind = KINDS[name]
    words = [word.format(name) for word in command.split(" ")]
    assert main([*words, "--tokenizer-model", str(OWN.plain_tokenizer), "--executor", "local"]) == 1
    shown = capsys.readouterr().err
    assert f": cannot be read ({kind} in place of a file)" in shown


@pytest.mark.usefixtures("folder")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", [
    "build --input file --tokenizer-model pipe --output-prefix x",
    "raw-index pipe.jsonl --output y.idx",
    "merge --input pipe --output-prefix x",
    "convert pipe x.pbin",
    "verify pipe",
    "pack --merge pipe.pbin --output x.pbin",
    "index --data-path file --like pipe --epochs 1",
])  # fmt: skip
def test_no_command_waits_for_a_pipe(command, capsys):
    assert main(command.split()) == 1
    shown = "".join(capsys.readouterr())
    assert "a pipe" in shown or "standard input" in shown
