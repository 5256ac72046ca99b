"""Arrow arrays that are made without pandas."""

import subprocess
import sys

import numpy as np

from dsindex.arrow import number_array, numbers_of
from tests.support.golden import OWN

WATCHED_BUILD = """
import sys
looked_for = []
class Watch:
    def find_spec(self, name, path, target=None):
        looked_for.append(name)
sys.meta_path.insert(0, Watch())
from dsindex.cli.main import main
code = main(sys.argv[1:])
sys.exit("pandas is imported" if "pandas" in looked_for else code)
"""


def test_build_does_not_look_for_pandas(tmp_path):
    words = ["build", "--input", str(OWN.docs), "--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod"]
    words += ["--output-prefix", str(tmp_path / "out"), "--on-bad-record", "quarantine", "--sample", "0.5"]
    shown = subprocess.run([sys.executable, "-c", WATCHED_BUILD, *words], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr


def test_arrays_have_the_values():
    for dtype in (np.int32, np.int64, np.uint16, np.float32):
        array = number_array(np.arange(6, dtype=dtype)[::2])
        assert array.to_pylist() == [0, 2, 4]
        assert (numbers_of(array[1:]).tolist(), numbers_of(array[1:]).dtype) == ([2, 4], dtype)
        assert numbers_of(array[3:]).tolist() == []
