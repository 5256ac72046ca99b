import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsindex.engine import merge as ranges
from dsindex.engine.merge import (
    MergeRange,
    Part,
    Piece,
    RangePlanner,
    merge_range,
    merged_header,
    open_part,
    plan_merge,
    range_bytes,
    write_merged_index,
)
from dsindex.errors import FormatError, InputError
from dsindex.formats.mmididx import IndexBuilder, IndexHeader, check_index, read_index
from dsindex.store.reading import digest_file
from dsindex.store.storage import atomic_writer, combine_digests


def write_part(prefix, documents, *, dtype="<u2", modes=False, seed=0):
    """Write a dataset of random tokens: each document is a list of sequence lengths."""
    lengths = np.array([length for document in documents for length in document], np.int64)
    tokens = np.random.default_rng(seed).integers(0, 1000, int(lengths.sum())).astype(dtype)
    tokens.tofile(f"{prefix}.bin")
    index = IndexBuilder(np.dtype(dtype), folder=str(prefix.parent), modes=modes)
    index.add_documents(
        lengths,
        np.array([len(document) for document in documents], np.int64),
        modes=(np.arange(len(lengths)) % 3).astype(np.int8) if modes else None,
    )
    with atomic_writer(f"{prefix}.idx") as file:
        index.write(file)
    index.close()
    return open_part(str(prefix))


def part_of_size(size):
    header = IndexHeader(dtype=np.dtype("<u2"), num_sequences=0, num_boundaries=1, has_modes=False)
    return Part(bin_path=f"{size}.bin", idx_path=f"{size}.idx", identity=f"{size}", bin_bytes=size, header=header)


@given(sizes=st.lists(st.integers(0, 500), min_size=1, max_size=20), step=st.integers(1, 700))
def test_plan_merge_covers_every_byte_once_in_order(sizes, step):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "range_bytes", lambda _total: step)
        planned = plan_merge([part_of_size(size).piece for size in sizes], "out")
    position = 0
    sources = {}
    for number, task in enumerate(planned):
        assert (task.number, task.begin) == (number, position)
        assert sum(piece.size_bytes for piece in task.pieces) == task.end - task.begin
        assert all(piece.size_bytes > 0 for piece in task.pieces)
        position = task.end
        for piece in task.pieces:
            sources[piece.path] = sources.get(piece.path, 0) + piece.size_bytes
    assert position == sum(sizes)
    assert sources == {f"{size}.bin": size * sizes.count(size) for size in set(sizes) if size}


@given(
    sizes=st.lists(st.integers(0, 500), min_size=1, max_size=8), step=st.integers(20, 700), bound=st.integers(0, 20_000)
)
def test_ranges_of_the_first_pieces_are_those_of_the_whole(sizes, step, bound):
    """As far as they are full: what is merged before all pieces are there has the place that the plan gives it."""
    pieces = [part_of_size(size).piece for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "range_bytes", lambda total: step + total // 10_000)
        bound = max(bound, sum(sizes))
        planner = RangePlanner("out", bound_bytes=bound)
        early = []
        for number, piece in enumerate(pieces, 1):
            early += planner.add(piece)
            known = plan_merge(pieces[:number], "out", bound_bytes=bound)
            assert early == [task for task in known if task.end - task.begin == planner._step]
        assert early + planner.rest() == plan_merge(pieces, "out", bound_bytes=bound)
        assert planner.rest() == []


def test_range_is_known_by_its_place_and_its_pieces():
    piece = Piece(path="a/x", identity="x", offset=5, size_bytes=10)
    task = MergeRange(number=1, begin=100, end=110, output="out", pieces=(piece,))
    others = [
        replace(task, begin=90, end=100),
        replace(task, pieces=()),
        *(
            replace(task, pieces=(replace(piece, **changed),))
            for changed in ({"identity": "y"}, {"offset": 4}, {"size_bytes": 9}, {"swapped_bytes": 2})
        ),
    ]
    assert len({task.identity, *(other.identity for other in others)}) == 1 + len(others)
    moved = replace(task, output="elsewhere/out", pieces=(replace(piece, path="b/x"),))
    assert moved.identity == task.identity


@pytest.mark.parametrize(("total", "ranges"), [(0, 0), (1, 1), (64 << 20, 1), ((64 << 20) + 1, 2), (10 << 40, 8624)])
def test_range_bytes_makes_at_most_9000_ranges(total, ranges):
    step = range_bytes(total)
    assert step % (64 << 20) == 0
    assert -(-total // step) == ranges


@pytest.mark.parametrize("modes", [False, True], ids=["text", "modes"])
def test_merge_equals_concatenation(tmp_path, monkeypatch, modes):
    monkeypatch.setattr(ranges, "COPY_BYTES", 64)
    monkeypatch.setattr(ranges, "DIGEST_BLOCK_BYTES", 128)
    monkeypatch.setattr("dsindex.store.storage.DIGEST_BLOCK_BYTES", 128)
    shapes = [[], [[3, 4], [], [100]], [[]], [[1]] * 50, [[200]], [[0, 5, 0]]]
    parts = [write_part(tmp_path / f"p{n}", shape, modes=modes, seed=n) for n, shape in enumerate(shapes)]
    output = tmp_path / "out.bin"
    output.write_bytes(bytes(sum(part.bin_bytes for part in parts)))
    digests = []
    for task in plan_merge([part.piece for part in parts], str(output)):
        digests += [bytes.fromhex(block) for block in merge_range(task)]
    with atomic_writer(str(tmp_path / "out.idx")) as file:
        write_merged_index(file, parts)

    assert output.read_bytes() == b"".join((tmp_path / f"p{n}.bin").read_bytes() for n in range(len(shapes)))
    assert combine_digests(digests) == digest_file(str(output))
    index = read_index(str(tmp_path / "out.idx"))
    check_index("out.idx", index, bin_size_bytes=output.stat().st_size)
    assert np.diff(index.document_indices).tolist() == [len(document) for shape in shapes for document in shape]
    if modes:
        expected = [n % 3 for shape in shapes for n in range(sum(len(document) for document in shape))]
        assert index.sequence_modes.tolist() == expected


def test_merge_refuses_other_token_types_by_name(tmp_path):
    parts = [write_part(tmp_path / "a", [[1]]), write_part(tmp_path / "b", [[1]], dtype="<i4")]
    with pytest.raises(FormatError, match=r"b\.idx: expected tokens of type uint16 as in .*a\.idx, got int32"):
        merged_header(parts)


def test_merge_refuses_parts_with_and_without_modes_by_name(tmp_path):
    parts = [write_part(tmp_path / "a", [[1]]), write_part(tmp_path / "b", [[1]], modes=True)]
    with pytest.raises(FormatError, match=r"a\.idx: expected sequence modes as in .*b\.idx, got none"):
        merged_header(parts)


def test_merge_range_of_a_shortened_part_is_an_input_error(tmp_path):
    part = write_part(tmp_path / "p", [[5], [6]])
    [task] = plan_merge([part.piece], str(tmp_path / "out"))
    (tmp_path / "out").write_bytes(b"")
    os.truncate(tmp_path / "p.bin", 7)
    with pytest.raises(InputError, match=r"p\.bin: ends at byte 7.*changed during the copy"):
        merge_range(task)


@pytest.mark.parametrize(("offset", "value", "message"), [
    (34, b"\xff\xff\xff\xff", "expected no length below 0"),
    (34, b"\x01\x00\x00\x00", "do not belong together"),
], ids=["negative length", "other length"])  # fmt: skip
def test_write_merged_index_refuses_a_damaged_part(tmp_path, offset, value, message):
    write_part(tmp_path / "p", [[5], [6]])
    data = bytearray((tmp_path / "p.idx").read_bytes())
    data[offset : offset + len(value)] = value
    (tmp_path / "p.idx").write_bytes(data)
    part = open_part(str(tmp_path / "p"))
    with pytest.raises(FormatError, match=message), atomic_writer(str(tmp_path / "out.idx")) as file:
        write_merged_index(file, [part])
    assert not (tmp_path / "out.idx").exists()
