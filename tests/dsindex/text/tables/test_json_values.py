import datetime

import pyarrow as pa
import pytest

from dsindex.text.tables.lines import json_values

PAIRS = pa.array([[("a", 1)], None, [("b", None), ("c", 2)]], pa.map_(pa.string(), pa.int32()))


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
        (pa.array([1.5, None], pa.float16()), [1.5, None]),
        (pa.array([1, None], pa.timestamp("ns")), ["1970-01-01T00:00:00.000000001", None]),
        (pa.array([datetime.time(1, 2, 3)]), ["01:02:03.000000"]),
        (pa.array([1500, None], pa.duration("ms")), ["1500ms", None]),
        (pa.array([b"ab"], pa.binary(2)), ["YWI="]),
        (PAIRS, [{"a": 1}, None, {"b": None, "c": 2}]),
        (PAIRS.slice(1), [None, {"b": None, "c": 2}]),
        (PAIRS.slice(2), [{"b": None, "c": 2}]),
        (pa.array([[(1, "a")]], pa.map_(pa.int32(), pa.string())), [[[1, "a"]]]),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)), [[1, 2], None, [3, 4]]),
        (pa.array([[1, 2], None, []], pa.list_view(pa.int32())), [[1, 2], None, []]),
        (pa.array([{"a": [{"b": b"x"}]}, None]), [{"a": [{"b": "eA=="}]}, None]),
        (pa.array([{}, None], pa.struct([])), [{}, None]),
        (pa.array([b"x", None]).dictionary_encode(), ["eA==", None]),
        (pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]), ["a", "a", "b"]),
        (pa.array(["{}"], pa.json_()) if hasattr(pa, "json_") else pa.array(["{}"]), ["{}"]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
def test_values_have_a_form_in_json(array, expected):
    assert json_values(array) == expected
