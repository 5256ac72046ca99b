"""`dsindex raw-index` and `dsindex convert`: their flags, what they say, and executors."""

import argparse
import os
import pickle

import pytest

from dsindex.cli import convert as convert_command
from dsindex.cli import raw_index as raw_index_command
from dsindex.cli.options import add_options
from dsindex.errors import BadRecordError
from dsindex.execution.dispatch import ordered_runner
from dsindex.execution.local import ThreadExecutor
from dsindex.formats import raw_index
from tests.support.datasets import write_dataset
from tests.support.pbin_files import joined_by_modalities, pbin_bytes, write_pbin


def run(command, *arguments):
    parser = argparse.ArgumentParser()
    add_options(parser, *command.OPTIONS)
    return command.run(parser.parse_args([str(argument) for argument in arguments]))


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_raw_index_says_what_became_of_the_lines(tmp_path, capsys, executor):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"{}\n{\n[1]\n\n")
    options = [path, "--executor", executor, "--workers", 2]
    assert run(raw_index_command, *options, "--drop-faulty-entries", "--output", tmp_path / "y.idx") == 0
    assert (tmp_path / "y.idx").read_bytes() == pickle.dumps([(0, 2), (5, 3)], protocol=4)
    said = capsys.readouterr().out
    assert "y.idx: 2 lines, 2 faulty ones left out" in said
    assert "x.jsonl, line 2 (byte 3)" in said
    with pytest.raises(BadRecordError, match=r"x\.jsonl, line 2: expected JSON"):
        run(raw_index_command, *options)


def test_raw_index_names_ten_lines_at_most(tmp_path, capsys):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"{\n" * 25)
    assert run(raw_index_command, path, "--drop-faulty-entries") == 0
    assert "line 10 (byte 18)\n  and 15 more\n" in capsys.readouterr().out


def test_convert_goes_both_ways_and_between_eras(tmp_path, capsys):
    write_dataset(tmp_path / "x", [[[1, 2]], [], [[3]]])
    assert run(convert_command, tmp_path / "x.idx", tmp_path / "y.pbin", "--pbin-era", "spec") == 0
    assert (tmp_path / "y.pbin").read_bytes() == pbin_bytes([[1, 2], [], [3]], version="spec")
    assert run(convert_command, tmp_path / "y.pbin", tmp_path / "z.bin", "--token-type", "uint16") == 0
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"z.{suffix}").read_bytes() == (tmp_path / f"x.{suffix}").read_bytes()
    assert run(convert_command, tmp_path / "y.pbin", tmp_path / "now.pbin") == 0
    assert (tmp_path / "now.pbin").read_bytes() == pbin_bytes([[1, 2], [], [3]], version="current")
    assert "3 documents, 3 tokens of type uint16" in capsys.readouterr().out


def test_convert_flattens_when_told_to(tmp_path):
    write_dataset(tmp_path / "x", [[[1], [2]]])
    assert run(convert_command, tmp_path / "x", tmp_path / "y.pbin", "--flatten") == 0
    assert (tmp_path / "y.pbin").read_bytes() == pbin_bytes([[1, 2]], version="current", token_bytes=2)


def test_ordered_runner_keeps_order_over_groups(tmp_path):
    executor = ThreadExecutor(2)
    try:
        run_tasks = ordered_runner(executor, name="test")
        assert list(run_tasks(str, range(100))) == [str(number) for number in range(100)]
        path = tmp_path / "x.jsonl"
        path.write_bytes(b'{"a": 1}\n' * 60)
        raw_index.create_raw_index(str(path), range_bytes=7, run_tasks=run_tasks)
        assert len(pickle.loads((tmp_path / "x.idx").read_bytes())) == 60  # noqa: S301 - ours
    finally:
        executor.close()


def test_convert_in_spawned_processes(tmp_path):
    source = write_pbin(tmp_path / "x.pbin", [[1, 2, 3]] * 10, version="2024-04")
    assert run(convert_command, source, tmp_path / "y.pbin", "--executor", "processes", "--workers", 1) == 0
    assert (tmp_path / "y.pbin").read_bytes() == pbin_bytes([[1, 2, 3]] * 10, version="current")


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("command", [
    ["convert", "{}/a.pbin", "{}/taken.pbin"],
    ["pack", "--merge", "{}/a.pbin", "{}/a.pbin", "--output", "{}/taken.pbin"],
    ["repair", "{}/joined.pbin", "--output", "{}/taken.pbin"],
    ["raw-index", "{}/a.pbin", "--output", "{}/taken.pbin"],
], ids=lambda command: command[0])  # fmt: skip
def test_output_that_is_an_input_by_another_name_is_refused(tmp_path, cli, command, link):
    write_pbin(tmp_path / "a.pbin", [[1, 2, 3]])
    files = [(tmp_path / "a.pbin").read_bytes(), pbin_bytes([[4]], version="current")]
    (tmp_path / "joined.pbin").write_bytes(joined_by_modalities(files))
    link(tmp_path / ("joined.pbin" if command[0] == "repair" else "a.pbin"), tmp_path / "taken.pbin")
    before = {path.name: (path.read_bytes(), path.lstat().st_ino) for path in tmp_path.iterdir()}
    said = cli([*(word.format(tmp_path) for word in command), "--executor", "local"], 1).err
    assert "taken.pbin: expected another file than the input" in said or "other than the file itself" in said
    assert {path.name: (path.read_bytes(), path.lstat().st_ino) for path in tmp_path.iterdir()} == before
