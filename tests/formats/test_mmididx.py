import struct
import tracemalloc

import numpy as np
import pytest

from dsindex.errors import FormatError
from dsindex.formats.dtypes import TOKEN_DTYPES
from dsindex.formats.mmididx import HEADER_BYTES, IndexBuilder, check_index, read_header, read_index
from dsindex.store.local import atomic_writer
from tests.support.datasets import write_dataset
from tests.support.golden import DATASETS, dataset_name

DOCUMENTS = [[[1, 2, 3]], [], [[4, 5, 6, 7], [8, 9]], [[10]]]
LENGTHS, BOUNDARIES = [3, 4, 2, 1], [0, 1, 1, 3, 4]


def index_bytes(*, lengths=LENGTHS, pointers=None, boundaries=BOUNDARIES, modes=None, code=8, magic=b"MMIDIDX\0\0",
                version=1, counts=None):  # fmt: skip
    """The format spelled out, independently of the code under test."""
    item = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 4, 8: 2}.get(code, 1)
    if pointers is None:
        pointers = [item * sum(lengths[:k]) for k in range(len(lengths))]
    parts = [magic, struct.pack("<QBQQ", version, code, *(counts or (len(lengths), len(boundaries))))]
    for kind, values in (("i", lengths), ("q", pointers), ("q", boundaries), ("b", modes or [])):
        parts.append(struct.pack(f"<{len(values)}{kind}", *values))
    return b"".join(parts)


@pytest.mark.parametrize("code", TOKEN_DTYPES, ids=lambda code: TOKEN_DTYPES[code].name)
@pytest.mark.parametrize("modes", [None, [0, 1, 0, -3]], ids=["plain", "modes"])
def test_writer_gives_the_bytes_of_the_format(tmp_path, code, modes):
    prefix = write_dataset(tmp_path / "d", DOCUMENTS, dtype=TOKEN_DTYPES[code], modes=modes)
    assert (tmp_path / "d.idx").read_bytes() == index_bytes(code=code, modes=modes)
    index = read_index(f"{prefix}.idx")
    assert index.dtype == TOKEN_DTYPES[code]
    assert index.sequence_lengths.tolist() == LENGTHS
    assert index.document_indices.tolist() == BOUNDARIES
    assert (index.sequence_modes is None) == (modes is None)
    assert modes is None or (index.sequence_modes is not None and index.sequence_modes.tolist() == modes)
    assert index.header.num_documents == len(DOCUMENTS)
    check_index("d.idx", index, bin_size_bytes=(tmp_path / "d.bin").stat().st_size)


@pytest.mark.parametrize("prefix", DATASETS, ids=dataset_name)
def test_golden_index_is_rewritten_byte_for_byte(tmp_path, prefix):
    index = read_index(f"{prefix}.idx")
    check_index(f"{prefix}.idx", index, bin_size_bytes=prefix.with_suffix(".bin").stat().st_size)
    builder = IndexBuilder(index.dtype, folder=str(tmp_path))
    # In two runs, so that the second one's boundaries have to be moved.
    half = index.header.num_documents // 2
    for begin, end in ((0, half), (half, index.header.num_documents)):
        boundaries = index.document_indices[begin : end + 1]
        builder.add_documents(index.sequence_lengths[boundaries[0] : boundaries[-1]], np.diff(boundaries))
    with atomic_writer(str(tmp_path / "again.idx")) as file:
        builder.write(file)
        file.write(b"" if index.sequence_modes is None else index.sequence_modes.tobytes())
    builder.close()
    assert (tmp_path / "again.idx").read_bytes() == prefix.with_suffix(".idx").read_bytes()


@pytest.mark.parametrize(("data", "message"), [
    (index_bytes(magic=b"TNTIDX\0\0\0"), "a TNTIDX index of fairseq"),
    (index_bytes()[:20], "cut off: it has 20 bytes, and its header alone has 34"),
    (index_bytes(version=2), "version 2 is not supported"),
    (index_bytes(code=9), "unknown token type code 9"),
    (index_bytes()[:-1], "damaged or cut off: it has"),
    (index_bytes(counts=(1 << 63, 1 << 63)), "damaged or cut off: it has"),
], ids=["other-magic", "half-a-header", "version", "code", "cut-off", "huge-counts"])  # fmt: skip
def test_read_header_refuses_what_is_no_index(tmp_path, data, message):
    path = tmp_path / "d.idx"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message) as caught:
        read_header(str(path))
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(("changes", "at_the_ends", "message"), [
    ({"boundaries": [1, 1, 1, 3, 4]}, True, "first document boundary is 1 instead of 0"),
    ({"boundaries": [0, 1, 1, 3, 5]}, True, "last document boundary is 5 instead of 4"),
    ({"boundaries": [0, 3, 1, 3, 4]}, False, "document 1 ends at sequence 1, before it begins"),
    ({"lengths": [3, -4, 10, 1]}, False, "sequence 1 has the negative length -4"),
    ({"pointers": [2, 6, 14, 18]}, True, "sequence 0 begins at byte 2 of the .bin instead of byte 0"),
    ({"pointers": [0, 6, 12, 18]}, False, "sequence 2 begins at byte 12 of the .bin instead of byte 14"),
    ({"lengths": [3, 4, 2, 2]}, True, "its sequences take 22 bytes, and the .bin has 20"),
])  # fmt: skip
def test_check_names_the_wrong_entry(tmp_path, monkeypatch, changes, at_the_ends, message):
    monkeypatch.setattr("dsindex.formats.mmididx.CHUNK_ITEMS", 2)
    path = tmp_path / "d.idx"
    path.write_bytes(index_bytes(**changes))
    with pytest.raises(FormatError, match=message):
        check_index(str(path), read_index(str(path)), bin_size_bytes=20)
    if at_the_ends:
        with pytest.raises(FormatError, match=message):
            check_index(str(path), read_index(str(path)), bin_size_bytes=20, every_entry=False)


def test_pointers_pass_2_gib_and_2_to_the_31_tokens(tmp_path):
    builder = IndexBuilder(np.dtype("<i4"), folder=str(tmp_path))
    longest = (1 << 31) - 1
    builder.add_documents(np.array([longest, longest, 5], np.int32), np.array([1, 1, 1]))
    with atomic_writer(str(tmp_path / "d.idx")) as file:
        builder.write(file)
    builder.close()
    index = read_index(str(tmp_path / "d.idx"))
    assert index.sequence_pointers.tolist() == [0, 4 * longest, 8 * longest]
    assert builder.num_tokens == 2 * longest + 5
    check_index("d.idx", index, bin_size_bytes=8 * longest + 20)


def test_writer_memory_does_not_grow_with_documents(tmp_path):
    """The lengths of these sequences alone take 12 MiB."""
    lengths, documents = np.full(1 << 16, 7, np.int32), np.ones(1 << 16, np.int64)
    tracemalloc.start()
    builder = IndexBuilder(np.dtype("<u2"), folder=str(tmp_path))
    for _ in range(48):
        builder.add_documents(lengths, documents)
    with atomic_writer(str(tmp_path / "d.idx")) as file:
        builder.write(file)
    builder.close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 << 20
    assert read_header(str(tmp_path / "d.idx")).num_sequences == 48 << 16
    assert (tmp_path / "d.idx").stat().st_size == HEADER_BYTES + 20 * (48 << 16) + 8
