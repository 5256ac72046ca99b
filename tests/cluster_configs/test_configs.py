"""Every configuration is checked as far as a machine without the cluster can: fields, schema, shell, versions."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dsindex.yaml_file import read_yaml
from tests.cluster_configs.fields import KUBERNETES, MAP, RAY_PROVIDERS, ray_up_fields, unknown_fields
from workflows.options.config import BuildConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "cluster_configs"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RAY_UP = ["aws.yaml", "gcp.yaml", "on_premises.yaml"]
KUBERAY = ["kuberay_rayjob.yaml", "kuberay_raycluster.yaml", "kuberay_storage.yaml"]
SCRIPTS = ["local.sh", "slurm.sbatch"]
SHARED = "/mnt/dsindex"


def load(name: str) -> dict[str, Any]:
    config = yaml.safe_load((CONFIGS / name).read_text())
    assert isinstance(config, dict)
    return config


def test_every_file_is_covered_here() -> None:
    known = {*RAY_UP, *KUBERAY, *SCRIPTS, "build.yaml", "Containerfile", "README.md"}
    assert {path.name for path in CONFIGS.iterdir()} == known
    readme = (CONFIGS / "README.md").read_text()
    assert not [name for name in known - {"README.md"} if name not in readme]


# Fields and schemas.


def check_ray_up(config: dict[str, Any]) -> None:
    """Raise whatever Ray would, and ValueError for fields inside those that Ray leaves to the cloud."""
    util = pytest.importorskip("ray.autoscaler._private.util")
    if config.get("provider", {}).get("type") not in RAY_PROVIDERS:
        raise ValueError("provider")
    util.validate_config(util.prepare_config(copy.deepcopy(config)))
    if unknown := unknown_fields(config, ray_up_fields(config)):
        raise ValueError(unknown)


def check_kubernetes(config: dict[str, Any]) -> None:
    if unknown := unknown_fields(config, KUBERNETES.get(config.get("kind", ""), {})):
        raise ValueError(unknown)


def check_build(config: dict[str, Any]) -> None:
    BuildConfig.model_validate(config)


CHECKS = [
    *[pytest.param(name, check_ray_up, id=name) for name in RAY_UP],
    *[pytest.param(name, check_kubernetes, id=name) for name in KUBERAY],
    pytest.param("build.yaml", check_build, id="build.yaml"),
]


@pytest.mark.parametrize(("name", "check"), CHECKS)
def test_configuration_is_valid(name: str, check: Any) -> None:
    check(load(name))


FREE = {"file_mounts", "nodeSelector", "labels", "annotations"}
"""Maps whose names are the user's own."""


def paths_of_fields(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for name in value:
            yield (*path, name)
            if name not in FREE:
                yield from paths_of_fields(value[name], (*path, name))
    elif isinstance(value, list):
        for number, element in enumerate(value):
            yield from paths_of_fields(element, (*path, number))


@pytest.mark.parametrize(("name", "check"), CHECKS)
def test_a_typo_in_any_field_at_any_level_is_caught(name: str, check: Any, capsys: pytest.CaptureFixture[str]) -> None:
    config = load(name)
    paths = list(paths_of_fields(config))
    assert len(paths) > 5
    missed = []
    for path in paths:
        broken = copy.deepcopy(config)
        parent: Any = broken
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1][:-1] + "x" + path[-1][-1:]] = parent.pop(path[-1])
        try:
            check(broken)
        except (Exception, SystemExit):  # noqa: BLE001 - Ray raises or exits as it likes; any refusal will do
            continue
        missed.append(path)
    capsys.readouterr()
    assert missed == []


def test_allow_list_knows_types_values_and_free_maps() -> None:
    allowed = {"a": int, "b": {"x", "y"}, "c": [{"d": str}], "e": MAP}
    assert unknown_fields({"a": 1, "b": "x", "c": [{"d": ""}], "e": {"any": "text"}}, allowed) == []
    assert unknown_fields({"a": "1", "b": "z", "c": [{"d": 1, "f": 2}], "e": {"n": 3}}, allowed) != []
    assert len(unknown_fields({"a": True, "b": "z", "c": [{"d": 1, "f": 2}], "e": {"n": 3}}, allowed)) == 5


# What each configuration promises.


@pytest.mark.parametrize("name", ["aws.yaml", "gcp.yaml"])
def test_cloud_head_is_on_demand_without_work_and_workers_are_spot(name: str) -> None:
    types = load(name)["available_node_types"]
    assert types["head"]["resources"]["CPU"] == 0
    spot = {kind: re.search(r"spot|preemptible", json.dumps(types[kind]["node_config"])) for kind in types}
    assert spot["head"] is None
    assert spot["worker"] is not None
    assert types["worker"]["min_workers"] == 0 < types["worker"]["max_workers"]


def test_on_premises_head_has_no_work_and_fits_its_machines() -> None:
    config = load("on_premises.yaml")
    assert any("--num-cpus=0" in command for command in config["head_start_ray_commands"])
    assert config["min_workers"] <= config["max_workers"] == len(config["provider"]["worker_ips"])


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_up_mounts_the_shared_storage_and_sends_the_token(name: str) -> None:
    config = load(name)
    assert any(SHARED in command and "mount -t nfs" in command for command in config["initialization_commands"])
    assert any(path.endswith("/.ray/auth_token") for path in config["file_mounts"])
    assert "RAY_AUTH_MODE=token" in json.dumps(config)


def kuberay_clusters() -> list[Any]:
    job, cluster = load("kuberay_rayjob.yaml")["spec"], load("kuberay_raycluster.yaml")["spec"]
    return [pytest.param(job["rayClusterSpec"], id="RayJob"), pytest.param(cluster, id="RayCluster")]


@pytest.mark.parametrize("cluster", kuberay_clusters())
def test_kuberay_pods_share_the_volume_under_requests_and_limits(cluster: dict[str, Any]) -> None:
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert cluster["authOptions"] == {"mode": "token", "secretName": "dsindex-ray-token"}
    claim = load("kuberay_storage.yaml")["metadata"]["name"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        (container,) = pod["containers"]
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        assert mounts[SHARED]["persistentVolumeClaim"] == {"claimName": claim}
        assert container["resources"]["requests"].keys() == container["resources"]["limits"].keys() >= {"cpu", "memory"}


def test_kuberay_job_can_be_retried_and_reads_its_configuration() -> None:
    spec = load("kuberay_rayjob.yaml")["spec"]
    assert spec["backoffLimit"] > 0
    assert spec["shutdownAfterJobFinishes"] is True
    (container,) = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    folder = next(mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "config")
    assert spec["entrypoint"] == f"python -m workflows build --config {folder}/build.yaml"


def test_sample_build_keeps_everything_on_the_shared_storage() -> None:
    config = BuildConfig.model_validate(read_yaml(str(CONFIGS / "build.yaml")))
    assert config.address is None
    for path in (*config.input, config.tokenizer_model, config.output_prefix, str(config.work_dir)):
        assert path.startswith(f"{SHARED}/")


# One version of Ray and Python everywhere.

RAY_MENTION = re.compile(
    r"\bray(?:version|project/ray|\.__version__[^'\n]*)?(?:\[\w+\])?\W{1,4}(\d+\.\d+\.\d+)", re.IGNORECASE
)
PYTHON_MENTION = re.compile(r"\bpy(?:thon)?[ -]?3\.?(\d\d)\b", re.IGNORECASE)
MENTIONS = {
    "aws.yaml": (1, 1),
    "gcp.yaml": (1, 1),
    "on_premises.yaml": (0, 2),
    "kuberay_rayjob.yaml": (1, 0),
    "kuberay_raycluster.yaml": (1, 0),
    "slurm.sbatch": (1, 1),
    "Containerfile": (2, 1),
    "README.md": (1, 1),
}
"""How often each file must name Ray's and Python's version at least."""


def versions_in(text: str) -> tuple[list[str], list[str]]:
    return RAY_MENTION.findall(text), [f"3.{minor}" for minor in PYTHON_MENTION.findall(text)]


def test_one_ray_and_one_python_version_everywhere() -> None:
    (ray_pin,) = [line.split("==")[1] for line in PYPROJECT["project"]["dependencies"] if line.startswith("ray[")]
    (python,) = re.findall(r">=(3\.\d+)", PYPROJECT["project"]["requires-python"])
    for path in sorted(CONFIGS.iterdir()):
        rays, pythons = versions_in(path.read_text())
        assert set(rays) <= {ray_pin}, path.name
        assert set(pythons) <= {python}, path.name
        least = MENTIONS.get(path.name, (0, 0))
        assert (len(rays), len(pythons)) >= least, path.name
        assert len(pythons) >= least[1], path.name


@pytest.mark.parametrize(
    "text",
    [
        "rayproject/ray:2.59.0-py310-cpu",
        'rayVersion: "2.59.0" # python3.10',
        "Ray 2.59.0 and Python 3.10",
        "ray[default]==2.59.0 py310",
    ],
)
def test_other_versions_would_be_seen(text: str) -> None:
    assert versions_in(text) == (["2.59.0"], ["3.10"])


def test_containerfile_copies_what_the_package_needs() -> None:
    lines = [line for line in (CONFIGS / "Containerfile").read_text().splitlines() if line.startswith("COPY")]
    copied = {word for line in lines for word in line.split()[2:-1]}
    packages = {name.rstrip("*") for name in PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert copied == {
        "pyproject.toml",
        PYPROJECT["project"]["readme"],
        *PYPROJECT["project"]["license-files"],
        *packages,
    }


# Shell.


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_parses(name: str) -> None:
    subprocess.run(["bash", "-n", CONFIGS / name], check=True)


def find_shellcheck() -> str | None:
    return shutil.which("shellcheck", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


@pytest.mark.skipif(find_shellcheck() is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("name", SCRIPTS)
def test_script_passes_shellcheck(name: str, tmp_path: Path) -> None:
    shellcheck = str(find_shellcheck())
    shown = subprocess.run([shellcheck, CONFIGS / name], capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stdout) == (0, "")
    broken = tmp_path / name
    broken.write_text((CONFIGS / name).read_text() + "\nrm -rf $undefined_folder/*\n")
    assert subprocess.run([shellcheck, broken], capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize("name", SCRIPTS)
def test_syntax_error_in_a_script_is_caught(name: str, tmp_path: Path) -> None:
    broken = tmp_path / name
    broken.write_text((CONFIGS / name).read_text().replace("\nfi\n", "\nif\n", 1))
    assert subprocess.run(["bash", "-n", broken], capture_output=True, check=False).returncode != 0


def test_local_script_refuses_what_it_did_not_make(tmp_path: Path) -> None:
    """It deletes its folder in the end, so it must never take another for it."""
    foreign = tmp_path / "precious"
    foreign.mkdir()
    environment = {**os.environ, "DSINDEX_CLUSTER_DIR": str(foreign)}
    for command in ("start", "stop", "remove", "env"):
        shown = subprocess.run(
            ["bash", CONFIGS / "local.sh", command], env=environment, capture_output=True, text=True, check=False
        )
        assert shown.returncode == 1
        assert str(foreign) in shown.stderr
    assert foreign.is_dir()
    shown = subprocess.run(["bash", CONFIGS / "local.sh", "strat"], capture_output=True, text=True, check=False)
    assert (shown.returncode, "usage: local.sh" in shown.stderr) == (2, True)
