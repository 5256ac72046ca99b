import json

import pytest

from dsindex.errors import FormatError
from dsindex.index.cache import cache_files, description_hash, description_text, read_description
from tests.support.golden import golden_caches

GOLDEN_CACHES = golden_caches("GPTDataset") + golden_caches("BlendedDataset")


@pytest.mark.parametrize("path", [cache.description_path for cache in GOLDEN_CACHES], ids=lambda path: path.name[:12])
def test_golden_description_hashes_to_its_own_name(path):
    identifiers = read_description(str(path))
    assert description_text(identifiers).encode() == path.read_bytes()
    files = cache_files(str(path.parent), identifiers)
    assert files.description == str(path)
    assert files.exist()


def test_description_is_ascii_whatever_the_settings_say():
    text = description_text({"split": None, "tokenizer": {"path": "größer", "x": 1e-5}})
    lines = [
        "{",
        '    "split": null,',
        '    "tokenizer": {',
        '        "path": "gr\\u00f6\\u00dfer",',
        '        "x": 1e-05',
    ]
    assert text.splitlines() == [*lines, "    }", "}"]
    assert description_hash(text) == description_hash(text.encode().decode("ascii"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x93NUMPY", "not JSON"),
        (b"[]", "another JSON value"),
        (b'{"class": "T5Dataset"}', "another JSON value"),
        (b'{"class": "GPTDataset"}', "another JSON value"),
        (b'{"class": "BlendedDataset", "datasets": [], "split": "train"}', "another JSON value"),
        (b'{"class": "BlendedDataset", "datasets": [3], "split": "train"}', "another JSON value"),
    ],
)
def test_file_that_is_no_description_is_refused(content, message, tmp_path):
    path = tmp_path / "description.txt"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=rf"^{path}: expected the description of a GPTDataset or Blended.*{message}"):
        read_description(str(path))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("sequence_length", [1]), ("sequence_length", 0), ("num_samples", True), ("random_seed", None), ("split", {})],
)
def test_setting_of_another_type_is_refused_by_name(setting, value, tmp_path):
    described = {"dataset_path": "a", "index_split": "train", "random_seed": 1, "sequence_length": 8, "tokenizer": {}}
    path = tmp_path / "description.txt"
    path.write_text(json.dumps({"class": "GPTDataset", **described, setting: value}))
    with pytest.raises(FormatError, match=f"expected `{setting}` to be"):
        read_description(str(path))


def test_missing_description_is_refused(tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        read_description(str(tmp_path / "none.txt"))


def test_unknown_array_is_misuse():
    files = cache_files("cache", {"class": "GPTDataset", "index_split": "train"})
    with pytest.raises(ValueError, match="expected one of document_index, sample_index, shuffle_index, got 'dataset_"):
        files.array("dataset_index")
