"""Builds from and to a bucket on a cluster whose nodes share nothing else."""

import ast
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("obstore")
pytest.importorskip("boto3")

from dsindex.cli.main import main
from dsindex.jobs.build import run_build
from tests.faults.object_kills import CHAT, objects
from tests.support.conversations import CONVERSATIONS
from tests.support.golden import GOLDEN, OWN
from tests.support.object_server import ACCESS_KEY, SECRET_KEY, serving_objects
from tests.support.published import published
from tests.support.separate_nodes import separate_nodes, why_impossible

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1800)]

PUBLISHED = ("bin", "idx", "provenance.parquet")
LIST_AREA_OF_EVERY_NODE = """
import os, sys, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1)
def write_and_list(area, name):
    open(os.path.join(area, name), "x").close()
    return sorted(os.listdir(area))

nodes = [node["NodeID"] for node in ray.nodes() if node["Resources"].get("CPU")]
print([ray.get(write_and_list.options(scheduling_strategy=On(node, soft=False)).remote(sys.argv[1], f"of-{number}"))
       for number, node in enumerate(nodes)])
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    if reason := why_impossible():
        pytest.skip(reason)
    area = tmp_path_factory.mktemp("area")
    with separate_nodes(area, {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}) as running:
        yield running


@pytest.fixture
def store():
    with serving_objects(objects={"in/docs.jsonl": OWN.docs}, buckets={"out"}) as server:
        yield server


@pytest.fixture
def expected(make_config, quiet):
    """What a build on this machine makes of the same text."""
    config = make_config()
    run_build(config, reporter=quiet)
    return {name: Path(f"{config.output_prefix}_text_document.{name}").read_bytes() for name in PUBLISHED}


def words(store, prefix):
    """Return the words of a build; where the server is, the driver alone knows."""
    given = ["--input", "s3://in/docs.jsonl", "--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod"]
    return ["build", *given, "--shard-size", "8KiB", "--output-prefix", prefix, "--endpoint-url", store.url]


def test_file_of_a_node_is_on_no_other(nodes):
    code, shown = nodes.run_command(sys.executable, "-c", LIST_AREA_OF_EVERY_NODE, str(nodes.area))
    assert code == 0, shown
    listed = ast.literal_eval(shown.splitlines()[-1])
    assert [[name for name in names if name.startswith("of-")] for names in listed] == [["of-0"], ["of-1"]]
    assert not list(nodes.area.iterdir())  # nor in this process


def test_output_in_a_folder_is_refused(nodes, store):
    code, shown = nodes.run(*words(store, f"{nodes.area}/out/docs"))
    assert code == 1, shown
    assert "expected the folder that the driver writes to, got no folder" in shown


HERE = f"{GOLDEN}/eod_text_document"
COMMANDS = {
    "index": ("index --data-path {here} --seq-length 64 --epochs 1 --data-cache-path {area}/cache", "{area}"),
    "index-of-own": ("index --data-path {own} --seq-length 64 --epochs 1 --data-cache-path /tmp", "{own}.idx"),
    "merge": ("merge --input {here} --output-prefix {area}/out/docs", "{area}/out/docs.build"),
    "convert": ("convert {here} {area}/docs.pbin", "{area}"),
    "verify": ("verify {own}", "{own}.bin"),
}


@pytest.mark.parametrize(("command", "place"), COMMANDS.values(), ids=COMMANDS)
def test_files_that_only_the_driver_sees_are_refused(nodes, command, place):
    names = {"here": HERE, "area": nodes.area, "own": f"{nodes.area}/own"}
    copy = 'for end in bin idx; do cp $0.$end $1.$end; done; shift; exec "$@"'
    words = [sys.executable, "-m", "dsindex", *command.format(**names).split(), "--executor", "ray"]
    code, shown = nodes.run_command("sh", "-c", copy, HERE, f"{nodes.area}/own", *words)
    assert code == 1, shown
    assert f": {place.format(**names)}: " in shown
    assert "mount the same storage under the same path on every node" in shown


OTHERS = {
    "piped": "build --input - --append-eod --output-prefix {prefix}",
    "pack": "pack --input {docs} --output {prefix}.pbin",
    "instruct": "instruct {chat} --input {chats} --seq-length 768 --output-prefix {prefix}",
}


@pytest.mark.parametrize("command", OTHERS.values(), ids=OTHERS)
def test_other_jobs_need_nothing_but_a_bucket(nodes, store, command, tmp_path):
    chat = tmp_path / "given" / "chat.yaml"
    chat.parent.mkdir()
    chat.write_text(CHAT)
    store.objects["in/chats.jsonl"] = CONVERSATIONS.read_bytes()

    def words_for(prefix):
        given = {"docs": "s3://in/docs.jsonl", "chat": chat, "chats": "s3://in/chats.jsonl", "prefix": prefix}
        rest = ["--tokenizer-model", str(OWN.plain_tokenizer), "--shard-size", "8KiB", "--endpoint-url", store.url]
        return [*command.format(**given).split(), "--on-bad-record", "quarantine", *rest]

    with pytest.MonkeyPatch.context() as signed:
        signed.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        signed.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        with OWN.docs.open() as piped:
            signed.setattr(sys, "stdin", piped)
            assert main([*words_for(str(tmp_path / "x")), "--executor", "local"]) == 0
    started = [sys.executable, "-m", "dsindex", *words_for("s3://out/x"), "--executor", "ray"]
    code, shown = nodes.run_command("sh", "-c", 'exec "$@" < "$0"', str(OWN.docs), *started)
    assert code == 0, shown
    assert objects(store, "") == published(tmp_path)
    assert not store.uploads


def test_bucket_is_all_that_the_nodes_share(nodes, store, expected):
    code, shown = nodes.run(*words(store, "s3://out/data/docs"))
    assert code == 0, shown
    assert {name: store.content(f"out/data/docs_text_document.{name}") for name in PUBLISHED} == expected
    manifest = json.loads(store.content("out/data/docs_text_document.manifest.json"))
    assert (manifest["run"]["executor"], manifest["run"]["workers"]) == ("ray", 2)  # one CPU on each node
    assert not store.uploads
    assert not [name for name in store.objects if ".build/" in name]
