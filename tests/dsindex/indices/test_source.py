import numpy as np
import pytest

from dsindex.errors import InputError
from dsindex.index.cache import fingerprint, source_changes
from tests.support.datasets import write_dataset

LENGTHS = np.array([3], np.int32)


@pytest.mark.parametrize(
    ("place", "reason"),
    [("none", "No such file or directory"), ("file/none", "Not a directory"), ("x" * 300, "File name too long")],
    ids=["missing", "below a file", "long name"],
)
def test_why_an_index_cannot_be_read_is_told(tmp_path, place, reason):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=rf"{place}\.idx: cannot be read \({reason}\); make it readable and run"):
        fingerprint(str(tmp_path / place), 0, 1, LENGTHS)


def test_dataset_without_tokens_has_a_fingerprint(tmp_path):
    prefix = str(write_dataset(tmp_path / "d", [[[1, 2, 3]]]))
    recorded = fingerprint(prefix, 0, 1, LENGTHS).as_record()
    assert recorded["bin_bytes"] == 6
    (tmp_path / "d.bin").unlink()
    assert fingerprint(prefix, 0, 1, LENGTHS).bin_bytes is None
    assert source_changes(prefix, recorded) == []
