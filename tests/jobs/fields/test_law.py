"""Paths, jq patterns, `--join`, `--where` and `--token-ids` of a build are under the one law."""

import pytest

import dsindex
from dsindex.engine.ledger import Ledger
from tests.jobs.fields.field_builds import KINDS, WAYS, arguments, config_of
from tests.support.jobs import run_config
from tests.support.published import published


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory):
    """What a build of each kind publishes, made once with the first of the ways."""
    made = {}

    def of_kind(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp("expected")
            dsindex.build(**arguments(config_of(source, folder, **KINDS[kind], **WAYS[0])))
            made[kind] = published(folder)
        return made[kind]

    return of_kind


@pytest.mark.quick(4)
@pytest.mark.parametrize("way", WAYS[1:], ids=["small shards", "reference engine"])
@pytest.mark.parametrize("kind", KINDS)
def test_output_does_not_depend_on_the_way(
    kind, way, source, expected, tmp_path
) :  # fmt: skip
    run_config(config_of(source, tmp_path, **KINDS[kind], **way))
    assert published(tmp_path) == expected(kind)


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", KINDS)
def test_output_of_processes_is_the_same(kind, source, expected, tmp_path):
    way = {"executor": "processes", "shard_size": "9KiB", "workers": 2}
    run_config(config_of(source, tmp_path, **KINDS[kind], **way))
    assert published(tmp_path) == expected(kind)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance")
@pytest.mark.parametrize("kind", ["path", "join and where", "token ids"])
def test_output_on_ray_is_the_same(kind, source, expected, tmp_path):
    way = {"executor": "ray", "shard_size": "9KiB", "workers": 2}
    run_config(config_of(source, tmp_path, **KINDS[kind], **way))
    assert published(tmp_path) == expected(kind)


class Stopped(Exception):
    """The job ended in the middle."""


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_build_continues_to_the_same_output(
    kind, source, expected, tmp_path
) :  # fmt: skip
    config = config_of(source, tmp_path, **KINDS[kind], **WAYS[1])
    record, committed = Ledger.record_shard, []

    def recorded(ledger, task, result):
        record(ledger, task, result)
        committed.append(task.shard)
        if len(committed) == 10:
            raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "record_shard", recorded)
        with pytest.raises(Stopped):
            run_config(config)
    run_config(config)
    assert {name: data for name, data in published(tmp_path).items() if "lock" not in name} == expected(kind)


def test_jq_runs_in_processes(source, tmp_path):
    config = config_of(source, tmp_path, where=".n == 1", executor="auto", workers=1)
    assert run_config(config).run.executor == "processes"
    config = config_of(source, tmp_path / "b", json_keys=(".meta.text",), executor="auto", workers=1)
    assert run_config(config).run.executor == "local"
