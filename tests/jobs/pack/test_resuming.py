"""Packing again: what is complete, stopped, killed, gone, of another plan, or of others."""

import pytest

from dsindex.errors import OutputError, PlanError
from tests.support.golden import OWN
from tests.support.jobs import run_config
from tests.support.published import published

# What is done twice, cut off, or asked for differently.


def test_output_that_went_is_made_again_of_the_kept_shards(make_pack, tmp_path, tokenized):
    run_config(make_pack(keep_shards=True))
    before = published(tmp_path / "out")
    with open(tmp_path / "out" / "docs.pbin", "r+b") as file:
        file.truncate(1000)
    with pytest.raises(OutputError, match="expected the file that the manifest describes, got another one"):
        run_config(make_pack())
    (tmp_path / "out" / "docs.pbin").unlink()
    tokenized.clear()
    run_config(make_pack())
    assert tokenized == []
    assert published(tmp_path / "out") == before


@pytest.mark.parametrize(("options", "message"), [
    ({"eod_token": "<|pad|>"}, "eod-token was 0 and is 1"),
    ({"jq_pattern": ".title"}, 'jq-pattern was ".text" and is ".title"'),
    ({"pbin_era": "spec"}, 'pbin-era was "current" and is "spec"'),
    ({"tokenizer_model": str(OWN.bos_tokenizer)}, "tokenizer was .* and is"),
], ids=["eod", "pattern", "version", "tokenizer"])  # fmt: skip
def test_output_of_another_plan_is_refused_by_name(make_pack, options, message):
    run_config(make_pack())
    with pytest.raises(PlanError, match=f"finished output of another plan is here: .*{message}.*--fresh"):
        run_config(make_pack(**options))
    run_config(make_pack(**options, fresh=True))


def test_files_of_others_beside_the_output_stay(make_pack, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "docs.pbin").write_bytes(b"precious")
    with pytest.raises(OutputError, match=r"docs\.pbin: exists already.*--fresh"):
        run_config(make_pack())
    assert (tmp_path / "out" / "docs.pbin").read_bytes() == b"precious"
    for suffix in ("bin", "idx"):
        (tmp_path / "out" / f"docs.{suffix}").write_bytes(b"an index of lines, or Megatron's")
    run_config(make_pack(fresh=True))
    assert (tmp_path / "out" / "docs.idx").read_bytes() == b"an index of lines, or Megatron's"
    assert (tmp_path / "out" / "docs.bin").exists()
