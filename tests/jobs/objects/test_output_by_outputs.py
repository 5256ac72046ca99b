"""--output-by in a bucket: the datasets are those of a disk, and a finished build is found again."""

import pytest

from tests.faults.object_kills import objects
from tests.jobs.objects.object_builds import build
from tests.support.published import published

BY = {"output_by": '.text | length % 3 | "v\\(.)"', "json_keys": ("text",)}


@pytest.mark.usefixtures("small_ranges")
def test_datasets_of_values_in_a_bucket_are_those_of_a_disk(store, text, tmp_path):
    (tmp_path / "disk").mkdir()
    build(text, str(tmp_path / "disk" / "x"), **BY)
    build(text, "s3://out/data/x", **BY)
    assert objects(store, "data") == published(tmp_path / "disk")
    assert build(text, "s3://out/data/x", **BY).already_complete
    build(text, "s3://out/data/x", **BY, fresh=True)
    assert objects(store, "data") == published(tmp_path / "disk")
