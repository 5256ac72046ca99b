"""`dsindex doctor`: what it finds, that it holds no secrets, and that it works where little does."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dsindex.cli.doctor import Group, examine_package, hide_all_secrets
from tests.jobs.test_ray_address import GIVEN, WRONG, head
from tests.support.golden import TOKENIZERS

ROOT = Path(__file__).parents[2]
SECRETS = {
    "RAY_AUTH_TOKEN": "rtoken-9f3c1d77aa",
    "HF_TOKEN": "hf_PlantedPlantedPlanted",
    "AWS_SECRET_ACCESS_KEY": "aws/planted+secret",
    "MY_SERVICE_PASSWORD": "planted-password",
}


def examine(cli, code, *flags):
    return json.loads(cli(["doctor", "--json", *flags], code).out)


def run_elsewhere(environment, *flags, cwd):
    command = [sys.executable, "-m", "dsindex", "doctor", *flags]
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, capture_output=True, text=True, env={**base, **environment}, cwd=cwd, check=False, timeout=300
    )


def test_every_group_has_facts(tmp_path, cli):
    found = examine(cli, 0, "--path", str(tmp_path), "--tokenizer-model", str(TOKENIZERS["gpt2"]))
    assert found["is_fine"]
    groups = found["groups"]
    assert list(groups) == ["software", "machine", "storage", "tokenizer", "ray", "kernels"]
    assert groups["software"]["numpy"].startswith(importlib.metadata.version("numpy"))
    assert "jobs use" in groups["machine"]["CPUs"]
    assert groups["storage"][str(tmp_path)].endswith(" GB free")
    assert groups["tokenizer"]["engine"].startswith("gigatoken")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_planted_secrets_are_not_shown(tmp_path):
    address = "http://user:planted-url-pw@host.example:8265?sig=planted-sig"
    environment = {**SECRETS, "HOME": str(tmp_path), "RAY_ADDRESS": address, "HF_HOME": f"/x/{SECRETS['HF_TOKEN']}"}
    for flags in ([], ["--json"], ["--address", address], ["--address", "me:planted-url-pw@localhost:1"]):
        shown = run_elsewhere(environment, *flags, cwd=tmp_path)
        text = shown.stdout + shown.stderr
        assert "from RAY_AUTH_TOKEN" in text
        assert "host.example" in text
        for secret in [*SECRETS.values(), "planted-url-pw", "planted-sig"]:
            assert secret not in text, flags


@pytest.mark.parametrize(("text", "shown"), [
    ("ray://u:p@h:1", "ray://h:1"), ("u:p@h:1", "<hidden>@h:1"), ("https://planted@h/x", "https://h/x"),
    ("https://h/x?token=abc", "https://h/x"),
    ("key-of-the-test", "<SOME_API_KEY>"), ("false", "false"),
])  # fmt: skip
def test_secrets_are_told_from_other_texts(text, shown, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "key-of-the-test")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert hide_all_secrets(text) == shown


def test_works_without_home_and_where_nothing_can_be_written(tmp_path):
    shown = run_elsewhere({"TMPDIR": "/proc"}, "--path", "/proc", cwd=tmp_path)
    assert shown.returncode == 1
    assert "Traceback" not in shown.stderr
    assert "! /proc: no file can be written there" in shown.stdout
    assert shown.stdout.splitlines()[-1].endswith("1 of them makes builds fail")


@pytest.mark.parametrize(("flags", "message"), [
    (["--path", "{}/missing"], "{}/missing: expected a folder, got none; make it: mkdir -p {}/missing"),
    (["--tokenizer-model", "{}/missing"], "tokenizer: {}/missing: expected"),
    (["--address", "127.0.0.1:1"], "127.0.0.1:1: expected the head of a Ray cluster, but nothing answers there"),
    (["--address", "http://head:8265"], "expected a cluster's own address"),
])  # fmt: skip
def test_what_makes_builds_fail_is_a_finding(flags, message, tmp_path, cli):
    (tmp_path / "file").write_text("")
    found = examine(cli, 1, *(flag.replace("{}", str(tmp_path)) for flag in flags))
    breaking = [finding["message"] for finding in found["findings"] if finding["breaks_builds"]]
    assert len(breaking) == 1
    assert message.replace("{}", str(tmp_path)) in breaking[0]


def test_token_that_cannot_be_read_breaks_only_jobs_on_a_cluster(tmp_path, cli, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    for flags, expected in (([], 0), (["--address", "127.0.0.1:1"], 1)):
        found = examine(cli, expected, "--path", str(tmp_path), *flags)
        (message,) = (finding["message"] for finding in found["findings"] if finding["group"] == "ray")
        assert message == (
            f"RAY_AUTH_TOKEN_PATH: {tmp_path}/none: cannot be read (No such file or directory); set it to the file "
            f"with the cluster's token, or unset it"
        )


def test_head_says_whether_it_accepts_the_token(tmp_path, cli, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with head() as address:
        for token, expected in ((GIVEN.value, 0), (WRONG.value, 1)):
            monkeypatch.setenv("RAY_AUTH_TOKEN", token)
            found = examine(cli, expected, "--path", str(tmp_path), "--address", str(address))
            assert ("accepts ours" in found["groups"]["ray"]["head"]) is (expected == 0)
            assert token not in json.dumps(found)


@pytest.mark.parametrize(("requirement", "fact", "breaks"), [
    ("numpy>=1", importlib.metadata.version("numpy"), None),
    ("numpy<1.5,>=1", f"{importlib.metadata.version('numpy')}, outside >=1,<1.5", False),
    ("no-such-package>=3", "missing", True),
])  # fmt: skip
def test_package_outside_its_range_is_told(requirement, fact, breaks):
    group = Group("software")
    examine_package(group, Requirement(requirement))
    assert list(group.facts.values()) == [fact]
    assert [finding.breaks_builds for finding in group.findings] == ([] if breaks is None else [breaks])
