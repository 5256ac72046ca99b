"""No address is contacted that only a manifest or a description names, unless `--contact` confirms it."""

import json
import shutil

import pytest

pytest.importorskip("obstore")

import huggingface_hub

import dsindex
from dsindex.errors import DsindexError, MissingObjectError
from tests.support.golden import OWN
from tests.support.published import edit_manifest

OPTIONS = {"executor": "local", "progress": False}
INDEX = {"seq_length": 64, "epochs": 1, **OPTIONS}
PLACES = ["s3://planted/a.jsonl", "https://planted.xy/a.jsonl", "hf://datasets/planted/a/a.jsonl", "gs://planted/a.idx"]


@pytest.fixture
def requests(monkeypatch):
    """The addresses that are asked for; there is nothing at any of them."""
    addresses = []

    class Recording:
        def __getattr__(self, name):
            def refuse(address, *_, **__):
                addresses.append(address)
                raise MissingObjectError(f"{address}: not there")

            return refuse

    def download(name, *, local_files_only=False, **_):
        if not local_files_only:
            addresses.append(name)
        raise FileNotFoundError(name)

    monkeypatch.setattr("dsindex.store.objects.OBJECTS", Recording())
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return addresses


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A dataset, one that was merged of two, and an index cache."""
    folder = tmp_path_factory.mktemp("addresses") / "whole"
    folder.mkdir()
    shutil.copy(OWN.docs, folder / "docs.jsonl")
    for name in ("a", "b"):
        prefix = str(folder / name)
        dsindex.build(str(folder / "docs.jsonl"), tokenizer=str(OWN.plain_tokenizer), output_prefix=prefix, **OPTIONS)
    parts = [str(folder / f"{name}_text_document") for name in ("a", "b")]
    dsindex.merge(parts, output_prefix=str(folder / "merged"), **OPTIONS)
    dsindex.build_index(parts[0], split="1,0,0", data_cache_path=str(folder / "c"), **INDEX)
    return folder


def plant(manifest, address):
    """Put an address wherever a manifest has a path or a name."""
    content, run = manifest["content"], manifest["run"]
    for number, recorded in enumerate(content["inputs"]):
        recorded["path"] = address if number % 2 == 0 else "gone.jsonl"
    run["plan"]["inputs"] = [[address, *fields] for _, *fields in run["plan"]["inputs"]]
    if "tokenizer" in content:
        content["tokenizer"] |= {"name": address.rpartition("://")[2].partition(".")[0], "revision": "0" * 40}
        run["tokenizer_path"] = address


def use(folder, **contact):
    """Run every command that reads manifests, and return all that they say."""
    a, b, merged = (str(folder / name) for name in ("a_text_document", "b_text_document", "merged"))
    [cache] = (folder / "c").glob("*-description.txt")
    calls = [
        lambda: [dsindex.inspect(path, **contact) for path in (a, merged)],
        lambda: dsindex.inspect(str(cache), sample=0, data_path=a, **contact).notes,
        lambda: dsindex.inspect(str(cache), sample=0, **contact).findings,
        lambda: dsindex.trace(str(cache), sample=0, prefix=a, **contact).notes,
        lambda: dsindex.open(str(cache), prefix=a).trace(0).notes,
        lambda: dsindex.open(str(cache)),
        lambda: dsindex.open(a).decode(0),
        lambda: dsindex.verify(a, cache=str(folder / "c"), **contact, **OPTIONS),
        lambda: dsindex.verify(a, same_as=merged, **contact, **OPTIONS),
        lambda: dsindex.verify(a, against_source=True, tokenizer=str(OWN.plain_tokenizer), **contact, **OPTIONS),
        lambda: dsindex.merge([a, b], output_prefix=str(folder / "again"), **OPTIONS),
        lambda: dsindex.inspect(str(folder / "again"), **contact).notes,
        lambda: dsindex.report(a, output=str(folder / "r.html"), progress=False, **contact),
        lambda: dsindex.build_index(merged, split="9,1,0", data_cache_path=str(folder / "d"), **INDEX),
    ]
    outputs = []
    for call in calls:
        try:
            outputs.append(repr(call()))
        except DsindexError as error:
            outputs.append(str(error))
    return "\n".join(outputs)


@pytest.mark.parametrize("address", PLACES)
def test_only_confirmed_addresses_are_contacted(address, whole, requests, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    for name in ("a_text_document", "b_text_document", "merged"):
        edit_manifest(str(folder / name), lambda manifest: plant(manifest, address))
    [cache] = (folder / "c").glob("*-description.txt")
    described = json.loads(cache.read_text())
    cache.write_text(json.dumps(described | {"dataset_path": address.removesuffix(".idx")}, indent=4))
    output = use(folder)
    assert requests == []
    place = address[: address.index("/", len("https://"))]
    assert f"if you trust it: --contact {place}" in output
    shutil.rmtree(folder / "again.build", ignore_errors=True)
    use(folder, contact=(place,))
    assert requests
    assert all(request.startswith(address.removesuffix(".idx")) for request in requests)
