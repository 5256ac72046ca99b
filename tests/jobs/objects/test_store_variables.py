"""Variables that say where stores are, as calls bring them along to other processes."""

import os

import pytest

from dsindex.execution.store_variables import run_where_stores_are


def test_worker_has_its_own_variables_after_a_call(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "own")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    variables = {"AWS_REGION": "given", "AWS_ENDPOINT_URL": "https://h"}
    assert run_where_stores_are(variables, os.getenv, "AWS_REGION") == "given"
    with pytest.raises(ZeroDivisionError):
        run_where_stores_are(variables, divmod, 1, 0)
    assert os.environ["AWS_REGION"] == "own"
    assert "AWS_ENDPOINT_URL" not in os.environ
