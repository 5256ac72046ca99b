"""`dsindex.open` and what it opens."""

from pathlib import Path

import numpy as np
import pytest
import tokenizers

import dsindex
from dsindex.datasets import (
    GPTDataset,
    IndexedDataset,
    MemMapDataset,
    PackedInstructionDataset,
    PackedMemMapDatasetContinuous,
    PbinDocuments,
    RawLines,
)
from dsindex.errors import FormatError, InputError
from dsindex.formats.raw_index import create_raw_index
from tests.jobs.api.calls import TOKENIZER, build
from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.golden import OWN
from tests.support.pbin_files import write_pbin

OPENERS = {
    "prefix": (lambda: dsindex.open("out/docs_text_document"), IndexedDataset),
    "path": (lambda: dsindex.open(Path("out/docs_text_document")), IndexedDataset),
    "bin": (lambda: dsindex.open("out/docs_text_document.bin"), IndexedDataset),
    "idx": (lambda: dsindex.open("out/docs_text_document.idx", check=False), IndexedDataset),
    "pbin": (lambda: dsindex.open("x.pbin"), PbinDocuments),
    "pbin-without-suffix": (lambda: dsindex.open("x"), PbinDocuments),
    "pbin-blocks": (lambda: dsindex.open("x.pbin", block_size=16), PackedMemMapDatasetContinuous),
    "raw-index": (lambda: dsindex.open("docs.idx"), RawLines),
    "jsonl": (lambda: dsindex.open("docs.jsonl"), RawLines),
    "jsonl-tokens": (lambda: dsindex.open("docs.jsonl", tokenizer=TOKENIZER), MemMapDataset),
    "cache-folder": (lambda: dsindex.open("cache"), GPTDataset),
    "cache-split": (lambda: dsindex.open("cache", split="valid"), GPTDataset),
    "description": (lambda: dsindex.open(next(Path("cache").glob("*valid-description.txt"))), GPTDataset),
}


@pytest.fixture
def every_kind():
    built = build()
    dsindex.convert(built, "x.pbin")
    dsindex.build_index(built, seq_length=16, epochs=1, data_cache_path="cache")
    Path("docs.jsonl").write_bytes(OWN.docs.read_bytes())
    create_raw_index("docs.jsonl", drop_faulty_entries=True)


@pytest.mark.usefixtures("every_kind")
def test_open_tells_the_kind_from_the_file():
    for name, (opener, kind) in OPENERS.items():
        assert type(opener()) is kind, name
        assert len(opener()) > 0, name  # type: ignore[arg-type]
    documents, indexed = dsindex.open("x.pbin"), dsindex.open("out/docs_text_document")
    assert isinstance(indexed, IndexedDataset)
    assert [tokens.tolist() for tokens in documents] == [indexed.document(j).tolist() for j in range(len(documents))]
    loaded = tokenizers.Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    by_object = dsindex.open("docs.jsonl", tokenizer=loaded)
    assert np.array_equal(by_object[3], dsindex.open("docs.idx", tokenizer=TOKENIZER)[3])


@pytest.mark.quick(6)
@pytest.mark.usefixtures("every_kind")
@pytest.mark.parametrize(("path", "options", "kind", "message"), [
    ("nothing", {}, InputError, "nothing: there is no dataset: .*check the path"),
    ("out/docs", {}, InputError, "did you mean out/docs_text_document"),
    ("a\0b", {}, InputError, "there is no dataset"),
    ("x" * 300, {}, InputError, "there is no dataset"),
    ("out", {}, InputError, "out: expected .* the folder of an index cache, got a folder without descriptions"),
    ("cache", {"split": "dev"}, InputError, "expected the index cache of the split dev, got test, train, valid"),
    ("out/docs_text_document", {"block_size": 8}, InputError, "does not take the option block_size; omit it"),
    ("cache", {"tokenizer": "x"}, InputError, "does not take the option tokenizer"),
    ("x.pbin", {"split": "train"}, InputError, "does not take the option split"),
    ("/dev/null", {}, InputError, "expected a dataset, got a device"),
    ("no-index.jsonl", {}, InputError, "expected its raw index no-index.idx beside it, found none; make one"),
    ("lonely.idx", {}, InputError, "expected the JSONL file of this raw index beside it, got none"),
    ("empty", {}, FormatError, "empty: expected .* got a file that begins with b''"),
    ("text.txt", {}, FormatError, "text.txt: expected .* begins with b'hello wo'"),
    ("cut.idx", {}, FormatError, "cut.idx: expected a header of 34 bytes"),
    ("cut.pbin", {}, FormatError, "cut.pbin: expected a .pbin that fits one of the versions"),
    ("evil.idx", {}, FormatError, "evil.idx"),
    ("array.npy", {}, FormatError, "got an array of an index cache; use the cache's description or folder"),
    ("x-description.txt", {}, FormatError, "expected the description of a GPTDataset or BlendedDataset"),
    ("alone.bin", {}, FormatError, "alone.bin: expected an .idx of MMIDIDX"),
])  # fmt: skip
def test_open_says_what_is_wrong_in_one_sentence(path, options, kind, message):
    Path("no-index.jsonl").write_bytes(b'{"text": "x"}\n')
    Path("lonely.idx").write_bytes(Path("docs.idx").read_bytes())
    Path("empty").touch()
    Path("text.txt").write_text("hello world")
    Path("cut.idx").write_bytes(b"MMIDIDX\x00\x00\x01")
    Path("cut.pbin").write_bytes(Path("x.pbin").read_bytes()[:500])
    Path("evil.idx").write_bytes(b"\x80\x04cposix\nsystem\n(S'touch pwned'\ntR.")
    Path("evil.jsonl").write_bytes(b"{}\n")
    np.save("array.npy", np.arange(3))
    Path("x-description.txt").write_text("{}")
    Path("alone.bin").write_bytes(b"\x01\x02\x03")
    with pytest.raises(kind, match=message) as raised:
        dsindex.open(path, **options)
    assert "\n" not in str(raised.value)
    assert not Path("pwned").exists()


@pytest.mark.parametrize("num_tokens", [0x7B, 0x80, 0x93])
def test_packed_data_is_known_by_its_name_whatever_its_first_byte(num_tokens):
    path = write_pbin(Path("x.pbin"), [[1] * num_tokens], token_bytes=1)
    assert Path(path).read_bytes()[0] == num_tokens
    assert [len(tokens) for tokens in dsindex.open(path)] == [num_tokens]


def test_open_of_instruction_data_asks_for_a_length_that_it_cannot_know():
    options = {"tokenizer": TOKENIZER, "executor": "local", "on_bad_record": "quarantine"}
    config = {**SPEC, "max_length": 768, "too_long": "split"}
    made = dsindex.instruct(CONVERSATIONS, config=config, output_prefix="out/chat", **options)
    with pytest.raises(InputError, match=r"out/chat: expected one block layout .* set sequence_length"):
        dsindex.open(made)
    opened = dsindex.open("out/chat", sequence_length=1024)
    assert isinstance(opened, PackedInstructionDataset)
    assert opened.sequence_length == 1024


def test_datasource_needs_pandas_or_reads_every_document():
    built = build()
    try:
        import ray.data  # noqa: F401
    except ImportError:
        with pytest.raises(dsindex.DsindexError, match=r"ray_datasource needs ray\.data, .* pip install pandas"):
            dsindex.ray_datasource(built)
        return
    source, dataset = dsindex.ray_datasource(built), dsindex.open(built)
    assert isinstance(dataset, IndexedDataset)
    rows = [row for task in source.get_read_tasks(5) for table in task() for row in table.to_pylist()]
    assert [row["document"] for row in rows] == list(range(dataset.num_documents))
    assert [row["tokens"] for row in rows] == [dataset.document(j).tolist() for j in range(dataset.num_documents)]
