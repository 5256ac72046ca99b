"""Standard input as an input: the same bytes as a file, resumed without being read again, and never half stored."""

import os
from pathlib import Path

import pytest

from dsindex.cli.main import main
from tests.support.golden import LINES, OWN
from tests.support.published import published

TOKENIZER = ("--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod")
TEXT = b"".join(LINES[:60])
OTHER = b"".join(LINES[60:90])
STORED = Path("out/x.build/dsindex-stdin")
WORDS = ("build", "--input", "-", *TOKENIZER, "--output-prefix", "out/x", "--shard-size", "4KiB")


pytestmark = pytest.mark.usefixtures("in_folder")


def interrupt(monkeypatch):
    """End the next build after its shards, before anything is published."""

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("dsindex.runtime.assembly.Assembly.complete", stop)
        assert main([*WORDS]) == 130


def test_bytes_are_those_of_a_file_and_nothing_is_left(pipe):
    Path("in.jsonl").write_bytes(TEXT)
    assert main(["build", "--input", "in.jsonl", *TOKENIZER, "--output-prefix", "file/x", "--shard-size", "9KiB"]) == 0
    pipe(TEXT)
    assert main([*WORDS]) == 0
    expected, piped = published(Path("file")), published(Path("out"))
    for files in (expected, piped):
        manifest = files.pop("x_text_document.manifest.json").replace(b'"path": "in.jsonl"', b'"path": "-"')
        files["content"] = manifest
    assert piped == expected
    assert not STORED.parent.exists()


@pytest.mark.parametrize(("second_text", "text", "says"), [
    (TEXT, TEXT, "11 of 11 shards kept"),
    (OTHER, OTHER, "0 of "),
    (b"", TEXT, f"nothing is piped: continuing with the {len(TEXT):,} bytes of standard input in "),
], ids=["the same", "another", "nothing"])  # fmt: skip
def test_interrupted_build_continues_with_what_is_piped_now(second_text, text, says, pipe, monkeypatch, cli):
    pipe(text)
    assert main([*WORDS[:3], *TOKENIZER, "--output-prefix", "whole/x"]) == 0
    pipe(TEXT)
    interrupt(monkeypatch)
    assert STORED.read_bytes() == TEXT
    pipe(second_text)
    assert says in cli(WORDS).err
    assert published(Path("out")) == published(Path("whole"))
    assert not STORED.parent.exists()


def test_stored_input_that_was_damaged_is_not_used(pipe, monkeypatch, cli):
    pipe(TEXT)
    interrupt(monkeypatch)
    STORED.write_bytes(TEXT.replace(b"e", b"f", 1))
    pipe(b"")
    assert "what an interrupted run stored is damaged" in cli(WORDS, 1).err
    assert not list(Path("out").glob("x_text*"))


@pytest.mark.parametrize("marker", [None, b"", bytes(70), b"made by dsindfx, dsindex"])
def test_marker_may_be_damaged_when_only_standard_input_is_stored(marker, pipe, cli):
    STORED.parent.mkdir(parents=True)
    STORED.write_bytes(OTHER)
    if marker is not None:
        STORED.with_name("dsindex-work-folder.json").write_bytes(marker)
    pipe(TEXT)
    cli(WORDS)
    assert not STORED.parent.exists()


@pytest.mark.parametrize(("words", "code", "message"), [
    (["--input", "-", "-", *TOKENIZER], 2, "standard input (-) is given twice"),
    (["--input", "-", "--dry-run", *TOKENIZER], 1, "-: a later build cannot read standard input again"),
    (["--input", "-", "--tokenizer-model", "nowhere"], 1, "nowhere: "),
    (["--input", "-", "missing.jsonl", *TOKENIZER], 1, "missing.jsonl: "),
])  # fmt: skip
def test_nothing_is_read_before_the_options_are_known_to_be_right(words, code, message, pipe, cli):
    piped = pipe(TEXT)
    assert message in cli(["build", *words, "--output-prefix", "out/x"], code).err
    assert piped.tell() == 0
    assert os.listdir() == []
