"""Standard input where the work folder is in a bucket: an object of it, with the rules that it has on a disk."""

import pytest

from dsindex.cli.main import main
from dsindex.jobs import build as build_job
from dsindex.store import uploads
from tests.faults.object_kills import objects
from tests.support.golden import OWN
from tests.support.published import published

LINES = OWN.docs.read_bytes().splitlines(keepends=True)
TEXT, OTHER = b"".join(LINES[:60]), b"".join(LINES[60:90])
TOKENIZER = ("--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod")
WORDS = ("build", "--input", "-", *TOKENIZER, "--shard-size", "4KiB", "--executor", "local", "--output-prefix")
STORED = "x.build/inputs/stdin"


def build(prefix, *more):
    return main([*WORDS, prefix, *more])


def interrupt(prefix):
    """End the next build after its shards, before anything is published."""

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(build_job, "count_reference_texts", stop)
        assert build(prefix) == 130


def test_bytes_are_those_of_a_disk_and_nothing_is_left(store, pipe, tmp_path, monkeypatch):
    pipe(TEXT)
    assert build(str(tmp_path / "x")) == 0
    monkeypatch.setattr(uploads, "PART_BYTES", 1000)  # several parts
    pipe(TEXT)
    assert build("s3://out/data/x") == 0
    assert objects(store, "data") == published(tmp_path)
    pipe(TEXT)
    assert build(str(tmp_path / "here" / "x"), "--work-dir", "s3://out/work") == 0
    assert published(tmp_path / "here") == published(tmp_path)
    assert not store.names("out", "work")
    assert not store.uploads


def test_interrupted_build_continues_without_reading_again(store, pipe, tmp_path, capsys):
    pipe(TEXT)
    interrupt("s3://out/x")
    assert store.content(f"out/{STORED}") == TEXT
    piped = pipe(OTHER)
    assert build("s3://out/x") == 0
    assert piped.tell() == 0
    assert f"the interrupted run stored {len(TEXT):,} bytes of it in s3://out/{STORED}" in capsys.readouterr().err
    pipe(TEXT)
    assert build(str(tmp_path / "x")) == 0
    assert objects(store, "") == published(tmp_path)


@pytest.mark.parametrize(("data", "said"), [(b"", "got nothing"), (TEXT + b"broken\n", "line 61: expected JSON")])
def test_bad_text_is_named_and_an_unused_folder_removed(data, said, store, pipe, capsys):
    pipe(data)
    assert build("s3://out/x") == 1
    shown = capsys.readouterr().err
    assert said in shown
    assert bool(data) == (f"- (stored as s3://out/{STORED})" in shown)
    assert bool(data) == bool(store.names("out", "x.build"))
