"""Standard output that is closed, full, unread or ASCII only: a job that succeeded has succeeded."""

import os
import subprocess
import sys

import pytest

from tests.support.golden import OWN, ROOT

BUILD = f"build --input {OWN.docs} --tokenizer-model {OWN.plain_tokenizer} --executor local --output-prefix out/ä"
PREFIX = "out/ä_text_document"
FULL = "could not be written to standard output (No space left on device)"


def run(shell, folder, **environment):
    """Run a command of bash, in which `$ds` is dsindex."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; ds='{sys.executable} -m dsindex'; {shell}"], cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


@pytest.mark.parametrize(("redirection", "notice"), [
    (">/dev/full", f"warning: the summary {FULL}\n"), (">&- 2>&- <&-", None),
], ids=["full", "all-closed"])  # fmt: skip
def test_build_whose_summary_cannot_be_printed_is_done(tmp_path, redirection, notice):
    process = run(f"$ds {BUILD} {redirection} && $ds report {PREFIX} -o r.html {redirection}", tmp_path)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / f"{PREFIX}.manifest.json").exists()
    assert "Traceback" not in process.stderr
    lines = [line for line in process.stderr.splitlines(keepends=True) if notice is None or line.startswith("warning:")]
    assert "".join(lines) == 2 * (notice or "")


@pytest.mark.parametrize("command", ["build --help", "verify nowhere --json"])
def test_what_is_only_printed_fails_where_it_cannot_be(tmp_path, command):
    process = run(f"$ds {command} >/dev/full", tmp_path)
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1].endswith(f"the output {FULL}")
    assert "Traceback" not in process.stderr


def test_files_of_a_job_never_become_standard_output(tmp_path):
    """With descriptor 1 closed, the first file that is opened would get its number."""
    code = (
        "import os, dsindex.cli.standard_streams as s; s.prepare_standard_streams();"
        "file = open('x', 'w');"
        "os.write(1, b'stray'); print('stray'); s.flush_output(); assert file.fileno() > 2, file.fileno()"
    )
    process = run(f'{sys.executable} -c "{code}" >&- 2>err <&-; r=$?; cat err >&2; exit $r', tmp_path)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "x").read_bytes() == b""
