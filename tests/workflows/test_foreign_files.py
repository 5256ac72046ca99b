"""Datasets without a manifest: `verify` and `repair` say what their files tell about the program that wrote them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.datasets import write_dataset
from tests.support.golden import FAST, GOLDEN
from workflows.cli import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            FAST.name,
            "note: 4 texts without tokens are EOD alone, as by preprocess_data_fast.py (--empty-documents eod)",
        ),
        ("eod", "note: 2 texts without tokens are empty documents, as by preprocess_data.py (--empty-documents keep)"),
    ],
)
def test_verify_says_what_became_of_empty_texts(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(GOLDEN / f"{name}_text_document")]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("documents", [[[[1]], [[1, 2]]], [[[1]], [[1]]], []], ids=["two ends", "all alone", "none"])
def test_verify_says_nothing_of_empty_texts_where_none_can_be_told(
    tmp_path: Path, documents: list[list[list[int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", write_dataset(tmp_path / "x", documents)]) == 0
    assert "texts without tokens" not in capsys.readouterr().out


def test_bin_of_an_earlier_key_is_recognised_and_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What preprocess_data.py left of `--json-keys text title` before it finished every key's index."""
    for name in ("keys_text_document.bin", "keys_title_document.bin", "keys_title_document.idx"):
        shutil.copy(GOLDEN / name, tmp_path)
    prefix = str(tmp_path / "keys_text_document")
    recognised = "finished only the .idx of the last key. The .bin then has all tokens, of 102 documents"
    assert main(["verify", prefix]) == 1
    assert recognised in capsys.readouterr().out
    assert main(["repair", prefix, "--output", str(tmp_path / "new")]) == 1
    assert recognised in capsys.readouterr().err
    guess = ["--guess", "--eod-id", "0", "--dtype", "uint16"]
    assert main(["repair", prefix, "--output", str(tmp_path / "new"), *guess]) == 0
    said = capsys.readouterr().out
    assert "of the last key of the same run: 102" in said
    assert "NOT the documents of" in said  # empty texts and EOD in texts are in this one


def test_other_files_are_not_taken_for_those_of_a_last_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(GOLDEN / "keys_text_document.bin", tmp_path)
    shutil.copy(GOLDEN / "eod_text_document.bin", tmp_path)
    shutil.copy(GOLDEN / "eod_text_document.idx", tmp_path)
    assert main(["verify", str(tmp_path / "keys_text_document")]) == 1
    assert "last key" not in capsys.readouterr().out
