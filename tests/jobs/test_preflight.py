"""`dsindex build --check`, and the quick look at nodes before a build on a cluster."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from dsindex.engine import nodes
from dsindex.engine.nodes import check_nodes, require_sound
from dsindex.engine.source import open_source
from dsindex.errors import InputError
from dsindex.execution.calls import THIS_MACHINE, NodeAnswer
from dsindex.execution.local import ThreadExecutor
from dsindex.tools import check
from tests.support.golden import OWN
from tests.support.jobs import run_config


@dataclass
class Cluster(ThreadExecutor):
    """Threads that claim to be several machines, on some of which something is wrong while they are asked."""

    broken: dict[str, Any] = field(default_factory=dict)
    """Node to a context manager that breaks something, or to what it answers."""
    names: tuple[str, ...] = ("a", "b")
    is_cluster = True

    def __post_init__(self):
        super().__init__(2)

    def on_every_node(self, call, *, timeout):
        assert timeout > 0
        answers = {}
        for name in self.names:
            way = self.broken.get(name, contextlib.nullcontext)
            if isinstance(way, NodeAnswer):
                answers[name] = way
                continue
            with way():
                answers[name] = super().on_every_node(call, timeout=timeout)[THIS_MACHINE]
        return answers


@contextlib.contextmanager
def moved_away(path):
    os.rename(path, f"{path}.away")
    try:
        yield
    finally:
        os.rename(f"{path}.away", path)


@pytest.fixture
def own_input(tmp_path):
    path = tmp_path / "in" / "docs.jsonl"
    path.parent.mkdir()
    path.write_bytes(OWN.docs.read_bytes())
    return path


def reports_of(cluster, config, *, thorough=True):
    source = open_source(config, append_eod=True)
    try:
        return check_nodes(
            cluster,
            source,
            (f"{config.output_prefix}.build", os.path.dirname(config.output_prefix)),
            keys=("text",),
            thorough=thorough,
        )
    finally:
        cluster.close()


def test_sound_nodes_have_no_faults_and_leave_nothing_behind(make_config, tmp_path):
    reports = reports_of(Cluster(), make_config())
    assert [report.node for report in reports] == ["a", "b"]
    assert [report.faults for report in reports] == [(), ()]
    facts = reports[0].facts
    assert facts is not None
    assert facts.num_readable == 1
    assert facts.tokenizer == "audited"
    assert facts.versions["ray"] == version("ray")
    require_sound(reports)
    assert os.listdir(tmp_path) == []


def test_input_that_one_node_does_not_see_is_named_with_it(make_config, own_input):
    reports = reports_of(Cluster({"b": lambda: moved_away(own_input)}), make_config(input=(str(own_input),)))
    assert reports[0].faults == ()
    with pytest.raises(InputError, match=rf"^b: {own_input}: cannot be read \(No such file.*mount the same storage"):
        require_sound(reports)


def test_folder_that_is_another_one_on_a_node_is_named(make_config, tmp_path):
    config = make_config()
    folder = tmp_path / "out"
    folder.mkdir()

    @contextlib.contextmanager
    def another_disk():
        with moved_away(folder):
            folder.mkdir()
            yield
            folder.rmdir()

    faults = [report.faults for report in reports_of(Cluster({"a": another_disk}), config)]
    assert faults[1] == ()
    assert faults[0][0].startswith(f"a: {folder}: expected the folder that the driver writes to, got another folder")
    faults = [report.faults for report in reports_of(Cluster({"a": lambda: moved_away(folder)}), config)]
    assert "got no folder" in faults[0][0]


def test_other_versions_and_silent_nodes_are_named(make_config, monkeypatch):
    older = {**nodes.versions(), "ray": "2.9.0"}

    @contextlib.contextmanager
    def with_older():
        with monkeypatch.context() as patch:
            patch.setattr(nodes, "versions", lambda: older)
            yield

    silent = NodeAnswer(error=TimeoutError("it did not answer within 120 s"))
    first, second = reports_of(Cluster({"a": with_older, "b": silent}), make_config())
    assert first.faults == (f"a: expected ray {version('ray')} as on the driver's node, got 2.9.0; install the same",)
    assert second.faults == ("b: it did not answer within 120 s; look at that node, or take it out of the cluster",)
    assert second.facts is None


def test_build_on_a_cluster_looks_at_its_nodes_first(make_config, own_input, monkeypatch):
    cluster = Cluster({"b": lambda: moved_away(own_input)})
    monkeypatch.setattr("dsindex.engine.start.make_executor", lambda _config, **_options: cluster)
    config = make_config(input=(str(own_input),))
    with pytest.raises(InputError, match=f"^b: {own_input}: cannot be read"):
        run_config(config)
    folder = Path(f"{config.output_prefix}.build")
    assert not (folder / "shards").exists()
    assert json.loads((folder / "progress.json").read_bytes())["state"] == "failed"
    cluster = Cluster()
    assert run_config(config).datasets[0].num_documents > 0


# The command


def words_of(config, *more):
    words = ["build", "--check", "--input", *config.input, "--tokenizer-model", config.tokenizer_model, "--append-eod"]
    return [*words, "--output-prefix", config.output_prefix, *more]


def test_check_prints_a_table_and_builds_nothing(make_config, tmp_path, cli):
    shown = cli(words_of(make_config()))
    header, row, *_ = shown.out.splitlines()
    assert header.split()[:2] == ["node", "inputs"]
    assert row.startswith(THIS_MACHINE)
    assert "1 of 1" in row
    assert row.endswith("audited")
    assert "all is well; nothing was built" in shown.out
    assert shown.err == ""
    assert os.listdir(tmp_path) == []


def test_check_with_faults_ends_with_1(make_config, own_input, cli, monkeypatch):
    cluster = Cluster({"b": lambda: moved_away(own_input)})
    monkeypatch.setattr(check, "make_executor", lambda _config: cluster)
    shown = cli(words_of(make_config(input=(str(own_input),))), 1)
    assert "0 of 1" in shown.out
    assert "nothing was built" in shown.out
    assert "all is well" not in shown.out
    assert shown.err.startswith(f"b: {own_input}: cannot be read (No such file or directory); mount")
