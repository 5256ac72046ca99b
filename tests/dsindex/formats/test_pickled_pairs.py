import os
import pickle
import resource
import time
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.errors import FormatError
from dsindex.formats import safe_pickle
from dsindex.formats.safe_pickle import PairListWriter, read_pairs

EDGES = [0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**39 - 1, 2**39, 2**47, 2**55, 2**62, 2**63 - 1]
ENDING = 0x9486
"""Spelled 86 94: what also ends a tuple."""


def written(pairs, *, step=None):
    parts = []
    writer = PairListWriter(lambda data: parts.append(bytes(data)))
    for begin in range(0, len(pairs), step or max(1, len(pairs))):
        writer.add(pairs[begin : begin + (step or len(pairs))])
    writer.close()
    return b"".join(parts)


def read(data, tmp_path, *, offset=0):
    path = tmp_path / "list.pickle"
    path.write_bytes(data)
    return np.concatenate([np.empty((0, 2), np.int64), *read_pairs(str(path), offset=offset)])


def pickled(pairs, protocol=4):
    return pickle.dumps([tuple(pair) for pair in pairs.tolist()], protocol=protocol)


def make_pairs(count, kind):
    rng = np.random.default_rng(count)
    if kind == "edges":
        return rng.choice(np.array(EDGES), (count, 2))
    if kind == "endings":  # every number holds the bytes that end a tuple, at any place
        return (ENDING << rng.integers(0, 40, (count, 2))).astype(np.int64)
    lengths = rng.integers(20, 5000, count)
    return np.stack((np.cumsum(lengths) - lengths, lengths), axis=1)


@pytest.mark.quick(6)
@pytest.mark.parametrize("kind", ["edges", "endings", "lines"])
@pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 2000, 31_999, 32_000, 32_001, 70_000])
def test_writer_gives_the_bytes_of_pickle(tmp_path, count, kind):
    pairs = make_pairs(count, kind)
    expected = pickled(pairs)
    assert written(pairs) == expected
    assert written(pairs, step=777) == expected
    assert np.array_equal(read(expected, tmp_path), pairs)


def test_writer_refuses_negative_numbers():
    with pytest.raises(ValueError, match="at least 0, got -1"):
        written(np.array([[0, -1]]))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 1001])
def test_reader_reads_every_binary_protocol(tmp_path, protocol, count):
    pairs = make_pairs(count, "edges")
    assert np.array_equal(read(b"before" + pickled(pairs, protocol), tmp_path, offset=6), pairs)


@pytest.mark.parametrize("read_bytes", [30, 1000, 1 << 20])
def test_reader_gives_the_same_wherever_reads_are_cut(tmp_path, monkeypatch, read_bytes):
    monkeypatch.setattr(safe_pickle, "READ_BYTES", read_bytes)
    for kind in ("edges", "endings"):
        pairs = make_pairs(3000, kind)
        assert np.array_equal(read(pickled(pairs), tmp_path), pairs)


def test_reader_takes_a_pair_that_stands_twice(tmp_path):
    """One object twice is a reference into the memo, which only the unpickler follows; what came before counts once."""
    pairs = [(number, 7) for number in range(50_000)]
    assert read(pickle.dumps([*pairs, pairs[3]], protocol=4), tmp_path).tolist() == [*map(list, pairs), [3, 7]]


class Malicious:
    def __reduce__(self):
        return os.system, ("echo this must never run > malicious",)

    def __repr__(self):
        return "Malicious()"  # in the names of tests, which are the same in every process


Point = namedtuple("Point", "x y")


@pytest.mark.quick(8)
@pytest.mark.parametrize(("value", "message"), [
    ([(0, 1), Malicious()], "got (SHORT_BINUNICODE|GLOBAL|BINUNICODE) at byte"),
    ([Point(0, 1)], "got (SHORT_BINUNICODE|GLOBAL|BINUNICODE) at byte"),
    ([("a", 1)], "got (SHORT_BINUNICODE|BINUNICODE) at byte"),
    ([(0, 1.5)], "got BINFLOAT at byte"),
    ([(0, True)], "got NEWTRUE at byte"),
    ([{}], "got EMPTY_DICT at byte"),
    ((0, 1), "got one that is cut off, damaged, or of something else"),
    ([(0, 1, 2)], "got TUPLE3 at byte"),
    ([(0, 1), 5], "got one that is cut off, damaged, or of something else"),
    ([[0, 1]], "got EMPTY_LIST at byte"),
    ([(0, -1)], "expected entry 0 to be"),
    ([(0, 2**63)], "expected entry 0 to be"),
    ([(number, 1) for number in range(5)] + [(2**64, 5)], "expected entry 5 to be"),
    ([(0, 2**80)], "got LONG1 at byte"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("protocol", [2, 4])
def test_reader_refuses_all_else_before_anything_runs(tmp_path, monkeypatch, value, message, protocol):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormatError, match=message):
        read(pickle.dumps(value, protocol=protocol), tmp_path)
    assert not (tmp_path / "malicious").exists()


HUGE_FRAME = b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff]."
DAMAGED = [b"", b"\x80", b"\x80\x04", b"\x80\x04.", b"\x80\x04]", b"\x80\x00].", b"\x80\x04]e.", b"\x80\x04h\x00.",
           b"\x80\x02](.", b"\x80\x04a.", b"\x80\x04]K\x01K\x02\x86", HUGE_FRAME, b"\x80\x04]..", b"].",
           b"\x80\x04]\x94(K\x01K\x02\x86\x94e.x", b"\x80\x04]\x94(h\x00e."]  # fmt: skip


@pytest.mark.parametrize("data", DAMAGED, ids=repr)
def test_reader_refuses_damage(tmp_path, data):
    with pytest.raises(FormatError, match=r"list\.pickle: expected (a pickled list|entry 0 to be)"):
        read(data, tmp_path)


@settings(max_examples=100)
@given(st.data())
def test_reader_gives_what_pickle_gives_or_refuses(tmp_path_factory, data):
    """Whatever is changed: what is read is what Python unpickles, and a FormatError is the only error."""
    protocol = data.draw(st.sampled_from([2, 4]))
    pickle_bytes = bytearray(pickled(make_pairs(data.draw(st.sampled_from([1, 3, 40, 1003])), "lines"), protocol))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(pickle_bytes) - 1))
        pickle_bytes[place : place + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"K", b"M", b"J", b"\x8a", b"\x86\x94", b"e(", b"h\x01", b".", b"\x95"])
            | st.binary(max_size=2)
        )
    try:
        got = read(bytes(pickle_bytes), tmp_path_factory.getbasetemp())
    except FormatError:
        return
    expected = pickle.loads(bytes(pickle_bytes))  # noqa: S301 - it was found to be a list of pairs
    assert got.tolist() == [list(pair) for pair in expected]


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02" + b"]" * 3_000_000 + b"a" * 2_999_999 + b".",
        b"\x80\x02](" + b"K\0" * 1_000_000 + b"\x85" * 2_000_000 + b"e.",
        b"\x80\x02]" + b"(" * 3_000_000 + b".",
        b"\x80\x02](K\0K\0\x86r\xff\xff\xff\xffe.",
        b"\x80\x02](" + b"K\0K\0\x86" * 1000 + b"r\x00\x00\x10\x00e.",
    ],
    ids=["nested lists", "nested tuples", "marks", "a place far off in the memo", "a place off in the memo"],
)
def test_reader_refuses_bombs_at_once(tmp_path, data):
    """Opcode by opcode, nested lists of 6 MB took 26 s; the place in the memo is 64 GiB of memory."""
    begin, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FormatError, match="it was not unpickled"):
        read(data, tmp_path)
    assert time.process_time() - begin < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
