"""Trust no file: damaged files of every kind give our own errors only, at once, and cost no memory that they claim."""

import json
import os
import random
import shutil
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.provenance import count_rows, read_rows
from dsindex.engine.inputs import InputFile
from dsindex.engine.ledger import Ledger
from dsindex.engine.manifest import files_have_recorded_sizes, read_manifest
from dsindex.engine.merge import check_parts, make_index, open_part
from dsindex.engine.plan import Plan, describe_inputs, describe_settings
from dsindex.engine.progress import Reporter
from dsindex.engine.start import make_executor
from dsindex.errors import DsindexError
from dsindex.formats.mmididx import check_index, read_index
from dsindex.jobs.build import run_build
from dsindex.jobs.index import run_index
from dsindex.options.build import BuildConfig
from dsindex.options.datasets import VerifyConfig
from dsindex.options.index import IndexConfig
from dsindex.store.lock import hold_lock
from dsindex.tools.verify import verify_dataset
from dsindex.tools.verify_caches import find_caches, verify_cache
from tests.support.damage import damage_bytes, damage_json
from tests.support.golden import OWN

CASES = int(os.environ.get("DSINDEX_FUZZ_CASES", "25"))
"""Damaged files of each kind; the long form has 10,000."""
ALLOWANCE_BYTES = 12 << 20
"""Buffers of a fixed size, at most two of 4 MiB at a time, and what libraries keep."""

TEXTS = ["one text", "", "and another, a little longer", "three", "four <|endoftext|> five", "six seven eight"]


class Sample:
    """A small dataset with all that belongs to it, and a place for one damaged copy."""

    def __init__(self, folder):
        self.folder = folder
        source = folder / "docs.jsonl"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS * 2))
        self.prefix = str(folder / "whole" / "docs_text_document")
        self.executor = make_executor(VerifyConfig("x", executor="local", workers=1))
        self.reporter = Reporter()
        run_build(self.config("whole"), reporter=self.reporter)
        self.copy = folder / "copy"
        self.again()
        index = IndexConfig(
            data_path=(self.damaged,),  # whose path the caches name
            seq_length=8,
            epochs="2",
            split="90,10,0",
            data_cache_path=str(folder / "whole" / "cache"),
            executor="local",
        )
        run_index(index, executor=self.executor)
        inputs = tuple(InputFile(path=p, absolute_path=p, size_bytes=size, version=v) for p, size, v in self._plan())
        self.plan = Plan(settings={"shard-size": 1, "tokenizer": "t"}, inputs=inputs)
        self.again()

    def config(self, place):
        return BuildConfig(
            input=(str(self.folder / "docs.jsonl"),),
            tokenizer_model=str(OWN.plain_tokenizer),
            append_eod=True,
            output_prefix=str(self.folder / place / "docs"),
            executor="local",
            workers=1,
            shard_size=200,
            keep_shards=True,
        )

    def _plan(self):
        return read_manifest(self.prefix).run.plan["inputs"]

    def again(self):
        """Make the copy whole again."""
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.folder / "whole", self.copy)

    @property
    def damaged(self):
        return str(self.copy / "docs_text_document")

    def files(self, kind):
        return sorted(path for path in self.copy.glob(PATTERNS[kind]) if path.is_file())


PATTERNS = {
    "idx": "*.idx",
    "bin": "*.bin",
    "manifest": "*.manifest.json",
    "provenance": "*.provenance.parquet",
    "cache": "cache/*",
    "ledger": "docs.build/ledger.jsonl",
    "shard": "docs.build/shards/*/*",
    "owner": "docs.build/owner.json",
}


def read_dataset(sample, _path):
    for check in (True, False):
        with suppress(DsindexError), IndexedDataset(sample.damaged, check=check) as dataset:
            for number in range(min(len(dataset), 50)):
                with suppress(DsindexError):
                    dataset[number].sum()
            with suppress(DsindexError):
                dataset[0:50]
            for document in range(min(len(dataset.document_indices) - 1, 50)):
                with suppress(DsindexError):
                    dataset.document(document).sum()
    with suppress(DsindexError):
        index = read_index(f"{sample.damaged}.idx")
        check_index(f"{sample.damaged}.idx", index, bin_size_bytes=Path(f"{sample.damaged}.bin").stat().st_size)
    with suppress(DsindexError):
        part = open_part(sample.damaged)
        check_parts([part])
        make_index([part, part], str(sample.folder / "merged.idx"))
    for cache in find_caches(str(sample.copy / "cache"), sample.damaged):
        with suppress(DsindexError):
            verify_cache(cache, sample.damaged)


def verify(sample, _path):
    config = VerifyConfig(sample.damaged, executor="local", workers=1, cache=str(sample.copy / "cache"))
    verify_dataset(sample.damaged, config, reporter=sample.reporter)  # damage is a finding, never an error


def read_manifests(sample, path):
    with suppress(DsindexError):
        manifest = read_manifest(sample.damaged)
        if manifest is not None:
            describe_settings(manifest.run.plan, sample.plan)
            describe_inputs(manifest.run.plan, sample.plan)
            files_have_recorded_sizes(sample.damaged, manifest)
    verify(sample, path)


def read_provenance(sample, path):
    with suppress(DsindexError):
        read_rows(str(path), 0, min(count_rows(str(path)), 100))
    verify(sample, path)


def read_work_folder(sample, path):
    with suppress(DsindexError):
        ledger = Ledger(str(sample.copy / "docs.build"))
        if ledger.plan is not None:
            describe_settings(ledger.plan, sample.plan)
            describe_inputs(ledger.plan, sample.plan)
    if path.name == "owner.json":
        with suppress(DsindexError), hold_lock(str(path), what="a fuzzed job"):
            pass


def check_caches(sample, _path):
    for cache in find_caches(str(sample.copy / "cache"), sample.damaged):
        verify_cache(cache, sample.damaged)


READERS = {
    "idx": [read_dataset, verify],
    "bin": [read_dataset, verify],
    "manifest": [read_manifests],
    "provenance": [read_provenance],
    "cache": [check_caches],
    "ledger": [read_work_folder],
    "shard": [read_work_folder],
    "owner": [read_work_folder],
}


def with_checksum(body):
    return xxhash.xxh3_64_hexdigest(body).encode() + b" " + body + b"\n"


def damage(data, kind, rng):
    """Damage a file as bytes, or as the JSON that it holds, with a checksum that is right."""
    if rng.random() < 0.6:
        if kind in {"manifest", "owner"}:
            return json.dumps(damage_json(json.loads(data), rng)).encode()
        if kind == "ledger":
            lines = data.splitlines()
            at = rng.randrange(len(lines))
            entry = damage_json(json.loads(lines[at].partition(b" ")[2]), rng)
            return b"".join(
                with_checksum(json.dumps(entry).encode()) if number == at else line + b"\n"
                for number, line in enumerate(lines)
            )
        if kind == "cache" and data.startswith(b"{"):
            return json.dumps(damage_json(json.loads(data), rng), indent=4).encode()
    return damage_bytes(data, rng)


def run_case(sample, kind, seed):
    """Damage one file, let every reader of it loose on the copy, and look at memory."""
    rng = random.Random(f"{kind} {seed}")
    path = rng.choice(sample.files(kind)) if kind != "owner" else sample.copy / "docs.build" / "owner.json"
    original = path.read_bytes() if kind != "owner" else OWNER
    content = damage(original, kind, rng)
    path.write_bytes(content)
    folder_bytes = sum(file.stat().st_size for file in sample.copy.rglob("*") if file.is_file())
    try:
        tracemalloc.start()
        for reader in READERS[kind]:
            reader(sample, path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        path.write_bytes(original)
        if kind == "owner":
            path.unlink()
    assert peak <= 2 * folder_bytes + ALLOWANCE_BYTES, f"{kind} {seed}: {peak} bytes for {folder_bytes}"


OWNER = b'{"host": "here", "boot": "b", "pid": 1, "started": "5", "token": "t"}'


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk():
    """What is written is not kept: thousands of syncs would be most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _descriptor: None)
        yield


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return Sample(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", PATTERNS)
def test_damaged_file_gives_own_errors_only(kind, sample):
    @settings(
        max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
    )
    @given(seed=st.integers(0, 2**32))
    def check(seed):
        run_case(sample, kind, seed)

    for reader in READERS[kind]:  # once undamaged: imports and caches do not count
        reader(sample, sample.copy / "none")
    check()


def test_damage_is_noticed(sample):
    """The cases above mean nothing if the damage never reaches a reader."""
    path = Path(f"{sample.damaged}.idx")
    original = path.read_bytes()
    noticed = 0
    for seed in range(30):
        path.write_bytes(damage_bytes(original, random.Random(seed)))
        with suppress(DsindexError):
            IndexedDataset(sample.damaged).close()
            continue
        noticed += 1
    path.write_bytes(original)
    assert noticed > 20


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", ["ledger", "shard", "manifest"])
@pytest.mark.parametrize("seed", range(3))
def test_build_resumes_from_damaged_files_to_the_same_bytes(kind, seed, sample):
    """A driver that finds its own work folder damaged makes again what is damaged, or says why it cannot."""
    folder = sample.folder / "resumed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    run_build(sample.config("resumed"), reporter=sample.reporter)
    for suffix in ("manifest.json", "idx") if kind != "manifest" else ("idx",):
        (folder / f"docs_text_document.{suffix}").unlink()
    rng = random.Random(seed)
    path = rng.choice(sorted(folder.glob(PATTERNS[kind])))
    path.write_bytes(damage_bytes(path.read_bytes(), rng))
    with suppress(DsindexError):
        run_build(sample.config("resumed"), reporter=sample.reporter)
        for suffix in ("bin", "idx", "provenance.parquet"):
            whole = Path(f"{sample.prefix}.{suffix}").read_bytes()
            assert (folder / f"docs_text_document.{suffix}").read_bytes() == whole
