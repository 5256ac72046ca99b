"""What is shipped to a cluster."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

import dsindex
import workflows
from dsindex.errors import InputError, LimitError
from workflows.cluster import submit
from workflows.cluster.job_server import Submission

ROOT = Path(__file__).parents[3]

# What is shipped.


def shipped_names(submission: Submission) -> set[str]:
    return {file.name for file in submission.files}


def test_every_module_is_shipped_and_no_cache_or_data() -> None:
    names = shipped_names(submit.plan_submission(["build"]))
    for package in (dsindex, workflows):
        folder = Path(str(package.__file__)).parent
        assert {path.relative_to(folder.parent).as_posix() for path in folder.rglob("*.py")} <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".bin", ".idx"))]


@pytest.mark.parametrize("spelling", ["--config {}", "--config={}"])
def test_local_config_is_shipped_and_found_by_its_last_name(spelling: str, tmp_path: Path) -> None:
    config = tmp_path / "my build.yaml"
    config.write_text("input: [x]\n")
    command = ["build", *spelling.format("\0").split(" ")]
    submission = submit.plan_submission([word.replace("\0", str(config)) for word in command], installed=True)
    assert shlex.split(submission.entrypoint) == [
        *["python", "-m", "workflows"],
        *[word.replace("\0", config.name) for word in command],
    ]
    assert [(file.source, file.name, file.size_bytes) for file in submission.files] == [(config, config.name, 11)]


@pytest.mark.parametrize("command", [["build", "--config", "/nowhere/b.yaml"], ["build", "--config"], ["build"]])
def test_config_of_the_cluster_stays_as_it_is(command: list[str]) -> None:
    submission = submit.plan_submission(command, installed=True)
    assert submission == Submission(entrypoint=shlex.join(["python", "-m", "workflows", *command]))


def test_shipped_folder_leaves_out_data_but_a_named_file_never(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    for name in ("tokenizer.json", "weights.bin", ".git/config", "data/x.json", "vocab/a.txt", "__pycache__/a.pyc"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / "dangling").symlink_to(tmp_path / "nowhere")
    ship = [str(folder), str(folder / "weights.bin")]
    assert shipped_names(submit.plan_submission(["build"], installed=True, ship=ship)) == {
        "tokenizer/tokenizer.json",
        "tokenizer/vocab/a.txt",
        "weights.bin",
    }


def test_what_cannot_be_shipped_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="nowhere: expected a file or folder to ship"):
        submit.plan_submission(["build"], ship=[str(tmp_path / "nowhere")])
    (tmp_path / "dsindex").mkdir()
    with pytest.raises(InputError, match="dsindex: expected different names of what is shipped"):
        submit.plan_submission(["build"], ship=[str(tmp_path / "dsindex")])
    other = tmp_path / os.fsdecode(b"caf\xe9.json")
    other.write_text("{}")
    with pytest.raises(InputError, match=r"caf\\udce9\.json: expected a name in UTF-8 on one line to ship"):
        submit.plan_submission(["build"], installed=True, ship=[str(other)])
    large = tmp_path / "large"
    large.write_bytes(b"x" * 1000)
    monkeypatch.setattr(submit, "PACKAGE_LIMIT", 999)
    with pytest.raises(LimitError, match=r"at most 999 bytes to ship, got 1,000, of them 1,000 in .*large"):
        submit.plan_submission(["build"], installed=True, ship=[str(large)])
