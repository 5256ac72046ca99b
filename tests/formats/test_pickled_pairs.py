import io
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
from dsindex.formats.pickled_pairs import read_pairs, write_pairs

EDGES = [0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**39 - 1, 2**39, 2**47, 2**55, 2**62, 2**63 - 1]


def written(pairs):
    file = io.BytesIO()
    write_pairs(file, pairs)
    return file.getvalue()


def read(data, tmp_path, *, offset=0):
    path = tmp_path / "list.pickle"
    path.write_bytes(data)
    return read_pairs(str(path), offset=offset)


def make_pairs(count):
    return np.random.default_rng(count).choice(np.array(EDGES), (count, 2))


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 1001, 2000, 9001])
def test_pairs_are_pickled_as_by_modalities(tmp_path, count):
    pairs = make_pairs(count)
    expected = pickle.dumps([tuple(pair) for pair in pairs.tolist()], protocol=4)
    assert written(pairs) == expected
    for data in (expected, pickle.dumps([tuple(pair) for pair in pairs.tolist()], protocol=5)):
        assert np.array_equal(read(b"before" + data, tmp_path, offset=6), pairs)


class Malicious:
    def __reduce__(self):
        return os.system, ("echo this must never run > malicious",)

    def __repr__(self):
        return "Malicious()"  # in the names of tests, which are the same in every process


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize("value", [
    [(0, 1), Malicious()], [Point(0, 1)], [("a", 1)], [(0, 1.5)], [(0, True)], [{}], (0, 1), [(0, 1, 2)], [(0, 1), 5],
    [[0, 1]], [(0, -1)], [(0, 2**63)], [((1, 2), (3, 4))], [(0, (1, 2))],
], ids=str)  # fmt: skip
def test_all_else_is_refused_and_nothing_runs(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormatError, match=r"list\.pickle: not a pickled list of offsets and lengths"):
        read(pickle.dumps(value, protocol=4), tmp_path)
    assert not (tmp_path / "malicious").exists()


@settings(max_examples=100)
@given(st.data())
def test_reader_gives_what_pickle_gives_or_refuses(tmp_path_factory, data):
    """Whatever is changed: what is read is what Python unpickles, and a FormatError is the only error."""
    content = bytearray(written(make_pairs(data.draw(st.sampled_from([1, 3, 40, 1003])))))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"K", b"M", b"J", b"\x8a", b"\x86\x94", b"e(", b"h\x01", b".", b"\x95"])
            | st.binary(max_size=2)
        )
    try:
        pairs = read(bytes(content), tmp_path_factory.getbasetemp())
    except FormatError:
        return
    expected = pickle.loads(bytes(content))  # noqa: S301 - it was found to be a list of pairs
    assert pairs.tolist() == [list(pair) for pair in expected]


def doubled(times):
    """A list of one tuple, which holds twice what holds twice …: 2**times integers in a hundred bytes."""
    memo = b"".join(b"h%ch%c\x86\x94" % (number, number) for number in range(1, times))
    return b"\x80\x04]\x94(K\0K\0\x86\x94" + memo + b"e."


@pytest.mark.parametrize("data", [
    b"", b"\x80\x04.", b"\x80\x04]\x94(h\x00e.", b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff].",
    b"\x80\x04" + b"]" * 300_000 + b"a" * 299_999 + b".", b"\x80\x04](" + b"K\0" * 100_000 + b"e.",
    b"\x80\x04](" + b"K\0" * 100_000 + b"\x86" * 99_999 + b"e.", b"\x80\x04]" + b"(" * 300_000 + b".",
    b"\x80\x04](K\0K\0\x86r\xff\xff\xff\xffe.", doubled(24), doubled(27), b"\x80\x04]\x94" + b"(e" * 300_000,
], ids=["", "stop", "itself", "frame", "lists", "integers", "tuples", "marks", "memo", "16m", "27", "e"])  # fmt: skip
def test_damage_and_bombs_are_refused_at_once(tmp_path, data):
    begin, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FormatError, match=r"list\.pickle: not a pickled list of"):
        read(data, tmp_path)
    assert time.process_time() - begin < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10
