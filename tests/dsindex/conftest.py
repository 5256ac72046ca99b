from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsindex.kernels import loader as loops

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["loops not loaded", "loops loaded"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Reading with and without the compiled loops: nothing may depend on it."""
    with monkeypatch.context() as patch:
        patch.setattr(loops, "_LOADER", loops._Loader())
        if request.param == "loops loaded":
            loops._LOADER.loops = loops.import_loops()
        yield request.param
