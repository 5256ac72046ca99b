"""Instruction data in buckets: the same bytes as on a disk, in all its datasets."""

import pytest

from dsindex.cli.main import main
from dsindex.execution import local
from dsindex.instruction.config import check_config
from tests.faults.object_kills import objects
from tests.jobs.instruct.instruct_jobs import job
from tests.jobs.objects.conftest import make_ranges_small
from tests.support.conversations import SPEC
from tests.support.jobs import run_config
from tests.support.published import published


def instruct(prefix, **options):
    length = options.get("seq_length", 768)
    instruction = check_config({**SPEC, "max_length": length, "too_long": "truncate"}, source="test")
    return run_config(job(prefix, **{"on_bad_record": "fail", **options}), instruction)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disk")
    with pytest.MonkeyPatch.context() as patched:
        make_ranges_small(patched)
        instruct(str(folder / "x"), shard_size=None)
    return published(folder)


@pytest.mark.quick(1)
@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize(
    "options", [{}, {"shard_size": "5KiB", "workers": 1}, {"work_dir": "disk"}], ids=["16KiB", "5KiB", "work on a disk"]
)
def test_objects_are_the_files_of_a_disk(options, store, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "RECENT_BYTES", 0 if options else 1 << 20)  # what is held needs no request
    work = {"work_dir": str(tmp_path / "work")} if "work_dir" in options else {}
    instruct("s3://out/data/x", **{**options, **work})
    assert objects(store, "data") == expected
    assert not store.names("out", "data/x.build")
    assert not store.uploads
    assert instruct("s3://out/data/x", **{**options, **work}).already_complete


@pytest.mark.usefixtures("small_ranges")
def test_output_may_be_on_a_disk(store, expected, tmp_path):
    """Its exports are made from there."""
    instruct(str(tmp_path / "x"), work_dir="s3://out/work", export=("hf",))
    assert published(tmp_path) == expected
    assert list((tmp_path / "x_hf").iterdir())
    assert not store.names("out")


def test_packing_of_another_length_is_removed(store):
    """It does not fit the new tokens; the store's address is known by a flag alone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        for length in (768, 512):
            instruct("s3://out/x", seq_length=length, split=None, fresh=True, endpoint_url=store.url)
    packings = sorted(name for name in store.names("out") if "packing" in name)
    assert packings == ["x_packing_512.bin", "x_packing_512.idx", "x_packing_512.manifest.json"]


def test_exports_need_a_disk(tmp_path, capsys):
    (tmp_path / "chat.yaml").write_text("special_tokens: {}")
    words = ["instruct", str(tmp_path / "chat.yaml"), "--input", "a.jsonl", "--tokenizer-model", "t", "--export", "hf"]
    assert main([*words, "--output-prefix", "s3://out/x"]) == 2
    assert "s3://out/x: expected an output on a disk with --export" in capsys.readouterr().err
