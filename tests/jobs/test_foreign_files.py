"""Datasets without a manifest: `verify` says what their files tell about the program that wrote them."""

import numpy as np
import pytest

from dsindex.cli.main import main
from dsindex.datasets.opening import open_dataset
from dsindex.errors import FormatError
from tests.support.datasets import write_dataset
from tests.support.golden import FAST, GOLDEN


@pytest.mark.parametrize(("name", "said"), [
    (FAST.name, "note: 4 texts without tokens are EOD alone, as by preprocess_data_fast.py (--empty-documents eod)"),
    ("eod", "note: 2 texts without tokens are empty documents, as by preprocess_data.py (--empty-documents keep)"),
])  # fmt: skip
def test_verify_says_what_became_of_empty_texts(name, said, cli):
    assert said in cli(["verify", str(GOLDEN / f"{name}_text_document")]).out


@pytest.mark.parametrize("documents", [[[[1]], [[1, 2]]], [[[1]], [[1]]], []], ids=["two ends", "all alone", "none"])
def test_verify_says_nothing_of_empty_texts_where_none_can_be_told(tmp_path, documents, cli):
    assert "texts without tokens" not in cli(["verify", write_dataset(tmp_path / "x", documents)]).out


COMMANDS = {
    "verify": "verify d", "merge": "merge --input d --output-prefix m",
    "index": "index --data-path d --seq-length 2 --epochs 1 --data-cache-path c --tokenizer-identifiers t.json",
    "mix": "mix --data-path d --seq-length 2", "convert": "convert d d.pbin", "compare": "compare d d",
    "repair": "repair d --output r",
}  # fmt: skip


@pytest.mark.parametrize("command", [*COMMANDS, "open"])
@pytest.mark.parametrize("pointers", [(8, 4, 0), (0, 8, 4), (0, 4, 1 << 62)], ids=["reversed", "swapped", "far"])
def test_pointers_in_another_order_are_refused(pointers, command, tmp_path, monkeypatch, capsys):
    """A reader follows the pointers, so whatever takes the tokens in the order of the `.bin` has other documents."""
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "d", [[[1, 2]], [[3, 4]], [[5, 6]]])
    (tmp_path / "t.json").write_text("{}")
    content = bytearray((tmp_path / "d.idx").read_bytes())
    content[34 + 12 : 34 + 36] = np.array(pointers, "<i8").tobytes()
    (tmp_path / "d.idx").write_bytes(content)
    if command == "open":
        with pytest.raises(FormatError, match=r"d\.idx: expected sequence \d to begin at byte"):
            open_dataset("d")
        return
    is_restored = command == "repair" and pointers[2] > 8
    assert main(COMMANDS[command].split()) == (0 if is_restored else 1)
    shown = "".join(capsys.readouterr())
    reason = "pointers are sound, but not in the order" if command == "repair" else "d.idx: expected sequence"
    assert (reason in shown) != is_restored
    restored = {"r.bin", "r.idx", "r.repair.json"} if is_restored else set()
    assert {path.name for path in tmp_path.glob("[cmr]*")} <= {"m.progress.json"} | restored
