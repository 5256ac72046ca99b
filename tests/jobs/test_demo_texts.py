"""The demo's text and tokenizer: the same bytes under the same seed, many scripts, nothing twice."""

import json

import pytest
import xxhash

from dsindex.demo.run import demo_documents, write_demo_jsonl

# The default demo's bytes. A change of a word list or a draw changes them, and with them every figure that was ever
# reported from the demo: change them on purpose only.
DEFAULT_DIGESTS = [
    "f8b22eed7f82e4b2800d6f28edc9f89f",
    "bbdff4d45a262c1c4424f359d73a5e7c",
    "25672645367c1cd579865775e63906f8",
]


def read_records(paths):
    return [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def demo_paths(tmp_path_factory):
    return write_demo_jsonl(tmp_path_factory.mktemp("demo"))


def test_default_demo_has_pinned_bytes(demo_paths):
    assert [path.name for path in demo_paths] == ["demo-0.jsonl", "demo-1.jsonl", "demo-2.jsonl"]
    assert [xxhash.xxh3_128_hexdigest(path.read_bytes()) for path in demo_paths] == DEFAULT_DIGESTS


@pytest.mark.parametrize(
    ("num_documents", "num_files", "counts"), [(200, 3, [66, 67, 67]), (5, 5, [1] * 5), (7, 1, [7])]
)
def test_number_of_files_does_not_change_the_documents(tmp_path, num_documents, num_files, counts):
    paths = write_demo_jsonl(tmp_path, num_documents=num_documents, num_files=num_files, seed=9)
    assert [len(read_records([path])) for path in paths] == counts
    expected = list(demo_documents(num_documents, seed=9))
    assert [record["text"] for record in read_records(paths)] == [document.text for document in expected]
