"""What each configuration promises: who may do what, what may be lost, and where the files are."""

import json
import re
import subprocess

import pytest

from dsindex.options.build import BuildConfig
from dsindex.store.config_files import read_yaml
from tests.cluster_configs.configurations import CONFIGS, RAY_UP, RAY_UP_SHARED, SHARED, load, read_stack


@pytest.mark.parametrize("name", ["aws.yaml", "aws_bucket.yaml", "gcp.yaml"])
def test_cloud_head_is_on_demand_without_work_and_workers_are_spot(name):
    types = load(name)["available_node_types"]
    assert types["head"]["resources"]["CPU"] == 0
    spot = {kind: re.search(r"spot|SPOT", json.dumps(types[kind]["node_config"])) for kind in types}
    assert spot["head"] is None
    assert spot["worker"] is not None
    assert types["worker"]["min_workers"] == 0 < types["worker"]["max_workers"]


def test_on_premises_head_has_no_work_and_fits_its_machines():
    config = load("on_premises.yaml")
    assert any("--num-cpus=0" in command for command in config["head_start_ray_commands"])
    assert config["min_workers"] <= config["max_workers"] == len(config["provider"]["worker_ips"])


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_up_sends_the_token(name):
    config = load(name)
    assert any(path.endswith("/.ray/auth_token") for path in config["file_mounts"])
    assert "RAY_AUTH_MODE=token" in json.dumps(config)


@pytest.mark.parametrize("name", RAY_UP_SHARED)
def test_ray_up_mounts_the_shared_storage(name):
    config = load(name)
    mounts = [command for command in config["initialization_commands"] if re.search(r"mount -t (nfs|efs)", command)]
    assert [SHARED in command for command in mounts] == [True]


IDLE_WORKERS = "RAY_idle_worker_killing_time_threshold_ms"


@pytest.mark.parametrize("name", RAY_UP)
def test_every_ray_start_turns_usage_statistics_off_and_keeps_idle_workers(name):
    """`ray up` exports its own setting before these commands, so that of the container would not last."""
    config = load(name)
    starts = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    for command in (each for each in starts if "ray start" in each):
        settings = command[: command.index("ray start")]
        assert "RAY_USAGE_STATS_ENABLED=0" in settings
        assert f"{IDLE_WORKERS}=600000" in settings


@pytest.mark.parametrize("name", ["local.sh", "slurm.sbatch", "Containerfile"])
def test_other_starts_turn_usage_statistics_off_and_keep_idle_workers(name):
    settings = re.findall(r"^(?:export|ENV) (.*)$", (CONFIGS / name).read_text(), re.MULTILINE)
    assert {"RAY_USAGE_STATS_ENABLED=0", f"{IDLE_WORKERS}=600000"} <= set(" ".join(settings).split())


@pytest.mark.parametrize(("name", "workers_have_a_role"), [("aws.yaml", False), ("aws_bucket.yaml", True)])
def test_aws_nodes_bring_their_own_role_group_and_network(name, workers_have_a_role):
    """Otherwise Ray creates a role with full access to EC2 and S3, and a group that is open to the world for ssh."""
    types = load(name)["available_node_types"]
    assert "IamInstanceProfile" in types["head"]["node_config"]
    assert ("IamInstanceProfile" in types["worker"]["node_config"]) is workers_have_a_role
    for kind in types:
        node = types[kind]["node_config"]
        assert node["SecurityGroupIds"]
        assert node["SubnetIds"]
        assert node["ImageId"]
        assert node["MetadataOptions"]["HttpTokens"] == "required"
        assert [disk["Ebs"]["Encrypted"] for disk in node["BlockDeviceMappings"]] == [True]


def test_aws_mounts_its_files_over_tls_through_the_access_point():
    (mount,) = [command for command in load("aws.yaml")["initialization_commands"] if "mount -t" in command]
    assert re.search(r"-o tls,accesspoint=fsap-\w+", mount)


@pytest.mark.parametrize(
    ("name", "more"), [("aws_stack.yaml", set()), ("aws_bucket_stack.yaml", {"iam:PassRole"})], ids=["files", "bucket"]
)
def test_aws_stack_grants_no_more_than_its_head_needs_and_opens_nothing_to_the_world(name, more):
    """Four actions are all that Ray's node provider called, run against a simulated EC2."""
    resources = read_stack(name)["Resources"]
    (policy,) = resources["HeadRole"]["Properties"]["Policies"]
    statements = policy["PolicyDocument"]["Statement"]
    actions = {action for each in statements for action in ensure_list(each["Action"])}
    needed = {"ec2:DescribeInstances", "ec2:RunInstances", "ec2:CreateTags", "ec2:TerminateInstances"}
    assert actions == needed | more
    assert [each["Action"] for each in statements if each["Resource"] == "*"] == ["ec2:DescribeInstances"]
    assert resources["HeadRole"]["Properties"].get("ManagedPolicyArns", []) == (["BucketAccess"] if more else [])
    (rule,) = resources["Nodes"]["Properties"]["SecurityGroupIngress"]
    assert (rule["FromPort"], rule["ToPort"], rule["CidrIp"]) == (22, 22, "AllowedSshFrom")
    assert "0.0.0.0/0" not in (CONFIGS / name).read_text()
    assert resources["AmongNodes"]["Properties"]["SourceSecurityGroupId"] == "Nodes"
    assert more or resources["Files"]["Properties"]["Encrypted"] is True


@pytest.mark.parametrize("name", ["aws_stack.yaml", "aws_bucket_stack.yaml"])
def test_aws_stack_refuses_to_open_ssh_to_the_world(name):
    pattern = read_stack(name)["Parameters"]["AllowedSshFrom"]["AllowedPattern"]
    assert re.match(pattern, "203.0.113.7/32")
    assert not re.match(pattern, "0.0.0.0/0")


def ensure_list(value):
    return [value] if isinstance(value, str) else value


def test_gcp_workers_are_deleted_when_they_are_taken_away_and_images_are_of_one_release():
    types = load("gcp.yaml")["available_node_types"]
    assert types["worker"]["node_config"]["scheduling"]["instanceTerminationAction"] == "DELETE"
    images = {disk["initializeParams"]["sourceImage"] for kind in types for disk in types[kind]["node_config"]["disks"]}
    assert len(images) == 1
    assert re.search(r"/family/\S*\d{4}", images.pop())


def pods(name):
    """Yield the pod templates of a Kubernetes configuration by their roles."""
    spec = load(name)["spec"]
    if "submitterPodTemplate" in spec:
        yield "submitter", spec["submitterPodTemplate"]
    cluster = spec.get("rayClusterSpec", spec)
    yield "head", cluster["headGroupSpec"]["template"]
    for group in cluster["workerGroupSpecs"]:
        yield "worker", group["template"]


PODS = [
    pytest.param(role, pod, id=f"{name}-{role}")
    for name in ("kuberay_rayjob.yaml", "kuberay_raycluster.yaml", "kuberay_bucket_rayjob.yaml")
    for role, pod in pods(name)
]
HARDENED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize(("role", "template"), PODS)
def test_pods_meet_the_restricted_pod_security_standard(role, template):
    pod = template["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert [container["securityContext"] for container in pod["containers"]] == [HARDENED]
    if role != "submitter":
        assert pod["securityContext"]["fsGroup"] == 100
        assert ("volumes" in pod) is (pod["securityContext"].get("fsGroupChangePolicy") == "OnRootMismatch")
        env = {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"]}
        assert env == {"RAY_USAGE_STATS_ENABLED": "0", IDLE_WORKERS: "600000"}
        monitored = load("kuberay_monitoring.yaml")["spec"]["selector"]["matchLabels"]
        assert monitored.items() <= template["metadata"]["labels"].items()
    kept_off = re.findall(r"'key': '([^']+)', 'operator': 'NotIn'", str(pod.get("affinity")))
    assert ("cloud.google.com/gke-spot" in kept_off) is (role == "head")


def kuberay_clusters():
    job, cluster = load("kuberay_rayjob.yaml")["spec"], load("kuberay_raycluster.yaml")["spec"]
    return [pytest.param(job["rayClusterSpec"], id="RayJob"), pytest.param(cluster, id="RayCluster")]


@pytest.mark.parametrize("cluster", kuberay_clusters())
def test_kuberay_pods_share_the_volume_under_requests_and_limits(cluster):
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert cluster["autoscalerOptions"]["securityContext"] == HARDENED
    assert cluster["authOptions"] == {"mode": "token", "secretName": "dsindex-ray-token"}
    claim = load("kuberay_storage.yaml")["metadata"]["name"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        (container,) = pod["containers"]
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        assert mounts[SHARED]["persistentVolumeClaim"] == {"claimName": claim}
        assert container["resources"]["requests"].keys() == container["resources"]["limits"].keys() >= {"cpu", "memory"}


def test_kuberay_job_can_be_retried_and_reads_its_configuration():
    spec = load("kuberay_rayjob.yaml")["spec"]
    assert spec["backoffLimit"] > 0
    assert spec["shutdownAfterJobFinishes"] is True
    (container,) = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    folder = next(mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "config")
    assert spec["entrypoint"] == f"python -m dsindex build --config {folder}/build.yaml"


def test_sample_build_keeps_everything_on_the_shared_storage():
    config = BuildConfig.model_validate(read_yaml(str(CONFIGS / "build.yaml")))
    assert config.address is None
    for path in (*config.input, config.tokenizer_model, config.output_prefix, str(config.work_dir)):
        assert path.startswith(f"{SHARED}/")


def test_skypilot_leaves_its_own_ray_alone_and_runs_no_tasks_on_the_head():
    task = load("skypilot.yaml")
    assert task["envs"] == {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", IDLE_WORKERS: "600000"}
    assert list(task["volumes"]) == [SHARED]
    assert not re.search(r"ray (stop|symmetric-run)", task["run"])
    starts = re.findall(r"ray start .*", task["run"])
    assert ["--dashboard-agent-listen-port=" in start for start in starts] == [True, True]
    assert subprocess.run(["bash", "-n", "-c", task["run"]], check=False).returncode == 0


def test_anyscale_head_is_on_demand_without_work():
    compute = load("anyscale.yaml")["compute_config"]
    assert compute["head_node"]["resources"] == {"CPU": 0}
    assert [group["market_type"] for group in compute["worker_nodes"]] == ["SPOT"]
