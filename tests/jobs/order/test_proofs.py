"""What `verify` and `repair` say of shuffled and repeated documents."""

import contextlib

import numpy as np
import pytest

from dsindex.api.verify import verify
from dsindex.datasets import IndexedDataset
from dsindex.errors import FormatError
from tests.jobs.order.ordered_builds import SEED, build, documents
from tests.support.golden import OWN


@pytest.mark.usefixtures("small_runs")
def test_verify_finds_documents_in_the_wrong_place(texts, tmp_path):
    """Two documents of one length are exchanged, so that only the source or the provenance can tell."""
    out = tmp_path / "out"
    build(texts, out, shuffle_documents=SEED)
    prefix = out / "x_title_document"
    found = documents(out, "title")
    first, second = next(
        (one, two)
        for one in range(len(found))
        for two in range(one)
        if len(found[one]) == len(found[two]) and found[one] != found[two]
    )
    dataset = IndexedDataset(str(prefix))
    tokens = np.fromfile(f"{prefix}.bin", dataset.dtype)
    starts = np.concatenate(([0], np.cumsum([len(each) for each in found])))
    for place, source in ((first, second), (second, first)):
        tokens[starts[place] : starts[place + 1]] = found[source]
    tokens.tofile(f"{prefix}.bin")
    with contextlib.chdir(texts):
        report = verify(prefix, against_source=True, tokenizer=OWN.plain_tokenizer)
    assert not report.is_whole
    assert any(f"document {min(first, second)} differs" in each for each in report.findings) or any(
        f"document {max(first, second)} differs" in each for each in report.findings
    )


def test_verify_finds_wrong_rows_of_shuffled_documents(texts, tmp_path):
    out = tmp_path / "out"
    build(texts, out, shuffle_documents=SEED)
    build(texts, tmp_path / "other", shuffle_documents=SEED + 1)
    name = "x_text_document.provenance.parquet"
    (out / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with contextlib.chdir(texts):
        report = verify(out / "x_text_document")
    assert any("its place in the shuffled order" in finding for finding in report.findings)


def test_repair_does_not_put_shuffled_documents_in_the_order_of_inputs(texts, tmp_path):
    import dsindex

    out = tmp_path / "out"
    build(texts, out, shuffle_documents=SEED, keep_shards=True)
    (out / "x_text_document.idx").write_bytes(b"")
    for way in ("shards", "source"):
        with contextlib.chdir(texts), pytest.raises(FormatError, match="the documents are shuffled"):
            dsindex.repair(out / "x_text_document", output=tmp_path / "r", way=way, tokenizer=OWN.plain_tokenizer)


def test_repair_finds_the_shards_of_repeated_inputs(texts, tmp_path):
    import dsindex

    out = tmp_path / "out"
    build(texts, out, repeat=("a=2.4", "c=0.3"), keep_shards=True)
    index = out / "x_text_document.idx"
    expected = index.read_bytes()
    index.write_bytes(b"")
    dsindex.repair(out / "x_text_document", output=tmp_path / "r", way="shards")
    assert (tmp_path / "r.idx").read_bytes() == expected
