"""--shuffle-documents under the one law: any cut, executor, interruption, damage and container."""

import pytest

from dsindex.engine import tokenize
from dsindex.engine.ledger import Ledger
from dsindex.engine.shards import shuffle
from dsindex.engine.shards.shuffle import shuffled_order
from dsindex.errors import PlanError
from tests.jobs.order.ordered_builds import FILES, SEED, build, content, documents, origins, require_whole
from tests.support.compressed import COMPRESSORS
from tests.support.golden import OWN
from tests.support.killed import kill_after
from tests.support.published import published

WAYS = [
    {"shard_size": "64MiB"},
    {"shard_size": "1KiB", "workers": 3},
    {"shard_size": "3KiB", "executor": "processes"},
    {"keep_shards": True},
]


@pytest.mark.quick(2)
@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_shuffled_build_is_the_permuted_one(texts, tmp_path, way):
    plain, out = tmp_path / "plain", tmp_path / "out"
    build(texts, plain)
    build(texts, out, shuffle_documents=SEED, **way)
    order = shuffled_order(SEED, len(origins(plain))).tolist()
    for key in ("text", "title"):
        assert documents(out, key) == [documents(plain, key)[number] for number in order]
        assert origins(out, key) == [origins(plain, key)[number] for number in order]
        name = f"x_{key}_document.quarantine.jsonl.zst"
        assert (out / name).read_bytes() == (plain / name).read_bytes()
    assert [each["tokens"] for each in (content(out), content(plain))] == [content(plain)["tokens"]] * 2
    assert content(out)["options"]["shuffle_documents"] == SEED
    assert "shuffle_documents" not in content(plain)["options"]
    require_whole(out, texts)
    left = [path.name for path in (out / "x.build").rglob("*") if path.suffix in {".bin", ".order"}]
    assert bool(left) == ("keep_shards" in way)
    assert not [name for name in left if name.startswith(("run", "bucket"))]


@pytest.mark.quick(1)
@pytest.mark.parametrize("run_bytes", [3000, 24 << 10, 64 << 20])
def test_the_order_does_not_depend_on_runs_and_buckets(texts, tmp_path, monkeypatch, run_bytes):
    build(texts, tmp_path / "expected", shuffle_documents=SEED)
    monkeypatch.setattr(shuffle, "MIN_RUN_BYTES", run_bytes)
    build(texts, tmp_path / "out", shuffle_documents=SEED, shard_size="2KiB")
    assert published(tmp_path / "out") == published(tmp_path / "expected")


@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance", "small_runs")
def test_ray_gives_the_same_order(texts, tmp_path):
    options = {"shuffle_documents": SEED, "sample": "60%", "repeat": ("a=1.5",)}
    build(texts, tmp_path / "expected", **options)
    build(texts, tmp_path / "out", executor="ray", address="auto", shard_size="2KiB", **options)
    assert published(tmp_path / "out") == published(tmp_path / "expected")


def test_a_shuffled_build_works_without_provenance(texts, tmp_path):
    build(texts, tmp_path / "out", shuffle_documents=SEED, no_provenance=True)
    build(texts, tmp_path / "plain", no_provenance=True)
    order = shuffled_order(SEED, len(documents(tmp_path / "plain"))).tolist()
    assert documents(tmp_path / "out") == [documents(tmp_path / "plain")[number] for number in order]
    require_whole(tmp_path / "out", texts)


class Stopped(BaseException):
    """In place of a kill, at a known point."""


@pytest.mark.quick(1)
@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("keep_shards", [False, True], ids=["", "keep-shards"])
@pytest.mark.parametrize("own", [{}, {"repeat": ("a=2",)}, {"hold_out": 0.3}], ids=["", "repeat", "held out"])
def test_an_interrupted_shuffle_goes_on_from_each_point(texts, tmp_path, monkeypatch, keep_shards, own):
    """It does not tokenize again, although the shards are gone by then."""
    out = tmp_path / "out"
    options = {"shuffle_documents": SEED, "keep_shards": keep_shards, **own}
    build(texts, tmp_path / "expected", **options)
    record = Ledger.record_sorted
    num_recorded = 0

    def record_and_stop(ledger, *arguments):
        nonlocal num_recorded
        record(ledger, *arguments)
        num_recorded += 1
        raise Stopped

    def refuse(*_):
        raise AssertionError("a shard is made again")

    stops = 0
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "record_sorted", record_and_stop)
        while True:
            try:
                build(texts, out, **options)
            except Stopped:
                stops += 1
                patched.setattr(tokenize, "tokenize_shard", refuse)
            else:
                break
                assert stops < 50, "it makes progress"
    assert stops == num_recorded > 6
    assert published(out) == published(tmp_path / "expected")
    assert (out / "x.build").exists() == keep_shards


@pytest.mark.usefixtures("small_runs")
def test_files_are_removed_as_soon_as_they_are_not_needed(texts, tmp_path, monkeypatch):
    sizes = []
    record = Ledger.record_sorted

    def record_and_measure(ledger, *arguments):
        record(ledger, *arguments)
        bins = (tmp_path / "out/x.build/shards").rglob("*.bin")
        sizes.append(sum(path.stat().st_size for path in bins))

    monkeypatch.setattr(Ledger, "record_sorted", record_and_measure)
    build(texts, tmp_path / "out", shuffle_documents=SEED)
    total = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.bin"))
    assert total <= max(sizes) <= 2.2 * total


@pytest.mark.quick(1)
@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("suffix", [".bin", ".idx", ".prov", ".order"])
def test_a_damaged_run_is_made_again(texts, tmp_path, monkeypatch, suffix):
    out = tmp_path / "out"
    build(texts, tmp_path / "expected", shuffle_documents=SEED)
    record = Ledger.record_sorted

    def stop_at_bucket(ledger, identity, result):
        record(ledger, identity, result)
        if identity.startswith("bucket"):
            raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "record_sorted", stop_at_bucket)
        with pytest.raises(Stopped):
            build(texts, out, shuffle_documents=SEED)
    damaged = next(path for path in (out / "x.build/shards").rglob(f"run-*{suffix}") if path.stat().st_size)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 0xFF
    damaged.write_bytes(data)
    build(texts, out, shuffle_documents=SEED)
    assert published(out) == published(tmp_path / "expected")


@pytest.mark.quick(1)
@pytest.mark.fault
@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("num_tasks", [1, 6, 8])
def test_a_killed_shuffle_goes_on(texts, tmp_path, num_tasks):
    out = tmp_path / "out"
    out.mkdir()
    command = ["build", "--input", *FILES, "--json-keys", "text", "title", "--append-eod", "--on-bad-record"]
    command += ["quarantine", "--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", str(out / "x")]
    command += ["--shard-size", "4KiB", "--executor", "local", "--workers", "2", "--shuffle-documents", str(SEED)]
    setup = f"from dsindex.engine.shards import shuffle; shuffle.MIN_RUN_BYTES = {shuffle.MIN_RUN_BYTES}"
    kill_after("record_sorted", num_tasks, command, folder=texts, setup=setup)
    build(texts, tmp_path / "expected", shuffle_documents=SEED)
    build(texts, out, shuffle_documents=SEED)
    assert published(out) == published(tmp_path / "expected")
    assert not (out / "x.build").exists()


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["one.gz", "frames.zst"])
def test_containers_do_not_change_order_and_sample(texts, tmp_path, name):
    packed = tmp_path / "packed"
    packed.mkdir()
    for each in FILES:
        (packed / each).write_bytes(COMPRESSORS[name]((texts / each).read_bytes()))
    options = {"shuffle_documents": SEED, "sample": 0.7, "repeat": ("b=1.5",)}
    build(texts, tmp_path / "expected", **options)
    build(packed, tmp_path / "out", shard_size="1KiB", **options)
    assert documents(tmp_path / "out") == documents(tmp_path / "expected")
    assert origins(tmp_path / "out") == origins(tmp_path / "expected")


def test_an_added_input_continues_kept_shards(texts, tmp_path):
    out = tmp_path / "out"
    build(texts, out, input=("a", "b"), shuffle_documents=SEED, keep_shards=True)
    build(texts, out, shuffle_documents=SEED, keep_shards=True, replace=True)
    build(texts, tmp_path / "expected", shuffle_documents=SEED)
    assert published(out) == published(tmp_path / "expected")


def test_another_seed_is_another_plan(texts, tmp_path):
    build(texts, tmp_path / "out", shuffle_documents=SEED)
    with pytest.raises(PlanError, match="shuffle-documents was 3 and is 4"):
        build(texts, tmp_path / "out", shuffle_documents=4)
