"""Packed data in buckets: the same bytes as on a disk, with a header that is known last."""

import pytest

from dsindex.options.pack import PackConfig
from tests.faults.object_kills import objects
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config
from tests.support.published import published


def pack(source, output, **options):
    config = config_of(PackConfig, source, **{"output": output, "shard_size": "8KiB", **options})
    return run_config(config)


@pytest.mark.usefixtures("small_ranges")
def test_other_byte_order_is_that_of_a_disk(store, tmp_path):
    pack(OWN.docs, "s3://out/x.pbin", pbin_era="2024-01-30")
    pack(OWN.docs, str(tmp_path / "x.pbin"), pbin_era="2024-01-30")
    assert objects(store, "") == published(tmp_path)


@pytest.mark.parametrize(("flags", "said"), [
    (["--output", "az://out/x.pbin"], "--output: az://out/x.pbin: expected a path or an address of s3://"),
    (["--output", "s3://out/x"], "--output: expected the name of a .pbin file, got 's3://out/x'"),
    (["--merge", "a.pbin", "--output", "s3://out/x.pbin"], "s3://out/x.pbin: expected a path for --output with"),
    (["--output", "x.pbin", "--work-dir", "https://a.b/c"], "--work-dir: https://a.b/c: expected a path or"),
])  # fmt: skip
def test_what_cannot_be_written_is_refused_when_options_are_read(flags, said, cli):
    text = [] if "--merge" in flags else ["--input", "a.jsonl", "--tokenizer-model", "t"]
    shown = cli(["pack", *text, *flags], 2).err
    assert said in shown
    assert shown.count("expected") == 1
