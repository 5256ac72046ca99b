"""What a path leads to, how texts are cut into pieces, and what a pass over a dataset measures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dsindex.cli.main import main
from dsindex.datasets.kinds import Subject, tell_kind
from dsindex.errors import InputError
from dsindex.formats.raw_index import create_raw_index
from dsindex.text.encoders import encode_by_reference
from dsindex.text.tokenizer import load_tokenizer
from dsindex.tools.documents import SHARES, open_documents, summarize_lengths
from dsindex.tools.token_text import cut_pieces
from tests.support.datasets import write_dataset
from tests.support.foreign_tokenizers import sentencepiece_model, tiktoken_file
from tests.support.golden import TOKENIZERS
from tests.support.pbin_files import write_pbin


@pytest.mark.parametrize("given", ["data", "data.bin", "data.idx", "data.manifest.json"])
def test_files_of_a_dataset_lead_to_its_prefix(given, tmp_path):
    prefix = write_dataset(tmp_path / "data", [[[1, 2]]])
    (tmp_path / "data.manifest.json").write_text("{}")
    subject = tell_kind(str(tmp_path / given))
    assert (subject.kind, subject.path) == ("MMIDIDX", prefix)


def test_pbin_is_known_without_its_suffix(tmp_path):
    path = write_pbin(tmp_path / "packed", [[1, 2], [3]])
    assert tell_kind(path).kind == "pbin"


def test_fairseqs_index_is_named(tmp_path, capsys):
    (tmp_path / "old.idx").write_bytes(b"TNTIDX\0\0" + bytes(40))
    (tmp_path / "old.bin").write_bytes(bytes(8))
    for command in ("inspect", "verify"):
        assert main([command, str(tmp_path / "old")]) == 1
        shown = "".join(capsys.readouterr())
        assert "got the TNTIDX index of fairseq, as --dataset-impl lazy or cached wrote it" in shown
        assert "MMIDIDX\n" not in shown


def test_lines_and_their_index_are_a_raw_index(tmp_path):
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"text": "a"}) + "\n")
    with pytest.raises(InputError, match="raw-index"):
        tell_kind(str(lines))
    create_raw_index(str(lines), str(tmp_path / "lines.idx"))
    for given in ("lines.jsonl", "lines.idx", "lines"):
        assert tell_kind(str(tmp_path / given)).kind == "raw index"


def test_a_folder_or_a_beginning_of_a_name_leads_to_a_choice(tmp_path):
    prefix = write_dataset(tmp_path / "out_text_document", [[[1]]])
    for given in (tmp_path, tmp_path / "out"):
        with pytest.raises(InputError, match=f"choose one of {prefix}"):
            tell_kind(str(given))
    with pytest.raises(InputError, match="check the path"):
        tell_kind(str(tmp_path / "nothing"))


TEXT = "A naïve fox, 数 and 🦊🦊\r\n  twice\x1b[2J."


@pytest.mark.parametrize("name", ["gpt2", "plain"])
def test_pieces_together_are_the_text(name):
    tokenizer = load_tokenizer(str(TOKENIZERS[name]))
    ids = encode_by_reference(tokenizer, [TEXT], add_special_tokens=False)[0].tolist()
    pieces = cut_pieces(tokenizer, ids)
    assert "".join(piece.text or "" for piece in pieces) == TEXT
    assert [token for piece in pieces for token in piece.ids] == ids
    assert len(pieces) > 5
    assert "\ufffd" not in "".join(piece.text or "" for piece in pieces)


@pytest.mark.parametrize("name", ["m.model", "cl100k_base.tiktoken"])
def test_pieces_of_other_libraries_are_the_text(name, tmp_path):
    (tmp_path / name).write_bytes(sentencepiece_model("llama2") if name == "m.model" else tiktoken_file())
    tokenizer = load_tokenizer(str(tmp_path / name))
    ids = encode_by_reference(tokenizer, ["a fox and 数 twice"], add_special_tokens=False)[0].tolist()
    pieces = cut_pieces(tokenizer, ids)
    assert "".join(piece.text or "" for piece in pieces) == "a fox and 数 twice"
    after = cut_pieces(tokenizer, ids[2:], before=ids[:2])
    assert [piece.text for piece in after] == [piece.text for piece in pieces][-len(after) :]


def test_ids_outside_the_vocabulary_have_no_text():
    tokenizer = load_tokenizer(str(TOKENIZERS["plain"]))
    pieces = cut_pieces(tokenizer, [5, 10_000_000, -1, 6])
    assert [piece.text is None for piece in pieces] == [False, True, True, False]


DOCUMENTS = [[1, 2, 1, 2, 3], [], [2, 3], [], [], [1], [2, 3, 1], [2, 1, 2]]


def test_spans_of_both_formats_are_the_documents(tmp_path):
    packed = write_pbin(tmp_path / "data.pbin", DOCUMENTS, version="spec")
    pair = write_dataset(tmp_path / "data", [[part] if part else [] for part in DOCUMENTS])
    for subject in (Subject(kind="pbin", path=packed), Subject(kind="MMIDIDX", path=pair)):
        documents = open_documents(subject)
        spans = [documents.span(number) for number in range(documents.num_documents)]
        assert [documents.tokens[begin:end].tolist() for begin, end in spans] == DOCUMENTS
        assert np.concatenate(list(documents.lengths())).tolist() == list(map(len, DOCUMENTS))
        with pytest.raises(IndexError, match="from 0 to 7, got 8"):
            documents.span(8)


@pytest.mark.parametrize("largest", [5, 1 << 17, (1 << 62) // 500])
def test_quantiles_are_those_of_sorted_lengths(largest):
    lengths = np.random.default_rng(1).integers(0, largest, size=501)
    ordered = sorted(lengths.tolist())
    summary = summarize_lengths(np.array_split(lengths, 7))
    expected = {f"{share * 100:g}": ordered[max(-(-round(share * 100) * 501 // 100) - 1, 0)] for share in SHARES}
    assert summary.quantiles == expected
    assert (summary.count, summary.total) == (501, sum(ordered))
    assert summary.empty == ordered.count(0)
