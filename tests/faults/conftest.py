import subprocess
import tempfile

import pytest

from tests.faults.corpus import command, write_corpus
from tests.faults.drawn import MEMORY
from tests.faults.zygote import Zygote
from tests.support.published import published


def pytest_addoption(parser):
    parser.addoption("--long-faults", action="store_true", help="run the long form of the fault tests")


@pytest.fixture(scope="session")
def is_long(request):
    return bool(request.config.getoption("--long-faults", default=False))


@pytest.fixture(scope="session")
def zygote():
    """A warm process that forks a `dsindex` command per call, so that a hundred of them cost a hundred builds only."""
    with Zygote() as running:
        yield running


@pytest.fixture
def memory():
    """A folder in memory, where no sync takes time."""
    with tempfile.TemporaryDirectory(prefix="drawn", dir=MEMORY) as folder:
        yield folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "in.jsonl"
    write_corpus(path, num_lines=300, broken={})
    return path


@pytest.fixture(scope="session")
def expected(corpus, zygote, tmp_path_factory):
    """What `command` publishes of the corpus."""
    out = tmp_path_factory.mktemp("whole")
    assert zygote.run(out / "run", command(corpus, out)).code == 0
    return published(out)


@pytest.fixture
def out(tmp_path):
    """An empty folder for outputs."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
