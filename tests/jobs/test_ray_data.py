"""Rows of Ray Data become the dataset that the same rows in a file become, whatever their blocks."""

import contextlib
import json
import os
import signal
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
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TEXTS = [f"document {number} " * (number % 7) for number in range(400)]
ROWS = pa.table(
    {
        "text": TEXTS,
        "title": [f"title {number}" for number in range(400)],
        "parts": [[text[:9], text[9:]] for text in TEXTS],
        "ids": [[number % 50] * (number % 5) for number in range(400)],
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
}


@pytest.fixture
def rows(ray_instance):  # noqa: ARG001 - Ray Data uses it
    """Return a function that makes a Ray Data dataset of a table in so many blocks."""
    import ray.data

    def make(table, num_blocks):
        step = -(-table.num_rows // num_blocks)
        return ray.data.from_arrow([table.slice(number * step, step) for number in range(num_blocks)])

    return make


def files_of(result, *suffixes):
    return [Path(f"{prefix}.{suffix}").read_bytes() for prefix in result.prefixes for suffix in suffixes]


def content_of(result):
    return [json.loads(Path(f"{prefix}.manifest.json").read_bytes())["content"] for prefix in result.prefixes]


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", OPTIONS)
def test_rows_become_what_a_file_of_them_becomes(name, tmp_path, rows):
    options = {"tokenizer": TOKENIZER, "append_eod": True, **OPTIONS[name]}
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    expected = dsindex.build(tmp_path / "rows.parquet", output_prefix=tmp_path / "file", **options)
    built = [
        dsindex.build(rows(ROWS, number), output_prefix=tmp_path / f"rows{number}", **options) for number in (1, 7)
    ]
    for result in built:
        assert files_of(result, "bin", "idx") == files_of(expected, "bin", "idx")
        assert dsindex.verify(result)
    assert files_of(built[0], "provenance.parquet") == files_of(built[1], "provenance.parquet")
    assert content_of(built[0]) == content_of(built[1])
    assert not list(tmp_path.glob("*.build"))


def test_arrays_of_ids_are_lists(tmp_path, rows):
    """Batches of numpy arrays, which Ray Data makes tensors, of different lengths or of the same one."""
    import numpy as np

    options = {"tokenizer": TOKENIZER, "token_ids": "ids"}
    for name, lists in (("ragged", ROWS["ids"].to_pylist()), ("equal", [[1, 2]] * 40)):
        pq.write_table(pa.table({"ids": lists}), tmp_path / f"{name}.parquet")
        expected = dsindex.build(tmp_path / f"{name}.parquet", output_prefix=tmp_path / f"file-{name}", **options)
        arrays = rows(pa.table({"ids": lists}), 3).map_batches(
            lambda batch: {"ids": [np.array(ids, np.int64) for ids in batch["ids"]]}, batch_format="numpy"
        )
        built = dsindex.build(arrays, output_prefix=tmp_path / f"rows-{name}", **options)
        assert files_of(built, "bin", "idx") == files_of(expected, "bin", "idx")


def test_finished_rows_are_only_compared(tmp_path, rows):
    options = {"tokenizer": TOKENIZER, "append_eod": True, "output_prefix": tmp_path / "out"}
    first = dsindex.build(rows(ROWS, 3), **options)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    for consent in ({}, {"replace": True}):
        assert dsindex.build(rows(ROWS, 5), **options, **consent).already_complete
    with pytest.raises(dsindex.DsindexError, match=r"the input <ray\.data> was written again"):
        dsindex.build(rows(ROWS.slice(1), 2), **options)
    swapped = pa.concat_tables([ROWS.slice(1, 1), ROWS.slice(0, 1), ROWS.slice(2)])
    with pytest.raises(dsindex.DsindexError, match="finished output of another plan"):
        dsindex.build(rows(swapped, 2), **options)
    with pytest.raises(dsindex.DsindexError, match=r"append-eod was on .* and is off"):
        dsindex.build(rows(ROWS, 2), **{**options, "append_eod": False})
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    replaced = dsindex.build(rows(ROWS.slice(1), 2), **options, replace=True)
    assert replaced.datasets[0].num_documents == first.datasets[0].num_documents - 1
    assert not list(tmp_path.glob("*.build"))


REFUSED = {
    "no-rows": (ROWS.slice(0, 0), {}, r"<ray\.data>: expected at least one row, got none"),
    "no-column": (ROWS, {"json_keys": ["body"]}, r"<ray\.data>: expected the column 'body', got no such column"),
    "bad-row": (pa.table({"text": ["a", None]}), {}, r"<ray\.data>, row {'text': None}: .* on_bad_record quarantine"),
    "option-of-files": (ROWS, {"input_format": "lines"}, "there is no option 'input_format'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rows_are_refused_in_a_sentence_and_leave_nothing(name, tmp_path, rows):
    table, options, message = REFUSED[name]
    with pytest.raises(dsindex.DsindexError, match=message) as refused:
        dsindex.build(rows(table, 2), tokenizer=TOKENIZER, output_prefix=tmp_path / "out", **options)
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir() if path.name != "out.build"] == []


SETTINGS = {
    "any-order": (lambda _: None, "expected preserve_order"),
    "errors-skipped": (lambda context: setattr(context, "max_errored_blocks", 5), "expected max_errored_blocks 0"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_sink_refuses_pipelines_that_lose_order_or_rows(name, tmp_path, rows):
    change, message = SETTINGS[name]
    dataset = rows(ROWS, 2)
    dataset.context.execution_options.preserve_order = name != "any-order"
    change(dataset.context)
    with pytest.raises(Exception, match=message):
        dataset.write_datasink(dsindex.datasink(tokenizer=TOKENIZER, output_prefix=tmp_path / "out"))
    assert not list(tmp_path.glob("out_*"))


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
def test_killed_pipeline_on_two_nodes_keeps_what_was_tokenized(tmp_path):
    table = ROWS.append_column("number", pa.array(range(400)))
    (tmp_path / "rows").mkdir()
    for number in range(16):
        pq.write_table(table.slice(number * 25, 25), tmp_path / "rows" / f"{number:02}.parquet")
    expected = dsindex.build(tmp_path / "rows", tokenizer=TOKENIZER, append_eod=True, output_prefix=tmp_path / "file")
    gate, made = tmp_path / "gate", lambda: set(tmp_path.glob("out/rows.build/shards/*/*.rows"))
    command = [sys.executable, "-c", PIPELINE, str(tmp_path), str(gate), str(TOKENIZER)]
    with local_cluster(2) as cluster:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        environment |= {**cluster.access, "PYTHONPATH": str(ROOT)}
        with open(tmp_path / "log", "wb") as log:
            driver = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_until(lambda: len(made()) >= 4 or driver.poll() is not None, "four blocks")
            assert driver.poll() is None, (tmp_path / "log").read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                driver.send_signal(signal.SIGKILL)
            driver.wait()
        assert not list(tmp_path.glob("out/rows_*"))
        kept = {path: path.stat().st_mtime_ns for path in made()}
        last = min(kept)
        bins = sorted(last.parent.glob(f"*.{last.name.split('.')[1][:16]}*.bin"))
        gate.touch()
        with open(tmp_path / "log", "wb") as log:
            driver = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        seen = set()
        while driver.poll() is None:
            seen |= {(path, path.stat().st_mtime_ns) for path in made() & kept.keys() if path.exists()}
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
