"""Builds whose shards write their tokens into the output: the same bytes as from shards with files of their own."""

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from dsindex.cli.main import main
from dsindex.engine.ledger import Ledger, read_committed_shards
from dsindex.engine.merge import Piece, merge_range, plan_merge
from dsindex.engine.shards.places import TokenPlaces, is_written_to
from dsindex.errors import OutputError
from dsindex.store.reading import digest_file
from dsindex.store.storage import StoredSection
from tests.faults.corpus import TOKENIZER, write_corpus
from tests.support.killed import kill_after, run_until_killed
from tests.support.published import published

NAMES = "abc"
KINDS = {"build": ["--output-prefix", "{out}/x"], "pack": ["--output", "{out}/x.pbin"]}
OWN_FILES = {"--keep-shards": ""}
PROCESSES = {"--executor": "processes", "--workers": "2"}


@pytest.fixture
def inputs(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        write_corpus(folder / f"{name}.jsonl", num_lines=80, broken={}, seed=number)
    return folder


def words(inputs, out, options=None, *, kind="build", names=NAMES):
    own = [word.format(out=out) for word in KINDS[kind]]
    tokenizer = TOKENIZER if kind == "build" else TOKENIZER[:2]
    files = [str(inputs / f"{name}.jsonl") for name in names]
    options = {"--shard-size": "3KiB", "--workers": "1", **(options or {})}
    return [kind, "--input", *files, *tokenizer, *own, *(word for pair in options.items() for word in pair if word)]


def expected(inputs, folder, options=None, **more):
    """What a build gives whose shards have files of their own, as they are kept."""
    assert main(words(inputs, folder, OWN_FILES | (options or {}), **more)) == 0
    return published(folder)


def shards_of(out):
    return read_committed_shards(str(out / "x.build" / "ledger.jsonl"))


def token_file(out):
    """The one file of tokens in a work folder."""
    (path,) = (out / "x.build").glob("shards/0000/tokens.*.bin")
    return path


def as_stopped(inputs, out, *, num_shards=9):
    """Begin a build that is killed once it has committed so many shards."""
    run_until_killed(words(inputs, out), num_shards=num_shards)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"--workers": "3"}, {"--shard-size": "1MiB"}, PROCESSES])
def test_the_same_bytes_in_place(inputs, tmp_path, kind, options):
    assert main(words(inputs, tmp_path / "out", options, kind=kind)) == 0
    assert published(tmp_path / "out") == expected(inputs, tmp_path / "other", kind=kind)
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == []


def test_the_same_bytes_of_two_keys_and_two_groups(inputs, tmp_path):
    options = {"--workers": "2", "--json-keys": "text", "title": "", "--hold-out": "20%"}
    assert main(words(inputs, tmp_path / "out", options)) == 0
    assert published(tmp_path / "out") == expected(inputs, tmp_path / "other", options)


def test_each_token_is_written_once(inputs, tmp_path):
    out = tmp_path / "out"
    as_stopped(inputs, out)
    assert all(isinstance(part.bin, StoredSection) for shard in shards_of(out).values() for part in shard.keys)
    (partial,) = out.glob("*_document.bin.*.partial")
    assert partial.samefile(token_file(out))
    assert len(list((out / "x.build").glob("shards/*/*.bin"))) == 1


@pytest.mark.parametrize("more", [{}, PROCESSES, {"--workers": "3"}])
def test_a_killed_build_goes_on(inputs, tmp_path, more, capsys):
    as_stopped(inputs, tmp_path / "out")
    before = token_file(tmp_path / "out").stat().st_ino
    assert main(words(inputs, tmp_path / "out", more)) == 0
    assert "9 of 34 shards kept" in capsys.readouterr().err
    assert published(tmp_path / "out") == expected(inputs, tmp_path / "other")
    (bin_file,) = (tmp_path / "out").glob("*.bin")
    assert bin_file.stat().st_ino == before  # nothing was copied
    assert bin_file.stat().st_nlink == 1


def test_a_damaged_shard_is_made_again_and_the_others_are_copied(inputs, tmp_path, capsys):
    out = tmp_path / "out"
    as_stopped(inputs, out)
    sections = sorted(shard.keys[0].bin.begin for shard in shards_of(out).values())
    with token_file(out).open("r+b") as file:
        file.seek(sections[4])
        file.write(b"\xff\xff")
    assert main(words(inputs, out)) == 0
    assert "8 of 34 shards kept" in capsys.readouterr().err
    assert published(out) == expected(inputs, tmp_path / "other")


def test_a_lost_partial_name_is_given_again(inputs, tmp_path, capsys):
    out = tmp_path / "out"
    as_stopped(inputs, out)
    next(out.glob("*_document.bin.*.partial")).unlink()
    assert main(words(inputs, out)) == 0
    assert "9 of 34 shards kept" in capsys.readouterr().err
    assert published(out) == expected(inputs, tmp_path / "other")


def test_a_mended_input_moves_what_is_kept(inputs, tmp_path, capsys):
    out = tmp_path / "out"
    as_stopped(inputs, out, num_shards=12)
    write_corpus(inputs / "a.jsonl", num_lines=95, broken={}, seed=11)
    assert main(words(inputs, out)) == 0
    assert "shards kept" in capsys.readouterr().err
    assert published(out) == expected(inputs, tmp_path / "other")


def test_a_published_file_is_not_written_to(inputs, tmp_path):
    """A driver was killed after it had published, so the token file has the name of a user's file as well."""
    out, replacing = tmp_path / "out", {"--replace": ""}
    kill_after("record_finished", 1, words(inputs, out, names="ab"))
    (bin_file,) = out.glob("*.bin")
    assert bin_file.samefile(token_file(out))
    before = bin_file.read_bytes()
    run_until_killed(words(inputs, out, replacing), num_shards=2)
    assert bin_file.read_bytes() == before == expected(inputs, tmp_path / "small", names="ab")[bin_file.name]
    assert main(words(inputs, out, replacing)) == 0
    assert published(out) == expected(inputs, tmp_path / "other")


def test_a_worker_that_comes_back_writes_into_no_output(inputs, tmp_path):
    """A worker of the killed driver was frozen: it is to write the tokens of an input that has changed since."""
    out = tmp_path / "out"
    as_stopped(inputs, out, num_shards=12)
    with token_file(out).open("r+b", buffering=0) as frozen:
        fcntl.flock(frozen, fcntl.LOCK_SH)
        frozen.seek(0, os.SEEK_END)
        write_corpus(inputs / "b.jsonl", num_lines=95, broken={}, seed=11)
        assert main(words(inputs, out)) == 0
        frozen.write(b"late")
    assert published(out) == expected(inputs, tmp_path / "other")


def test_a_token_file_is_known_to_be_written_to(inputs, tmp_path, monkeypatch):
    seen = []
    close = TokenPlaces.close
    monkeypatch.setattr(TokenPlaces, "close", lambda places: (seen.append(is_open(places)), close(places)))

    def is_open(places):
        return [is_written_to(os.path.join(places._work_dir, name)) for name in places.names.values()]

    assert main(words(inputs, tmp_path / "out")) == 0
    assert seen == [[True]]


def test_without_hard_links_shards_have_files_of_their_own(inputs, tmp_path, monkeypatch):
    link = os.link

    def refuse(path, other, **options):
        if other.endswith(".partial"):
            raise PermissionError(1, "Operation not permitted")
        link(path, other, **options)

    monkeypatch.setattr(os, "link", refuse)
    assert main(words(inputs, tmp_path / "out")) == 0
    assert published(tmp_path / "out") == expected(inputs, tmp_path / "other")


def test_kept_shards_have_files_of_their_own(inputs, tmp_path):
    out = tmp_path / "out"
    as_stopped(inputs, out)
    assert main(words(inputs, out, {"--keep-shards": ""})) == 0
    assert published(out) == expected(inputs, tmp_path / "other")
    assert not any(isinstance(shard.keys[0].bin, StoredSection) for shard in shards_of(out).values())
    (bin_file,) = out.glob("*.bin")
    assert bin_file.stat().st_nlink == 1


def test_the_ledger_goes_on_where_an_attempt_failed(inputs, tmp_path, monkeypatch):
    """A shard fails after it has told its size: others are in place beyond it, and its own file fills the gap."""
    from dsindex.engine.shards import places

    finish, failed = places._PlacedTokens.finish, []

    def fail_once(tokens):
        if tokens._claim.shard == 3 and not failed:
            failed.append(True)
            raise OSError(5, "Input/output error")
        return finish(tokens)

    monkeypatch.setattr(places._PlacedTokens, "finish", fail_once)
    assert main(words(inputs, tmp_path / "out", {"--workers": "2"})) == 0
    assert failed
    assert published(tmp_path / "out") == expected(inputs, tmp_path / "other")


def changed_after(name, times, change, monkeypatch):
    """Let something else change the token file once a method of the ledger was called so many times."""
    record, left = getattr(Ledger, name), [times]

    def recorded(ledger, *arguments):
        record(ledger, *arguments)
        left[0] -= 1
        if not left[0]:
            change()

    monkeypatch.setattr(Ledger, name, recorded)


def damage(out):
    with token_file(out).open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")


def truncate(out):
    os.truncate(token_file(out), 100)


def truncate_with_blocks_beyond(out):
    """As XFS has them while a file grows."""
    truncate(out)
    subprocess.run(["fallocate", "-n", "-o", "1MiB", "-l", "1MiB", token_file(out)], check=True)


@pytest.mark.parametrize(
    ("change", "record", "times", "range_bytes"),
    [
        (damage, "record_shard", 20, 1 << 26),
        (truncate, "record_shard", 20, 1 << 26),
        (truncate, "record_shard", 20, 1 << 12),
        (truncate, "record_range", 3, 1 << 12),
        (truncate_with_blocks_beyond, "record_range", 3, 1 << 12),
    ],
)
def test_tokens_that_something_else_changed_are_made_again(
    inputs, tmp_path, monkeypatch, capsys, change, record, times, range_bytes
):
    out = tmp_path / "out"
    monkeypatch.setattr("dsindex.engine.merge.range_bytes", lambda *_, **__: range_bytes)
    changed_after(record, times, lambda: change(out), monkeypatch)
    assert main(words(inputs, out)) == 1
    said = capsys.readouterr().err
    assert "something else has changed the file; run" in said or "it changed during the copy; run" in said
    assert not list(out.glob("*.bin"))
    monkeypatch.undo()
    assert main(words(inputs, out)) == 0
    assert published(out) == expected(inputs, tmp_path / "other")


@pytest.mark.parametrize("change", [Path.unlink, lambda path: os.truncate(path, 100)], ids=["removed", "truncated"])
@pytest.mark.parametrize("suffix", ["bin", "provenance.parquet"])
def test_a_completed_file_that_something_else_changed_is_not_published(
    inputs, tmp_path, monkeypatch, capsys, change, suffix
):
    out = tmp_path / "out"
    changed_after("record_assembled", 1, lambda: change(next(out.glob(f"*.{suffix}.*.partial"))), monkeypatch)
    assert main(words(inputs, out)) == 1
    assert "something else has changed it; run the same command again" in capsys.readouterr().err
    assert not list(out.glob("*.manifest.json"))
    monkeypatch.undo()
    assert main(words(inputs, out)) == 0
    assert published(out) == expected(inputs, tmp_path / "other")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_in_place_of_a_partial_one_is_named(inputs, tmp_path, capsys, make):
    out = tmp_path / "out"
    as_stopped(inputs, out)
    (partial,) = out.glob("*_document.bin.*.partial")
    partial.unlink()
    make(partial)
    assert main(words(inputs, out)) == 1
    assert f"{partial}: cannot be written" in (message := capsys.readouterr().err)
    assert "move away what is there in place of a file" in message
    partial.rename(tmp_path / "away")
    assert main(words(inputs, out)) == 0
    assert published(out) == expected(inputs, tmp_path / "other")


@pytest.mark.parametrize("place", [100, 5000])
def test_tokens_of_several_ranges_are_compared_by_the_last(tmp_path, monkeypatch, place):
    monkeypatch.setattr("dsindex.engine.merge.range_bytes", lambda *_, **__: 1 << 12)
    file = tmp_path / "tokens"
    file.write_bytes(os.urandom(6000))
    section = StoredSection(name="tokens", size_bytes=6000, digest=digest_file(str(file)), begin=0)
    piece = Piece(path=str(file), identity="", offset=0, size_bytes=6000, section=section)
    first, last = plan_merge([piece], str(file))
    assert [merge_range(task).number for task in (first, last)] == [0, 1]
    with file.open("r+b") as damaged:
        damaged.seek(place)
        damaged.write(b"\xff\xff")
    with pytest.raises(OutputError, match="something else has changed the file"):
        merge_range(last)


@pytest.mark.parametrize("size_bytes", [0, 1 << 20])
def test_a_file_in_place_of_a_partial_one_gets_all_tokens(inputs, tmp_path, monkeypatch, size_bytes):
    def replace():
        (partial,) = out.glob("*_document.bin.*.partial")
        partial.unlink()
        partial.write_bytes(bytes(size_bytes))

    out = tmp_path / "out"
    monkeypatch.setattr("dsindex.engine.merge.range_bytes", lambda *_, **__: 1 << 12)
    changed_after("record_shard", 20, replace, monkeypatch)
    assert main(words(inputs, out)) == 0
    (bin_file,) = out.glob("*.bin")
    assert bin_file.read_bytes() == expected(inputs, tmp_path / "other")[bin_file.name]
