"""Ranges of the output that are merged while shards are still made: that it happens, and that nothing else changes."""

import json
import os
import re

import pytest

from dsindex.options.build import BuildConfig
from dsindex.runtime.executors import ThreadExecutor
from dsindex.runtime.work_folder import Journal, RangeMerged
from dsindex.store.read import digest_file
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config
from tests.support.published import read_pair

STEP = 4096
"""Bytes of a range, and so of a digest block, in these tests."""


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch):
    monkeypatch.setattr("dsindex.runtime.job.RANGE_BYTES", STEP)
    monkeypatch.setattr("dsindex.store.local.DIGEST_BLOCK_BYTES", STEP)


@pytest.mark.parametrize("name", ["eod", "keys"])
def test_ranges_are_merged_before_the_last_shard_is_begun(name, tmp_path, monkeypatch):
    started, start = [], ThreadExecutor.start

    def recorded(executor, call, **options):
        started.append(call.name)
        return start(executor, call, **options)

    monkeypatch.setattr(ThreadExecutor, "start", recorded)
    run = OWN.run(name)
    settings = {"tokenizer_model": str(run.tokenizer), "json_keys": run.json_keys, "append_eod": True}
    settings |= {"output_prefix": str(tmp_path / run.name), "workers": 1, "shard_size": "4KiB", "replace": True}
    run_config(config_of(BuildConfig, run.input, **settings))
    last = max(index for index, name in enumerate(started) if name.startswith("tokenize["))
    assert len([name for name in started[:last] if name.startswith("merge[")]) >= 6
    merged = [name for name in started if name.startswith("merge[")]
    assert len(merged) == len(set(merged))
    for key, expected in run.prefixes.items():
        prefix = tmp_path / f"{run.name}_{key}_document"
        assert read_pair(prefix) == read_pair(expected)
        recorded = json.loads((tmp_path / f"{prefix.name}.manifest.json").read_bytes())["content"]["digests"]["bin"]
        assert recorded["xxh3_128"] == digest_file(f"{prefix}.bin")
    assert not list(tmp_path.glob("*.partial"))


def test_what_a_power_cut_must_not_take_is_synced_first(make_config, monkeypatch):
    """A range before it is recorded, its record before tokens of shards go, and the .bin before the .idx is there."""
    events = []

    def note(owner, name, describe):
        function = getattr(owner, name)

        def noted(*arguments, **options):
            events.append(describe(arguments[-1]))
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, noted)

    def name_of(path):
        return re.sub(r"^docs_text_document|^0.*(?=\.bin)|\.\w+\.partial$", "", os.path.basename(path))

    note(os, "fsync", lambda descriptor: f"sync {name_of(os.readlink(f'/proc/self/fd/{descriptor}'))}")
    note(os, "unlink", lambda path: f"remove {name_of(path)}")
    note(os, "replace", lambda path: f"name {name_of(path)}")
    note(Journal, "record", lambda line: "record" if isinstance(line, RangeMerged) else "other")
    run_config(make_config(workers=1, shard_size="4KiB"))
    assert {"record", "remove .bin", "name .idx"} <= {*events}
    for number, event in enumerate(events):
        before = events[:number]
        if event == "record":
            assert before.count("sync .bin") > before.count("record")
        if event == "remove .bin":
            assert [past for past in before if past in {"record", "sync journal.jsonl"}][-1] == "sync journal.jsonl"
        if event == "name .idx":
            assert [past for past in before if past in {"name .bin", "sync out"}][-2:] == ["name .bin", "sync out"]
