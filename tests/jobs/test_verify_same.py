"""The first document in which two datasets differ, in blocks of any size, and the line it was made from."""

import json

import numpy as np
import pytest

import dsindex
from dsindex.tools import verify_same
from dsindex.tools.verify_same import find_difference
from tests.support.datasets import write_dataset
from tests.support.golden import GOLDEN, OWN
from tests.support.jobs import run_config
from tests.support.pbin_files import write_pbin

DOCUMENTS = [[[1, 2]], [], [[3], [4, 5]], [[6]], [[7, 8, 9]]]


@pytest.fixture(autouse=True, params=[1, 3, 1 << 20])
def _blocks(request, monkeypatch):
    monkeypatch.setattr(verify_same, "BLOCK_TOKENS", request.param)
    monkeypatch.setattr("dsindex.tools.kinds.BLOCK_ITEMS", request.param)


@pytest.mark.parametrize(("other", "says"), [
    (DOCUMENTS, None),
    ([[[1, 2]], [], [[3], [4, 0]], [[6]], [[7]]], (2, "its token 2 is 5")),
    ([[[1, 2]], [], [[3], [4, 5]], [[6, 7]], [[8, 9]]], (3, "it has 1 token")),
    (DOCUMENTS[:3], (3, "one has 5 documents, the other 3")),
    ([*DOCUMENTS, []], (5, "one has 5 documents, the other 6")),
    ([[], *DOCUMENTS], (0, "it has 2 tokens and 0")),
    ([], (0, "one has 5 documents, the other 0")),
], ids=["same", "token", "boundary", "fewer", "more", "shifted", "empty"])  # fmt: skip
def test_first_document_that_differs_is_named(tmp_path, other, says):
    one = write_dataset(tmp_path / "a", DOCUMENTS)
    two = write_dataset(tmp_path / "b", other, dtype=np.int32)
    found = find_difference(one, two)
    assert bool(found) == (says is not None)
    if says is not None:
        number, what = says
        assert found[0].startswith(f"document {number} of {one} is the first that differs in {two}: {what}")


def test_formats_may_differ(tmp_path):
    flat = [[token for sequence in document for token in sequence] for document in DOCUMENTS if document]
    one = write_dataset(tmp_path / "a", [document for document in DOCUMENTS if document])
    assert find_difference(one, write_pbin(tmp_path / "b.pbin", flat)) == []
    assert "its token 2 is 5 and 0" in find_difference(one, write_pbin(tmp_path / "c.pbin", [[1, 2], [3, 4, 0]]))[0]


def test_command_names_the_line(make_config, tmp_path, cli):
    [built] = run_config(make_config(output_prefix=str(tmp_path / "ours"))).datasets
    cli(["verify", built.prefix, "--same-as", f"{GOLDEN}/eod_text_document"])
    records = OWN.docs.read_bytes().splitlines()
    records[7] = json.dumps({"text": "other"}).encode()
    (tmp_path / "changed.jsonl").write_bytes(b"\n".join(records))
    config = make_config(output_prefix=str(tmp_path / "b"), input=(str(tmp_path / "changed.jsonl"),))
    [changed] = run_config(config).datasets
    result = dsindex.verify(built.prefix, same_as=changed.prefix, executor="local")
    [finding] = result.findings
    assert not result
    assert f"{OWN.docs}, line 8; {changed.prefix} has it from {tmp_path}/changed.jsonl, line 8" in finding
    shown = json.loads(cli(["verify", built.prefix, "--same-as", changed.prefix, "--json"], 1).out)
    assert shown["findings"] == [finding]
