import subprocess

import pytest

from tests.faults.zygote import Zygote


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
def small_disk(tmp_path):
    """A tmpfs of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
