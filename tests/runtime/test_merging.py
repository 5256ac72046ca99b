import os

import numpy as np
import pytest

from dsindex.commands.merge import open_segment, refuse_mixture
from dsindex.errors import FormatError, InputError
from dsindex.formats.mmididx import check_index, read_index
from dsindex.runtime.merge import make_index, merge_range
from dsindex.runtime.tasks import MergeRange
from tests.support.datasets import write_dataset


def write_part(prefix, documents, *, dtype=np.uint16, modes=None):
    return open_segment(write_dataset(prefix, documents, dtype=dtype, modes=modes))


def range_of(parts, output):
    pieces = [(part.bin, 0, part.bin.size_bytes) for part in parts]
    return MergeRange(begin=0, output=str(output), pieces=tuple(pieces))


def test_merge_concatenates_modes_and_empty_documents(tmp_path, monkeypatch):
    monkeypatch.setattr("dsindex.runtime.merge.BLOCK_BYTES", 8)
    shapes = [[], [[3, 4], [], [100]], [[]], [[1]] * 50, [[200]], [[0, 5, 0]]]
    parts, expected_modes = [], []
    for number, shape in enumerate(shapes):
        modes = [place % 3 for place in range(sum(map(len, shape)))]
        documents = [[[number] * length for length in document] for document in shape]
        parts.append(write_part(tmp_path / f"p{number}", documents, modes=modes))
        expected_modes += modes
    (output := tmp_path / "out.bin").write_bytes(b"")
    merge_range(range_of(parts, output))
    make_index(parts, str(tmp_path / "out.idx"))
    assert output.read_bytes() == b"".join((tmp_path / f"p{n}.bin").read_bytes() for n in range(len(shapes)))
    index = read_index(str(tmp_path / "out.idx"))
    check_index("out.idx", index, bin_size_bytes=output.stat().st_size)
    assert np.diff(index.document_indices).tolist() == [len(document) for shape in shapes for document in shape]
    assert index.sequence_modes.tolist() == expected_modes


def test_merge_refuses_other_token_types_by_name(tmp_path):
    parts = [write_part(tmp_path / "a", [[[1]]]), write_part(tmp_path / "b", [[[1]]], dtype="<i4")]
    with pytest.raises(FormatError, match=r"b\.idx has tokens of type int32 .*a\.idx has tokens of type uint16"):
        refuse_mixture(parts)


def test_merge_range_of_a_shortened_part_is_an_input_error(tmp_path):
    part = write_part(tmp_path / "p", [[[1] * 5], [[2] * 6]])
    (tmp_path / "out").write_bytes(b"")
    os.truncate(tmp_path / "p.bin", 7)
    with pytest.raises(InputError, match=r"p\.bin: changed while it was copied: it ends at byte 7"):
        merge_range(range_of([part], tmp_path / "out"))
