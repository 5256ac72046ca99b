from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsindex.formats import json_scanner
from dsindex.text import scanning

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["loops not loaded", "loops loaded"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Reading with and without the compiled loops: nothing may depend on it."""
    with monkeypatch.context() as patch:
        patch.setattr(scanning, "_LOADER", scanning._Loader())
        if request.param == "loops loaded":
            scanning._LOADER.loops = json_scanner
        yield request.param
