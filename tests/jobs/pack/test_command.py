"""The command line of `pack`, and options that make no sense."""

import os

import numpy as np
import pytest

from tests.jobs.pack.packing import INPUT, TOKENIZER, golden_texts, packed_by_hand, said
from tests.support.golden import OWN
from tests.support.pbin_files import write_pbin

REFUSED = {
    "no output": ((*INPUT, *TOKENIZER), 2, "dsindex pack: --output is required\n"),
    "output of another kind": ((*INPUT, *TOKENIZER, "--output", "x.bin"), 2,
     "--output: expected the name of a .pbin file, got 'x.bin'"),
    "no tokenizer": ((*INPUT, "--output", "x.pbin"), 2, "--tokenizer-model is required"),
    "no EOD": ((*INPUT, "--output", "x.pbin", "--tokenizer-model", OWN.plain_tokenizer / "tokenizer.json"), 1,
     "choose one with --eod-token"),
    "unknown EOD": ((*INPUT, *TOKENIZER, "--output", "x.pbin", "--eod-token", "<eos>"), 1, "'<eos>' in the vocabulary"),
    "jq that sees the clock": ((*INPUT, *TOKENIZER, "--output", "x.pbin", "--jq-pattern", ".text + (now | tostring)"),
     1, "'now' is not allowed, since output must depend on the record alone"),
    "no jq": ((*INPUT, *TOKENIZER, "--output", "x.pbin", "--jq-pattern", ".a |"), 1, "jq pattern '.a |'"),
    "missing input": (("--input", "none.jsonl", *TOKENIZER, "--output", "x.pbin"), 1, "none.jsonl: cannot be read"),
    "merge without output": (("--merge", "a.pbin"), 2, "--output: expected the name of a new .pbin file"),
    "merge with text": (("--merge", "a.pbin", "--output", "b.pbin", *INPUT), 2, "--input does not go with --merge"),
    "two files of options": (("a.yaml", "--config", "b.yaml"), 2, "expected one file of options"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_options_are_named(arguments, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    got, shown = said(capsys, *arguments)
    assert got == code
    assert message in shown
    assert "Traceback" not in shown
    assert os.listdir(tmp_path) == []


def test_command_packs_and_merges(tmp_path, capsys):
    one = tmp_path / "one.pbin"
    code, shown = said(capsys, *INPUT, *TOKENIZER, "--output", one, "--executor", "local")
    assert code == 0
    assert f"{one}: {len(golden_texts()) - 2} documents" in shown
    assert "2 texts without tokens\n  .pbin " in shown
    assert "already complete" in said(capsys, *INPUT, *TOKENIZER, "--output", one, "--executor", "local")[1]
    write_pbin(tmp_path / "two.pbin", [[7, 8]], version="spec", token_bytes=4)
    code, shown = said(capsys, "--merge", one, tmp_path / "two.pbin", "--output", tmp_path / "both.pbin")
    assert (code, "files of different vocabularies" in shown) == (1, True)
    write_pbin(tmp_path / "two.pbin", [[7, 8]], version="2024-01-30", token_bytes=2)
    merged = ("--merge", one, tmp_path / "two.pbin", "--output", tmp_path / "both.pbin", "--executor", "local")
    assert said(capsys, *merged)[0] == 0
    texts = packed_by_hand(golden_texts(), str(OWN.plain_tokenizer), version="current", token_bytes=2)
    tokens = np.frombuffer(texts, "<u2", int.from_bytes(texts[:8], "little") // 2, 12)
    both = (tmp_path / "both.pbin").read_bytes()
    assert both[12 : 12 + tokens.nbytes + 4] == tokens.tobytes() + bytes([7, 0, 8, 0])
