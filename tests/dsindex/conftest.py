import pytest

from dsindex.kernels import loader as kernels
from dsindex.kernels.machine_code import import_kernels


@pytest.fixture(params=["kernels not loaded", "kernels loaded"])
def either_way(request, monkeypatch):
    """Reading with and without the compiled kernels: nothing may depend on it."""
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "_LOADER", kernels._Loader())
        if request.param == "kernels loaded":
            kernels._LOADER.kernels = import_kernels()
        yield request.param
