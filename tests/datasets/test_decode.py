"""Texts of a dataset's items, and datasets as tables in notebooks."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers

import dsindex
from dsindex import datasets
from dsindex.errors import TokenizerError
from dsindex.text.tokenizer import load_tokenizer
from tests.support.golden import MODALITIES, OWN, TOKENIZERS

FIRST_TEXT = json.loads(Path(OWN.docs).read_text(encoding="utf-8").splitlines()[0])["text"]
EOD = "<|endoftext|>"


def load_object(folder):
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    """A dataset with a manifest, in a folder with its tokenizer, which is not the working folder."""
    shutil.copytree(TOKENIZERS["plain"], tmp_path / "made" / "plain")
    shutil.copy(OWN.docs, tmp_path / "made" / "docs.jsonl")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "made")
    dsindex.build("docs.jsonl", tokenizer="plain", append_eod=True, output_prefix="out/data")
    (tmp_path / "made").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "moved" / "out" / "data_text_document"


def test_sequences_and_documents_are_decoded_with_the_named_tokenizer(prefix):
    dataset = datasets.IndexedDataset(prefix)
    assert dataset.decode(0) == dataset.decode_document(0) == dataset.decode(-len(dataset)) == FIRST_TEXT + EOD
    with pytest.raises(IndexError, match="there is no sequence "):
        dataset.decode(len(dataset))


@pytest.mark.parametrize("give", [Path, lambda path: load_tokenizer(str(path)), lambda path: load_object(path)])
def test_given_tokenizer_is_used(prefix, give):
    Path(f"{prefix}.manifest.json").unlink()
    assert datasets.IndexedDataset(prefix).decode(0, tokenizer=give(TOKENIZERS["plain"])) == FIRST_TEXT + EOD


def test_relative_path_of_a_tokenizer_is_read_from_the_present_working_folder(prefix, monkeypatch):
    dataset = datasets.IndexedDataset(prefix)
    monkeypatch.chdir(prefix.parents[1])
    assert dataset.decode(0, tokenizer="plain") == FIRST_TEXT + EOD
    monkeypatch.chdir(prefix.parent)
    with pytest.raises(TokenizerError, match="plain: "):
        dataset.decode(0, tokenizer="plain")


def test_ids_that_the_tokenizer_lacks_are_refused():
    small = load_tokenizer(str(TOKENIZERS["plain"]))
    dataset = datasets.PbinDocuments(MODALITIES / "nonempty.pbin")
    largest = max(int(document.max()) for document in dataset)
    assert largest >= small.vocabulary_size
    number = next(number for number, document in enumerate(dataset) if document.max() == largest)
    with pytest.raises(TokenizerError, match=f"id {largest} is not one of its"):
        dataset.decode(number, tokenizer=small)


@pytest.mark.parametrize("pad_token", [None, 0])
def test_samples_are_decoded_without_padding(prefix, pad_token):
    """Samples in the order of the documents; the last one has one token."""
    sequences = datasets.IndexedDataset(prefix)
    rows = np.array([[0, 0], [1, 0], [1, 1]], np.int32)
    indices = (np.arange(len(sequences), dtype=np.int32), rows, np.arange(2, dtype=np.uint32))
    options = {"add_extra_token": False, "options": datasets.SampleOptions(pad_token=pad_token)}
    dataset = datasets.GPTDataset(sequences, *indices, sequence_length=len(sequences[0]), **options)
    assert dataset.decode(0) == FIRST_TEXT + EOD
    assert len(dataset.tokens(1)) == len(dataset.tokens(0))
    only = sequences.get(1, 0, 1)
    assert dataset.decode(1) == load_object(TOKENIZERS["plain"]).decode(only.tolist(), skip_special_tokens=False)
    blend = datasets.BlendedDataset([dataset, dataset], np.array([1, 0], np.int16), np.array([0, 1], np.int64))
    assert (blend.decode(0), blend.decode(1)) == (dataset.decode(0), dataset.decode(1))


def test_documents_and_blocks_of_a_pbin_are_decoded():
    text = json.loads((MODALITIES / "nonempty.jsonl").read_text(encoding="utf-8").splitlines()[0])["text"]
    path, gpt2 = MODALITIES / "nonempty.pbin", TOKENIZERS["gpt2"]
    assert datasets.PbinDocuments(path).decode(0, tokenizer=gpt2) == text + EOD
    assert datasets.PackedMemMapDatasetContinuous(path, 2).decode(0, tokenizer=gpt2) in text


def test_lines_are_decoded(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"text": "one two"}\n')
    lines = datasets.RawLines(path)
    assert lines.decode(0) == '{"text": "one two"}'
    assert datasets.MemMapDataset(path, tokenizer=TOKENIZERS["plain"], add_special_tokens=False).decode(0) == "one two"
