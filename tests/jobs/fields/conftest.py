"""The records that builds of all kinds read."""

import json
import random

import pytest

from tests.jobs.fields.field_builds import NUM_LINES, record_of


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Records in two files, with blank and bad lines; each kind of build has bad records of its own."""
    folder = tmp_path_factory.mktemp("fields")
    rng = random.Random(7)
    for name in ("a", "b"):
        lines = [json.dumps(record_of(number, rng), ensure_ascii=number % 2 == 0) for number in range(NUM_LINES // 2)]
        lines[20] = ""
        lines[30] = "no JSON"
        lines[40] = '{"text": "a", "n": "x", "lang": "en", "meta": {"text": 5, "ids": [1.5]}, "lists": [[1], [-1]]}'
        lines[50] = '{"text": 5, "n": 1, "lang": "en", "meta": null, "lists": null}'
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder
