from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.zygote import Zygote

if TYPE_CHECKING:
    from collections.abc import Iterator


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
