"""A kind of job says only what differs: a seventh one, with resume and publishing, is about a page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from dsindex.datasets.indexed import IndexedDataset
from dsindex.engine.assemble import TokenSource
from dsindex.engine.frame import Job, Made, run_job
from dsindex.engine.identity import Plan
from dsindex.engine.input_paths import find_paths
from dsindex.engine.inputs import look_at_inputs, plan_shards
from dsindex.engine.manifest import Content
from dsindex.engine.outputs import MEGATRON_SUFFIXES, Output
from dsindex.engine.progress import Reporter
from dsindex.engine.publishing import Dataset, Target
from dsindex.engine.shards.tokenize import KeyResult, ShardResult, shard_attempt
from dsindex.engine.tokenize import make_shards
from dsindex.errors import InputError, OutputError, PlanError
from dsindex.options.config import WorkConfig, work_folder_path
from dsindex.store.reading import fingerprint_input

BYTES = np.dtype("u1")


@dataclass(frozen=True, kw_only=True)
class BytesSettings:
    work_dir: str


def write_bytes(task, settings):
    """Make a document of every whole file: its bytes are its tokens."""
    with open(task.path, "rb") as file, shard_attempt(task, settings.work_dir) as attempt:
        data = np.frombuffer(file.read(), BYTES)
        part = attempt.open_part("0", BYTES)
        part.add(data, np.array([len(data)]), np.array([1]))
        bin_file, idx_file = part.finish()
        attempt.commit()
    key = KeyResult(
        key="bytes", num_sequences=1, num_documents=1, num_tokens=len(data), num_empty_documents=0, eod_in_text=0,
        bin=bin_file, idx=idx_file,
    )  # fmt: skip
    return ShardResult(
        shard=task.shard, num_lines=1, num_blank=0, num_records=1, num_quarantined=0, keys=(key,), provenance=None,
        quarantine=None, input_fingerprint=fingerprint_input(task.path),
    )  # fmt: skip


def run_bytes(config, paths, reporter, function=write_bytes):
    """The whole job; returns whether it was complete already."""
    plan = Plan(settings={"output-prefix": config.output_prefix}, inputs=tuple(look_at_inputs(find_paths(paths))))
    target = Target(prefix=config.output_prefix, plan_id=plan.plan_id, bound_bytes=1 << 20)
    source = TokenSource(target=target, key="bytes", dtype=BYTES, work_dir=work_folder_path(config))

    def make(work):
        settings = BytesSettings(work_dir=work_folder_path(config))
        tasks = list(plan_shards(plan.inputs, 1 << 20))
        results = make_shards(work, tasks, settings, sources=[source], function=function)
        dataset = Dataset(target=target, parts=tuple(map(source.part_of, results)), provenance=None)
        return Made(groups=((dataset,),), num_shards=len(results))

    def describe(made, files):
        header = made.groups[0][0].header
        counts = {"documents": header.num_documents, "sequences": header.num_sequences, "tokens": 0}
        return [Content(inputs=[], **counts, token_dtype="uint8", digests=files[0])]

    output = Output(prefix=config.output_prefix, suffixes=MEGATRON_SUFFIXES)
    job = Job(config=config, plan=plan, outputs=(output,), make=make, describe=describe, examine=lambda: None)
    return run_job(job, reporter=reporter).already_complete


def test_tiny_job_publishes_resumes_and_owns(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text(name * 5)
    paths = [str(tmp_path / name) for name in "abc"]
    config = WorkConfig(output_prefix=str(tmp_path / "out" / "bytes"), executor="local", workers=1)
    done = []

    def fail_at_the_third(task, settings):
        if task.path.endswith("c") and done == paths[:2]:
            raise InputError("the storage went away")
        done.append(task.path)
        return write_bytes(task, settings)

    with pytest.raises(InputError, match="the storage went away"):
        run_bytes(config, paths, Reporter(), fail_at_the_third)
    assert not (tmp_path / "out" / "bytes.idx").exists()
    done.clear()
    assert not run_bytes(config, paths, Reporter(), fail_at_the_third)
    assert done == paths[2:]
    data = IndexedDataset(config.output_prefix)
    assert [bytes(data[number]).decode() for number in range(len(data))] == ["aaaaa", "bbbbb", "ccccc"]
    published = ["bytes.bin", "bytes.idx", "bytes.manifest.json", "bytes.progress.json"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == published
    assert run_bytes(config, paths, Reporter())
    with pytest.raises(PlanError, match="the inputs are in another order"):
        run_bytes(config, paths[::-1], Reporter())
    (tmp_path / "out" / "bytes.manifest.json").unlink()
    with pytest.raises(OutputError, match="exists already, and no manifest says that dsindex made it"):
        run_bytes(config, paths, Reporter())
