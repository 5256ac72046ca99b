"""The demo's text and tokenizer: the same bytes under the same seed, many scripts, nothing twice."""

import json

import pytest
import xxhash

from dsindex.demo.run import END_OF_TEXT, demo_documents, train_demo_tokenizer, write_demo_jsonl

# The default demo's bytes. A change of a word list or a draw changes them, and with them every figure that was ever
# reported from the demo: change them on purpose only.
DEFAULT_DIGESTS = [
    "f8b22eed7f82e4b2800d6f28edc9f89f",
    "bbdff4d45a262c1c4424f359d73a5e7c",
    "25672645367c1cd579865775e63906f8",
]
SCRIPTS = {
    "LATIN", "GREEK", "CYRILLIC", "ARABIC", "HEBREW", "DEVANAGARI", "CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI",
}  # fmt: skip


def read_records(paths):
    return [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def demo_paths(tmp_path_factory):
    return write_demo_jsonl(tmp_path_factory.mktemp("demo"))


def test_default_demo_has_pinned_bytes(demo_paths):
    assert [path.name for path in demo_paths] == ["demo-0.jsonl", "demo-1.jsonl", "demo-2.jsonl"]
    assert [xxhash.xxh3_128_hexdigest(path.read_bytes()) for path in demo_paths] == DEFAULT_DIGESTS


def test_lexicon_templates_use_known_slots_only():
    """A misspelt slot would otherwise stay in the text as it is."""
    for document in demo_documents(800, seed=5):
        if document.lang not in {"python", "sql", "c"}:
            assert "{" not in document.text
            assert "}" not in document.text


@pytest.mark.parametrize(
    ("num_documents", "num_files", "counts"), [(200, 3, [66, 67, 67]), (5, 5, [1] * 5), (7, 1, [7])]
)
def test_number_of_files_does_not_change_the_documents(tmp_path, num_documents, num_files, counts):
    paths = write_demo_jsonl(tmp_path, num_documents=num_documents, num_files=num_files, seed=9)
    assert [len(read_records([path])) for path in paths] == counts
    expected = list(demo_documents(num_documents, seed=9))
    assert [record["text"] for record in read_records(paths)] == [document.text for document in expected]


def test_seeds_give_different_texts():
    first, second = ([document.text for document in demo_documents(50, seed=seed)] for seed in (1, 2))
    assert first != second


@pytest.mark.parametrize("num_files", [0, 11])
def test_impossible_number_of_files_is_refused(tmp_path, num_files):
    with pytest.raises(ValueError, match=rf"expected from 1 to num_documents=10 files, got num_files={num_files}"):
        write_demo_jsonl(tmp_path, num_documents=10, num_files=num_files)


def test_tokenizer_is_deterministic_and_round_trips(demo_paths, tmp_path):
    from tokenizers import Tokenizer

    folders = [train_demo_tokenizer(demo_paths, tmp_path / name) for name in ("one", "two")]
    first, second = ((folder / "tokenizer.json").read_bytes() for folder in folders)
    assert first == second
    tokenizer = Tokenizer.from_file(str(folders[0] / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 8000
    config = json.loads((folders[0] / "tokenizer_config.json").read_text())
    assert config["eos_token"] == END_OF_TEXT
    assert tokenizer.token_to_id(END_OF_TEXT) == 0
    texts = [str(record["text"]) for record in read_records(demo_paths[:1])[:300]]
    encodings = tokenizer.encode_batch(texts)
    assert [tokenizer.decode(encoding.ids) for encoding in encodings] == texts
    # Bytes alone would be one token each.
    assert sum(len(encoding.ids) for encoding in encodings) * 4 < sum(len(text.encode()) for text in texts)
