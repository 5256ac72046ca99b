from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.faults.zygote import Zygote
from tests.support.object_server import ACCESS_KEY, SECRET_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long-faults", action="store_true", help="run the long form of the fault tests")


@pytest.fixture(scope="session")
def is_long(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--long-faults", default=False))


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """A warm process that forks a `dsindex` command per call, so that a hundred of them cost a hundred builds only."""
    with Zygote() as running:
        yield running


@pytest.fixture(scope="session")
def signed_zygote() -> Iterator[Zygote]:
    """A warm process that has the credentials of the tests' store."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patched.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        with Zygote() as running:
            yield running


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
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
