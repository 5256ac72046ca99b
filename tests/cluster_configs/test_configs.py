"""Every configuration is checked as far as a machine without the cluster can: schema, shell, versions, storage."""

import copy
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from dsindex.options.build import BuildConfig
from tests.support.golden import ROOT

CONFIGS = ROOT / "cluster_configs"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RAY, PYTHON = "2.60.0", "3.11"
"""The releases of all configurations."""


def load(name):
    return yaml.safe_load((CONFIGS / name).read_text())


def test_ray_accepts_the_cloud_configuration():
    util = pytest.importorskip("ray.autoscaler._private.util")
    config = load("aws.yaml")
    util.validate_config(util.prepare_config(copy.deepcopy(config)))
    head, worker = (config["available_node_types"][kind] for kind in ("head", "worker"))
    assert head["resources"] == {"CPU": 0}
    assert worker["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert "SecurityGroupIds" in head["node_config"]
    assert "IamInstanceProfile" in head["node_config"]


@pytest.mark.parametrize("name", ["kuberay_rayjob.yaml", "kuberay_raycluster.yaml"])
def test_kuberay_clusters_share_the_volume_and_start_from_zero(name):
    spec = load(name)["spec"]
    cluster = spec.get("rayClusterSpec", spec)
    assert cluster["authOptions"] == {"mode": "token", "secretName": "dsindex-ray-token"}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert {"name": "shared", "persistentVolumeClaim": {"claimName": "dsindex"}} in pod["volumes"]
        assert {"name": "shared", "mountPath": "/mnt/dsindex"} in pod["containers"][0]["volumeMounts"]


def test_sample_build_keeps_everything_on_the_shared_storage():
    config = BuildConfig(**load("build.yaml"))
    for path in (*config.input, config.tokenizer_model, config.output_prefix, str(config.work_dir)):
        assert path.startswith("/mnt/dsindex/")


def test_one_ray_and_one_python_version_everywhere():
    assert PYPROJECT["project"]["requires-python"].startswith(f">={PYTHON},")
    for path in sorted(CONFIGS.iterdir()):
        text = path.read_text()
        assert set(re.findall(r"\b2\.\d\d\.\d\b", text)) <= {RAY}, path.name
        assert set(re.findall(r"\bpy(?:thon)?[ -]?(3)\.?(\d\d)\b", text, re.IGNORECASE)) <= {("3", "11")}, path.name


def test_containerfile_copies_what_the_package_needs():
    (names,) = re.findall(r"cp -r (.+) /tmp/dsindex/ ", (CONFIGS / "Containerfile").read_text())
    packages = {name.rstrip("*") for name in PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert {"pyproject.toml", "README.md", "LICENSE", *packages} <= set(names.split())
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == set(names.split())


SHELLCHECK = shutil.which("shellcheck", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("name", ["local.sh", "slurm.sbatch"])
def test_script_passes_shellcheck(name):
    process = subprocess.run([str(SHELLCHECK), CONFIGS / name], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (0, "")


def test_local_script_refuses_what_it_did_not_make(tmp_path):
    """It deletes its folder in the end, so it must never take another for it."""
    foreign = tmp_path / "precious"
    foreign.mkdir()
    environment = {**os.environ, "DSINDEX_CLUSTER_DIR": str(foreign)}
    for command in ("start", "remove"):
        script = ["bash", CONFIGS / "local.sh", command]
        process = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
        assert process.returncode == 1
        assert str(foreign) in process.stderr
    assert foreign.is_dir()
