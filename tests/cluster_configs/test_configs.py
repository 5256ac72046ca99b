"""Every configuration is checked as far as a machine without the cluster can: fields, schema, shell, versions."""

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

from dsindex.execution.ray_address import NEWEST_RAY
from dsindex.options.build import BuildConfig
from tests.cluster_configs.configurations import CONFIGS, RAY_UP, ROOT, load
from tests.cluster_configs.fields import (
    ANYSCALE,
    KUBERNETES,
    MAP,
    RAY_PROVIDERS,
    SKYPILOT,
    ray_up_fields,
    unknown_fields,
)

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
KUBERAY_CLUSTERS = ["kuberay_rayjob.yaml", "kuberay_raycluster.yaml", "kuberay_bucket_rayjob.yaml"]
KUBERAY = [*KUBERAY_CLUSTERS, "kuberay_storage.yaml", "kuberay_monitoring.yaml", "kuberay_bucket_account.yaml"]
SCRIPTS = ["local.sh", "slurm.sbatch", "kuberay_wait.sh"]
JOBS = ["skypilot.yaml", "anyscale.yaml"]
OTHERS = [
    "aws_stack.yaml",
    "aws_bucket_stack.yaml",
    "build.yaml",
    "Containerfile",
    "README.md",
    "grafana_dashboard.json",
]


def test_every_file_is_covered_here():
    known = {*RAY_UP, *KUBERAY, *JOBS, *SCRIPTS, *OTHERS}
    assert {path.name for path in CONFIGS.iterdir()} == known
    readme = (CONFIGS / "README.md").read_text()
    assert not [name for name in known - {"README.md"} if name not in readme]


# Fields and schemas.


def check_ray_up(config):
    """Raise whatever Ray would, and ValueError for fields inside those that Ray leaves to the cloud."""
    util = pytest.importorskip("ray.autoscaler._private.util")
    if config.get("provider", {}).get("type") not in RAY_PROVIDERS:
        raise ValueError("provider")
    util.validate_config(util.prepare_config(copy.deepcopy(config)))
    if unknown := unknown_fields(config, ray_up_fields(config)):
        raise ValueError(unknown)


def check_kubernetes(config):
    if unknown := unknown_fields(config, KUBERNETES.get(config.get("kind", ""), {})):
        raise ValueError(unknown)


def check_job(config):
    allowed = ANYSCALE if "entrypoint" in config else SKYPILOT
    if unknown := unknown_fields(config, allowed):
        raise ValueError(unknown)


def check_build(config):
    BuildConfig.model_validate(config)


CHECKS = [
    *[pytest.param(name, check_ray_up, id=name) for name in RAY_UP],
    *[pytest.param(name, check_kubernetes, id=name) for name in KUBERAY],
    *[pytest.param(name, check_job, id=name) for name in JOBS],
    pytest.param("build.yaml", check_build, id="build.yaml"),
]


@pytest.mark.parametrize(("name", "check"), CHECKS)
def test_configuration_is_valid(name, check):
    check(load(name))


FREE = {"file_mounts", "volumes", "envs", "secrets", "nodeSelector", "labels", "matchLabels", "annotations"}
"""Maps whose names are the user's own."""


def paths_of_fields(value, path=()):
    if isinstance(value, dict):
        for name in value:
            yield (*path, name)
            if name not in FREE:
                yield from paths_of_fields(value[name], (*path, name))
    elif isinstance(value, list):
        for number, element in enumerate(value):
            yield from paths_of_fields(element, (*path, number))


@pytest.mark.parametrize(("name", "check"), CHECKS)
def test_a_typo_in_any_field_at_any_level_is_caught(name, check, capsys):
    config = load(name)
    paths = list(paths_of_fields(config))
    assert len(paths) > 4
    missed = []
    for path in paths:
        broken = copy.deepcopy(config)
        parent = broken
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


def test_allow_list_knows_types_values_and_free_maps():
    allowed = {"a": int, "b": {"x", "y"}, "c": [{"d": str}], "e": MAP}
    assert unknown_fields({"a": 1, "b": "x", "c": [{"d": ""}], "e": {"any": "text"}}, allowed) == []
    assert unknown_fields({"a": "1", "b": "z", "c": [{"d": 1, "f": 2}], "e": {"n": 3}}, allowed) != []
    assert len(unknown_fields({"a": True, "b": "z", "c": [{"d": 1, "f": 2}], "e": {"n": 3}}, allowed)) == 5


@pytest.mark.parametrize("name", KUBERAY_CLUSTERS)
def test_labels_for_kueue_and_volcano_only_need_their_comment_sign_removed(name):
    text = (CONFIGS / name).read_text()
    for line in re.findall(r"^  # labels: .*$", text, re.MULTILINE):
        config = yaml.safe_load(text.replace(line, line.replace("# ", "", 1)))
        check_kubernetes(config)
        assert any(label.endswith("/queue-name") for label in config["metadata"]["labels"])
    assert len(re.findall(r"^  # labels: ", text, re.MULTILINE)) == 2


# One version of Ray and Python everywhere.

RAY_MENTION = re.compile(
    r"\bray(?:version|project/ray|\.__version__[^'\n]*)?(?:\[\w+\])?\W{1,4}(\d+\.\d+\.\d+)", re.IGNORECASE
)
PYTHON_MENTION = re.compile(r"\bpy(?:thon)?[ -]?3\.?(\d\d)\b", re.IGNORECASE)
MENTIONS = {
    "aws.yaml": (1, 1),
    "aws_bucket.yaml": (1, 1),
    "gcp.yaml": (1, 1),
    "on_premises.yaml": (0, 2),
    "kuberay_rayjob.yaml": (1, 0),
    "kuberay_raycluster.yaml": (1, 0),
    "kuberay_bucket_rayjob.yaml": (1, 0),
    "slurm.sbatch": (1, 1),
    "Containerfile": (1, 1),
    "skypilot.yaml": (0, 1),
    "README.md": (1, 1),
}
"""How often each file must name Ray's and Python's version at least."""


def versions_in(text):
    return RAY_MENTION.findall(text), [f"3.{minor}" for minor in PYTHON_MENTION.findall(text)]


def test_one_ray_and_one_python_version_everywhere():
    (python,) = re.findall(r">=(3\.\d+)", PYPROJECT["project"]["requires-python"])
    for path in sorted(CONFIGS.iterdir()):
        rays, pythons = versions_in(path.read_text())
        assert set(rays) <= {NEWEST_RAY}, path.name
        assert set(pythons) <= {python}, path.name
        least = MENTIONS.get(path.name, (0, 0))
        assert (len(rays), len(pythons)) >= least, path.name
        assert len(pythons) >= least[1], path.name


def copied_into_image():
    (names,) = re.findall(r"cp -r (.+) /tmp/dsindex/ ", (CONFIGS / "Containerfile").read_text())
    return set(names.split())


def test_containerfile_copies_what_the_package_needs():
    packages = {name.rstrip("*") for name in PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert copied_into_image() == {
        "pyproject.toml",
        PYPROJECT["project"]["readme"],
        *PYPROJECT["project"]["license-files"],
        *packages,
        "workflows",  # dsindex/demo/pretraining.py is a link to one of them
    }


def test_containerfile_installs_what_reads_and_writes_buckets():
    text = (CONFIGS / "Containerfile").read_text()
    assert "pip install --no-cache-dir '/tmp/dsindex[cluster,google,ray-data]'" in text


def test_build_context_has_what_the_containerfile_copies_and_nothing_else():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied_into_image()


# Shell.


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_parses(name):
    parsed = subprocess.run(["bash", "-n", CONFIGS / name], capture_output=True, text=True, check=False)
    assert (parsed.returncode, parsed.stderr) == (0, "")


def find_shellcheck():
    return shutil.which("shellcheck", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


@pytest.mark.skipif(find_shellcheck() is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("name", SCRIPTS)
def test_script_passes_shellcheck(name, tmp_path):
    shellcheck = str(find_shellcheck())
    shown = subprocess.run([shellcheck, CONFIGS / name], capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stdout) == (0, "")
    broken = tmp_path / name
    broken.write_text((CONFIGS / name).read_text() + "\nrm -rf $undefined_folder/*\n")
    assert subprocess.run([shellcheck, broken], capture_output=True, check=False).returncode == 1


def test_local_script_refuses_what_it_did_not_make(tmp_path):
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
