"""Pipes, sockets, devices and standard input are refused by their right name, and nothing waits for them."""

import os
import shlex
import socket

import pytest

from dsindex.cli.main import main
from dsindex.store.local import LocalFile, describe_special_file, open_file
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
    "pipe": "a pipe", "linked pipe": "a pipe", "socket": "a socket", "/dev/zero": "a device", "/dev/null": "a device",
    "/dev/stdin": "standard input", "-": "standard input",
}  # fmt: skip


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("name", "kind"), KINDS.items(), ids=KINDS)
def test_what_is_no_file_is_named_and_not_opened(name, kind):
    assert describe_special_file(name) == kind
    for opener in (open_file, LocalFile):
        with pytest.raises(OSError, match=f"{kind} in place of a file"):
            opener(name)


TOKENIZER = f"--tokenizer-model {OWN.plain_tokenizer} --executor local"
PIPE = ": cannot be read (a pipe in place of a file)"


@pytest.mark.usefixtures("folder")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("command", "message"), [
    (f"build --input 'linked pipe' {TOKENIZER} --output-prefix x", PIPE),
    (f"build --input socket {TOKENIZER} --output-prefix x", ": cannot be read (a socket in place of a file)"),
    (f"build --input /dev/null {TOKENIZER} --output-prefix x", ": cannot be read (a device in place of a file)"),
    (f"build --input /dev/stdin {TOKENIZER} --output-prefix x", ": cannot be read (standard input in place of a file)"),
    (f"build --dry-run --input pipe {TOKENIZER} --output-prefix x", PIPE),
    (f"pack --input pipe {TOKENIZER} --output x.pbin", PIPE),
    ("build --input file --tokenizer-model pipe --output-prefix x", "a pipe"),
    ("raw-index pipe.jsonl --output y.idx", "a pipe"), ("merge --input pipe --output-prefix x", "a pipe"),
    ("convert pipe x.pbin", "a pipe"), ("verify pipe", "a pipe"), ("pack --merge pipe.pbin --output x.pbin", "a pipe"),
    ("index --data-path file --like pipe --epochs 1", "a pipe"), ("build --config pipe", PIPE),
    ("build --config /dev/zero", "/dev/zero: cannot be read (a device in place of a file)"),
])  # fmt: skip
def test_no_command_waits_for_what_is_no_file(command, message, capsys):
    assert main(shlex.split(command)) == 1
    assert message in "".join(capsys.readouterr())
