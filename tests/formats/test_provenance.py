"""Provenance is written and read without pandas."""

import subprocess
import sys

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
