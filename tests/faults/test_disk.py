"""Disks that are full, broken, read-only or gone, and inputs that change under way: a clean stop, then success."""

import shutil
import subprocess

import pytest

from tests.faults.corpus import assert_continues, command
from tests.faults.zygote import Strike
from tests.support.published import published


def assert_clean_stop(ended, *parts):
    assert ended.code == 1, ended.errors
    assert "Traceback" not in ended.errors
    assert "internal error" not in ended.errors
    said = "\n".join(ended.errors.strip().splitlines()[-2:])  # the error and its hint
    assert [part for part in parts if part not in said] == [], said


PLACES = {"a shard": (".build/shards", 90), "the journal": ("journal.jsonl", 6), "the output": ("document.bin", 2)}


@pytest.mark.quick(3)
@pytest.mark.parametrize(("action", "place"), [
    ("ENOSPC", "a shard"), ("EROFS", "a shard"), ("ENOSPC", "the journal"), ("EDQUOT", "the output"),
    ("EACCES", "the output"),
])  # fmt: skip
def test_disk_that_refuses_stops_the_build(action, place, corpus, expected, zygote, tmp_path, out):
    where, at = PLACES[place]
    ended = zygote.run(tmp_path / "run", command(corpus, out), Strike(at=at, action=action, place=where, lasts=True))
    remedy = "make room" if action in {"ENOSPC", "EDQUOT"} else "choose a folder that you may write to"
    assert_clean_stop(ended, str(out), "cannot be written", remedy)
    assert not list(out.glob("*.idx"))
    assert assert_continues(zygote, command(corpus, out), out, tmp_path, expected)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("room", "when"), [(100, "before"), (250, "tokenizing")], ids=str)
def test_full_disk_stops_and_continues_after_it_is_enlarged(room, when, corpus, expected, zygote, tmp_path, small_disk):
    """Of `room` KiB: 21 shards and their tokens in the output take about 330 KiB in pages of 4 KiB, which an estimate
    cannot know, and what is made at the end 20 more."""
    (small_disk / "ballast").write_bytes(bytes((2048 - room) << 10))
    ended = zygote.run(tmp_path / "run", command(corpus, small_disk))
    assert_clean_stop(ended, str(small_disk), "make room")
    assert not list(small_disk.glob("*.idx"))
    assert ("are needed for shards and output" in ended.errors) == (when == "before")
    assert "tokenize: done" not in ended.errors
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    (small_disk / "ballast").unlink()
    assert_continues(zygote, command(corpus, small_disk), small_disk, tmp_path, expected)


REMOVED = [(0, "remove", r"\.commit", rf"::\.{suffix}\..*partial$") for suffix in ("bin", "idx")]  # sizes were compared
REMOVED += [(at, "vanish", ".build/shards", "") for at in range(30, 60, 2)]


@pytest.mark.parametrize(("at", "action", "place", "target"), REMOVED)
def test_what_is_removed_under_way_is_made_again(at, action, place, target, corpus, expected, zygote, tmp_path, out):
    strike = Strike(at=at, action=action, place=place, target=f"{out}{target}")
    assert_clean_stop(zygote.run(tmp_path / "run", command(corpus, out), strike), str(out))
    assert zygote.run(tmp_path / "run", command(corpus, out)).code == 0
    assert published(out) == expected


@pytest.mark.quick(1)
@pytest.mark.parametrize(("action", "said"), [("vanish", " read"), ("grow", " bytes"), ("cut", " bytes")])
def test_input_that_changes_under_way_stops_the_build(action, said, corpus, zygote, tmp_path, out):
    copy = tmp_path / "copy.jsonl"
    shutil.copyfile(corpus, copy)
    strike = Strike(at=30, action=action, place=".build/shards", target=str(copy))
    assert_clean_stop(zygote.run(tmp_path / "run", command(copy, out), strike), "copy.jsonl", said)
    assert not list(out.glob("*.idx"))
    # What became of the input is read again, and its broken line is said by name.
    again = zygote.run(tmp_path / "run", command(copy, out))
    if action == "grow":
        assert again.code == 0, again.errors
        assert "copy.jsonl is changed" in again.errors
        return
    broken = ("copy.jsonl, line ", "not valid JSON", "shards are kept")
    assert_clean_stop(again, *(("copy.jsonl", " read") if action == "vanish" else broken))
