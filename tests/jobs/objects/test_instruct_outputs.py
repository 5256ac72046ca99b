"""Instruction data in buckets: the same bytes as on a disk, in all its datasets."""

import pytest

from dsindex.cli.main import main
from dsindex.instruction.config import check_config
from tests.jobs.instruct.instruct_jobs import job
from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.jobs import run_config


def instruct(prefix, **options):
    length = options.get("seq_length", 768)
    instruction = check_config({**SPEC, "max_length": length, "too_long": "truncate"}, source="test")
    return run_config(job(prefix, **{"on_bad_record": "fail", **options}), instruction)


@pytest.mark.usefixtures("small_ranges")
def test_exports_are_made_from_work_in_a_bucket(store, tmp_path):
    chats = tmp_path / "chats.jsonl"
    chats.write_bytes(b"".join(CONVERSATIONS.read_bytes().splitlines(keepends=True)[:60]))
    for name, work in (("here", str(tmp_path / "work")), ("there", "s3://out/work")):
        instruct(str(tmp_path / name / "x"), work_dir=work, export=("parquet",), input=(str(chats),))
    [here, there] = (sorted((tmp_path / name / "x_parquet").glob("*.parquet")) for name in ("here", "there"))
    assert [path.read_bytes() for path in here] == [path.read_bytes() for path in there] != []
    assert not store.names("out")


def test_packing_of_another_length_is_removed(store):
    """It does not fit the new tokens; the store's address is known by a flag alone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        for length in (768, 512):
            instruct("s3://out/x", seq_length=length, split=None, replace=True)
    packings = sorted(name for name in store.names("out") if "packing" in name)
    assert packings == ["x_packing_512.bin", "x_packing_512.idx", "x_packing_512.manifest.json"]


def test_exports_need_a_disk(tmp_path, capsys):
    (tmp_path / "chat.yaml").write_text("special_tokens: {}")
    words = [
        "instruct",
        str(tmp_path / "chat.yaml"),
        "--input",
        "a.jsonl",
        "--tokenizer-model",
        "t",
        "--export",
        "parquet",
    ]
    assert main([*words, "--output-prefix", "s3://out/x"]) == 2
    assert "s3://out/x: expected an output on a disk with --export" in capsys.readouterr().err
