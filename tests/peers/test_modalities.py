"""Modalities' own classes open our files, and ours open its. Needs `modalities` and what it imports."""

import warnings
from pathlib import Path

import pytest

from dsindex.commands.convert import join_pbin_files
from dsindex.commands.raw_index import create_raw_index
from dsindex.errors import FormatError
from dsindex.formats.pbin import read_document_lengths, read_pbin_header
from tests.support.pbin_files import pbin_bytes, write_pbin

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("modalities")
    create_index = pytest.importorskip("modalities.dataloader.create_index", exc_type=ImportError)
    packed_data = pytest.importorskip("modalities.dataloader.create_packed_data", exc_type=ImportError)
    peer = pytest.importorskip("modalities.dataloader.dataset", exc_type=ImportError)

pytestmark = pytest.mark.filterwarnings("default")

DOCUMENTS = [[5, 6, 7, 8], [9] * 30, [1, 2], [44, 3]]
LINES = [
    b'{"text": "x"}', b"", b" ", b"\r", b"[1]\r", b"{", b"NaN", b"-Infinity", b"Inf", b'"\\ud800"', b'"\xff"',
    b'"\xc3\xa9"', b"\xef\xbb\xbf{}", b"{} {}", b"1", b'{"a": 1, "a": 2}', b'"a\tb"', b"[" * 70 + b"]" * 70,
    b'"\xed\xa0\x80"', b"1e400", b"01",
]  # fmt: skip


@pytest.mark.parametrize("tail", [b"", b"\n"], ids=["no newline at the end", "newline at the end"])
@pytest.mark.parametrize("lines", [LINES, [b"{}", b"1"], [b"{}", b""], [b"{"]], ids=["odd", "good", "blank", "bad"])
def test_raw_index_is_the_same_file(tmp_path, lines, tail):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join(lines) + tail)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        create_index.IndexGenerator(path, drop_faulty_entries=True).create_index(tmp_path / "theirs.idx")
    create_raw_index(str(path), str(tmp_path / "ours.idx"), drop_faulty_entries=True)
    assert (tmp_path / "ours.idx").read_bytes() == (tmp_path / "theirs.idx").read_bytes()


def documents_of(dataset):
    return [dataset[number]["tokens"].tolist() for number in range(len(dataset))]


def test_its_join_is_detected_and_its_reader_opens_ours(tmp_path):
    parts = [write_pbin(tmp_path / f"{number}.pbin", DOCUMENTS) for number in range(3)]
    streams = [packed_data.EmbeddedStreamData(Path(part)) for part in parts]
    packed_data.join_embedded_stream_data(streams, tmp_path / "theirs.pbin")
    header = read_pbin_header(str(tmp_path / "theirs.pbin"))
    with pytest.raises(FormatError, match="if Modalities joined this file"):
        read_document_lengths(str(tmp_path / "theirs.pbin"), header)
    join_pbin_files(parts, str(tmp_path / "ours.pbin"))
    expected = pbin_bytes(DOCUMENTS * 3, version="current")
    assert (tmp_path / "ours.pbin").read_bytes() == expected
    assert documents_of(peer.PackedMemMapDatasetBase(tmp_path / "ours.pbin", "tokens")) == DOCUMENTS * 3
