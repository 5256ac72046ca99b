"""Rows of Ray Data become the dataset that the same rows in a file become, whatever their blocks.

Most tests use a sink's parts without Ray, as a pipeline of another kind does.
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dsindex
from tests.jobs.api.calls import TOKENIZER
from tests.support.golden import ROOT
from tests.support.local_cluster import local_cluster
from tests.support.processes import wait_until

pytest.importorskip("pandas", reason="Ray Data needs pandas (the extra ray-data)")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TEXTS = [f"document {number} " * (number % 7) for number in range(400)]
ROWS = pa.table(
    {
        "text": TEXTS,
        "title": [f"title {number}" for number in range(400)],
        "parts": [[text[:9], text[9:]] for text in TEXTS],
        "ids": [[number % 50] * (number % 5) for number in range(400)],
        "source": [("web", "C++", "книги")[number % 3 if number > 90 else 0] for number in range(400)],
    }
)
OPTIONS = {
    "text": {},
    "two-keys": {"json_keys": ["text", "title"]},
    "lists": {"json_keys": ["parts"]},
    "joined": {"json_keys": ["title", "text"], "join": "\n"},
    "ids": {"token_ids": "ids"},
    "shuffled": {"shuffle_documents": 7},
    "sampled": {"sample": "50%"},
    "by-source": {"output_by": "source", "json_keys": ["text", "title"], "hold_out": "10%", "hold_out_by": "title"},
    "by-source-ids": {"output_by": "source", "token_ids": "ids"},
    "by-jq": {"output_by": '.source // "none" | ascii_upcase'},
}


def blocks_of(table, num_blocks):
    step = -(-table.num_rows // num_blocks)
    return [table.slice(number * step, step) for number in range(num_blocks)]


def build_blocks(table, num_blocks, **options):
    sink = dsindex.datasink(tokenizer=TOKENIZER, **options)
    sink.begin()
    try:
        return sink.finish([made for block in blocks_of(table, num_blocks) for made in sink.make(block)])
    except BaseException:
        sink.give_up()
        raise


def files_of(result, *suffixes):
    return [Path(f"{prefix}.{suffix}").read_bytes() for prefix in result.prefixes for suffix in suffixes]


def content_of(result):
    contents = [json.loads(Path(f"{prefix}.manifest.json").read_bytes())["content"] for prefix in result.prefixes]
    for content in contents:
        content["options"].pop("outputs", None)  # names that begin with the prefix
    return contents


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", OPTIONS)
def test_rows_become_what_a_file_of_them_becomes(name, tmp_path):
    options = {"append_eod": True, **OPTIONS[name]}
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    expected = dsindex.build(tmp_path / "rows.parquet", tokenizer=TOKENIZER, output_prefix=tmp_path / "file", **options)
    built = [build_blocks(ROWS, number, output_prefix=tmp_path / f"rows{number}", **options) for number in (1, 7)]
    for result in built:
        assert files_of(result, "bin", "idx") == files_of(expected, "bin", "idx")
        assert dsindex.verify(result)
    assert files_of(built[0], "provenance.parquet") == files_of(built[1], "provenance.parquet")
    assert content_of(built[0]) == content_of(built[1])
    assert not list(tmp_path.glob("*.build"))


@pytest.mark.parametrize("more", [{}, {"output_by": "source"}], ids=["plain", "by"])
def test_finished_rows_are_only_compared(tmp_path, more):
    options = {"append_eod": True, "output_prefix": tmp_path / "out", **more}
    first = build_blocks(ROWS, 3, **options)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    for consent in ({}, {"replace": True}):
        assert build_blocks(ROWS, 5, **options, **consent).already_complete
    with pytest.raises(dsindex.DsindexError, match=r"the input <ray\.data> was written again"):
        build_blocks(ROWS.slice(1), 2, **options)
    swapped = pa.concat_tables([ROWS.slice(1, 1), ROWS.slice(0, 1), ROWS.slice(2)])
    with pytest.raises(dsindex.DsindexError, match="finished output of another plan"):
        build_blocks(swapped, 2, **options)
    with pytest.raises(dsindex.DsindexError, match=r"append-eod was on .* and is off"):
        build_blocks(ROWS, 2, **{**options, "append_eod": False})
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    replaced = build_blocks(ROWS.slice(1), 2, **options, replace=True)
    then, now = (sum(each.num_documents for each in result.datasets) for result in (first, replaced))
    assert now == then - 1
    assert not list(tmp_path.glob("*.build"))


REFUSED = {
    "no-rows": (ROWS.slice(0, 0), {}, r"<ray\.data>: expected at least one row, got none"),
    "no-column": (ROWS, {"json_keys": ["body"]}, r"<ray\.data>: expected the column 'body', got no such column"),
    "bad-row": (pa.table({"text": ["a", None]}), {}, r"<ray\.data>, row {'text': None}: .*on.bad.record quarantine"),
    "option-of-files": (ROWS, {"input_format": "lines"}, "there is no option 'input_format'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rows_are_refused_in_a_sentence_and_leave_nothing(name, tmp_path):
    table, options, message = REFUSED[name]
    with pytest.raises(dsindex.DsindexError, match=message) as refused:
        build_blocks(table, 2, output_prefix=tmp_path / "out", **options)
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir() if path.name != "out.build"] == []


def test_bad_rows_are_set_aside_with_their_numbers(tmp_path):
    table = pa.table({"text": ["a", "b", None, "c", "d", None]})
    built = [build_blocks(table, n, output_prefix=tmp_path / str(n), on_bad_record="quarantine") for n in (1, 3)]
    stored = [pa.input_stream(f"{result.prefixes[0]}.quarantine.jsonl.zst", compression="zstd") for result in built]
    first, second = ([json.loads(line) for line in stream.read().splitlines()] for stream in stored)
    assert [(entry["file"], entry["line"]) for entry in first] == [("<ray.data>", 3), ("<ray.data>", 6)]
    assert first == second


@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance")
@pytest.mark.parametrize("lists", ["ragged", "equal"])
def test_pipeline_becomes_what_a_file_of_its_rows_becomes(lists, tmp_path):
    """Batches of numpy arrays, which Ray Data makes tensors, of different lengths or of the same one."""
    import numpy as np
    import ray.data

    table = pa.table({"ids": ROWS["ids"].to_pylist() if lists == "ragged" else [[1, 2]] * 40})
    options = {"tokenizer": TOKENIZER, "token_ids": "ids"}
    pq.write_table(table, tmp_path / "rows.parquet")
    expected = dsindex.build(tmp_path / "rows.parquet", output_prefix=tmp_path / "file", **options)
    arrays = ray.data.from_arrow(blocks_of(table, 3)).map_batches(
        lambda batch: {"ids": [np.array(ids, np.int64) for ids in batch["ids"]]}, batch_format="numpy"
    )
    built = dsindex.build(arrays, output_prefix=tmp_path / "rows", **options)
    assert files_of(built, "bin", "idx") == files_of(expected, "bin", "idx")


@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance")
@pytest.mark.parametrize("setting", ["preserve_order", "max_errored_blocks"])
def test_pipelines_that_lose_order_or_rows_are_refused(setting, tmp_path):
    import ray.data

    dataset = ray.data.from_arrow(blocks_of(ROWS, 2))
    dataset.context.execution_options.preserve_order = setting != "preserve_order"
    dataset.context.max_errored_blocks = 5 if setting == "max_errored_blocks" else 0
    with pytest.raises(Exception, match=f"expected {setting}"):
        dataset.write_datasink(dsindex.datasink(tokenizer=TOKENIZER, output_prefix=tmp_path / "out"))
    assert not list(tmp_path.glob("out_*"))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance")
def test_error_of_a_block_is_told_as_any(tmp_path):
    import ray.data

    table, _, message = REFUSED["bad-row"]
    with pytest.raises(dsindex.DsindexError, match=message) as refused:
        dsindex.build(ray.data.from_arrow(table), tokenizer=TOKENIZER, output_prefix=tmp_path / "out")
    assert "\n" not in str(refused.value)


PIPELINE = """\
import os, sys, time
import ray, dsindex

folder, gate, tokenizer = sys.argv[1:]
ray.init(address="auto", log_to_driver=False)

def wait(batch):
    while batch["number"][0] >= 200 and not os.path.exists(gate):
        time.sleep(0.05)
    return batch

ray.data.DataContext.get_current().execution_options.preserve_order = True
rows = ray.data.read_parquet(f"{folder}/rows").repartition(16).map_batches(wait, batch_size=None)
sink = dsindex.datasink(tokenizer=tokenizer, append_eod=True, output_prefix=f"{folder}/out/rows")
rows.write_datasink(sink)
print(sink.result)
"""


@pytest.mark.exhaustive
@pytest.mark.ray
@pytest.mark.parametrize("lost", ["driver", "node"])
def test_pipeline_on_two_nodes_survives_a_kill(lost, tmp_path):
    """What was tokenized is kept. A lost node ends nothing; after the driver's end, the same command goes on."""
    table = ROWS.append_column("number", pa.array(range(400)))
    (tmp_path / "rows").mkdir()
    for number in range(16):
        pq.write_table(table.slice(number * 25, 25), tmp_path / "rows" / f"{number:02}.parquet")
    expected = dsindex.build(tmp_path / "rows", tokenizer=TOKENIZER, append_eod=True, output_prefix=tmp_path / "file")
    gate, made = tmp_path / "gate", lambda: set(tmp_path.glob("out/rows.build/shards/*/*.rows"))
    command = [sys.executable, "-c", PIPELINE, str(tmp_path), str(gate), str(TOKENIZER)]
    with local_cluster(2) as cluster, open(tmp_path / "log", "wb") as log:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        environment |= {**cluster.access, "PYTHONPATH": str(ROOT)}
        driver = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_until(lambda: len(made()) >= 4 or driver.poll() is not None, "four blocks")
            assert driver.poll() is None, (tmp_path / "log").read_text()
            if lost == "node":
                cluster.script("remove")
        finally:
            if lost == "driver" or not made():
                driver.kill()
                driver.wait()
        assert not list(tmp_path.glob("out/rows_*"))
        kept = {path: path.stat().st_mtime_ns for path in made()}
        last = min(kept)
        bins = sorted(last.parent.glob(f"*.{last.name.split('.')[1][:16]}*.bin"))
        gate.touch()
        if lost == "driver":
            driver = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        seen = set()
        while driver.poll() is None:
            with contextlib.suppress(FileNotFoundError):
                seen |= {(path, path.stat().st_mtime_ns) for path in made() & kept.keys()}
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(0.05)
        assert driver.returncode == 0, (tmp_path / "log").read_text()
    assert bins
    assert seen <= set(kept.items())  # none was made again
    for suffix in ("bin", "idx"):
        found = (tmp_path / "out" / f"rows_text_document.{suffix}").read_bytes()
        assert found == Path(f"{expected.prefixes[0]}.{suffix}").read_bytes()
    assert dsindex.verify(tmp_path / "out" / "rows_text_document")
    assert not (tmp_path / "out" / "rows.build").exists()
