"""Builds from and to a bucket of moto's, through a proxy that fails: a store that the project did not write."""

import pytest

pytest.importorskip("obstore")
pytest.importorskip("boto3")
pytest.importorskip("moto.server", reason="moto and flask are not installed (the extra dev has them)")

from dsindex.engine import merge as ranges
from dsindex.jobs.build import run_build
from dsindex.options.build import BuildConfig
from tests.faults.corpus import write_corpus
from tests.objects.calls import new_client
from tests.support.golden import OWN
from tests.support.object_proxy import serving_before, serving_moto
from tests.support.object_server import ACCESS_KEY, SECRET_KEY, RandomFaults

SUFFIXES = ("bin", "idx", "provenance.parquet")
BUCKET = "builds"
STEP = 4096
"""Bytes of a range of the merge, and so of a part."""


@pytest.fixture(scope="module")
def moto():
    from moto.s3 import models

    with pytest.MonkeyPatch.context() as patch, serving_moto() as url:
        patch.setattr(models, "S3_UPLOAD_PART_MIN_SIZE", 1)
        new_client(url).create_bucket(Bucket=BUCKET)
        yield url


@pytest.fixture
def proxy(moto, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setattr(ranges, "range_bytes", lambda _total: STEP)
    with serving_before(moto, BUCKET) as store:
        yield store


def built(source, prefix, quiet, **options):
    given = {"tokenizer_model": str(OWN.plain_tokenizer), "append_eod": True, "executor": "local", "workers": 2}
    config = BuildConfig(input=(source,), output_prefix=prefix, shard_size="8KiB", **{**given, **options})
    run_build(config, reporter=quiet)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_bucket_of_moto_has_the_files_of_a_disk(moto, proxy, seed, tmp_path, quiet):
    text, client = tmp_path / "text.jsonl", new_client(moto)
    write_corpus(text, num_lines=200, broken={})
    built(str(text), str(tmp_path / "x"), quiet)
    client.upload_file(str(text), BUCKET, "in/text.jsonl")
    if seed is not None:
        # moto compares no content with its MD5, so nothing is damaged on the way.
        proxy.random_faults = RandomFaults(seed=seed, kinds=("503", "500", "reset", "lost", "truncate"))
    built(f"s3://{BUCKET}/in/text.jsonl", f"s3://{BUCKET}/{seed}/x", quiet, endpoint_url=proxy.url)
    for suffix in SUFFIXES:
        name = f"x_text_document.{suffix}"
        content = client.get_object(Bucket=BUCKET, Key=f"{seed}/{name}")["Body"].read()
        assert content == (tmp_path / name).read_bytes(), suffix
    assert proxy.operations["UploadPart"] > 5
    assert (proxy.faults_taken.total() > 5) is (seed is not None)
    assert "Uploads" not in client.list_multipart_uploads(Bucket=BUCKET)
    left = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{seed}/")["Contents"]
    assert not [entry["Key"] for entry in left if ".build/" in entry["Key"]]
