"""Configurations without shared storage: nothing is mounted, and each node has its own credentials for the bucket."""

import json
import re
import shlex

import pytest

from dsindex.cli.build import read_build_options
from dsindex.cli.parser import make_parser
from tests.cluster_configs.configurations import CONFIGS, ROOT, load, read_stack

BUCKET_FILES = sorted(path.name for path in CONFIGS.glob("*bucket*"))
NEEDED_OF_OBJECTS = {
    *("s3:GetObject", "s3:PutObject", "s3:DeleteObject"),
    *("s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"),
}
NEEDED_OF_BUCKET = {"s3:ListBucket", "s3:ListBucketMultipartUploads"}


@pytest.mark.parametrize("name", BUCKET_FILES)
def test_nothing_is_mounted_and_no_key_is_given(name):
    text = (CONFIGS / name).read_text()
    assert not re.search(r"mount -t|/mnt/|persistentVolumeClaim|elasticfilesystem|AWS::EFS", text)
    assert not re.search(r"aws_access_key_id|aws_secret_access_key|AKIA", text, re.IGNORECASE)


def test_nodes_of_aws_install_what_reads_and_writes_buckets():
    assert load("aws_bucket.yaml")["setup_commands"] == ["pip install --quiet '/home/ray/dsindex[cluster,objects]'"]


def test_profiles_of_head_and_workers_are_those_of_the_stack():
    types = load("aws_bucket.yaml")["available_node_types"]
    resources = read_stack("aws_bucket_stack.yaml")["Resources"]
    for kind, profile, role in (("head", "HeadProfile", "HeadRole"), ("worker", "WorkerProfile", "WorkerRole")):
        assert f"-{profile}-" in types[kind]["node_config"]["IamInstanceProfile"]["Arn"]
        assert resources[profile]["Properties"]["Roles"] == [role]
        assert resources[role]["Properties"]["ManagedPolicyArns"] == ["BucketAccess"]
    assert "Policies" not in resources["WorkerRole"]["Properties"]


def test_head_may_give_its_workers_role_and_no_other():
    (policy,) = read_stack("aws_bucket_stack.yaml")["Resources"]["HeadRole"]["Properties"]["Policies"]
    (given,) = [each for each in policy["PolicyDocument"]["Statement"] if each["Action"] == "iam:PassRole"]
    assert given["Resource"] == "WorkerRole.Arn"
    assert given["Condition"] == {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}


def allowed(statements):
    """Return what may be done with objects and with the bucket."""
    found = {}
    for each in statements:
        assert each["Effect"] == "Allow"
        found.setdefault("objects" if each["Resource"].endswith("/*") else "bucket", set()).update(each["Action"])
    return found


def test_roles_may_do_with_the_bucket_what_builds_need_and_the_page_says_the_same():
    access = read_stack("aws_bucket_stack.yaml")["Resources"]["BucketAccess"]["Properties"]["PolicyDocument"]
    wanted = {"objects": NEEDED_OF_OBJECTS, "bucket": NEEDED_OF_BUCKET}
    assert allowed(access["Statement"]) == wanted
    page = (ROOT / "docs" / "object-outputs.md").read_text()
    (shown,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert allowed(json.loads(shown)["Statement"]) == wanted


def test_bucket_is_private_encrypted_and_kept_and_forgets_uploads_that_nobody_completes():
    resources = read_stack("aws_bucket_stack.yaml")["Resources"]
    bucket = resources["Bucket"]
    assert bucket["DeletionPolicy"] == bucket["UpdateReplacePolicy"] == "Retain"
    assert "BucketEncryption" in bucket["Properties"]
    assert set(bucket["Properties"]["PublicAccessBlockConfiguration"].values()) == {True}
    (rule,) = bucket["Properties"]["LifecycleConfiguration"]["Rules"]
    assert rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] >= 7  # builds may be continued so long
    (denied,) = resources["BucketPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    assert (denied["Effect"], denied["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})


def test_pods_have_the_account_and_no_volume():
    account = load("kuberay_bucket_account.yaml")["metadata"]
    assert account["annotations"].keys() == {"eks.amazonaws.com/role-arn"}
    cluster = load("kuberay_bucket_rayjob.yaml")["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert pod["serviceAccountName"] == account["name"]
        assert "volumes" not in pod
        assert not [container for container in pod["containers"] if "volumeMounts" in container]
    assert "automountServiceAccountToken" not in cluster["headGroupSpec"]["template"]["spec"]  # the autoscaler's
    assert cluster["workerGroupSpecs"][0]["template"]["spec"]["automountServiceAccountToken"] is False


def test_commands_keep_everything_in_the_bucket():
    """The job's entry point, and the commands that the README and the page on clusters show."""
    texts = [load("kuberay_bucket_rayjob.yaml")["spec"]["entrypoint"]]
    for path in (CONFIGS / "README.md", ROOT / "docs" / "cluster.md"):
        found = re.findall(r"^ *dsindex submit -- (build --input 's3:.*\n.*)$", path.read_text(), re.MULTILINE)
        assert len(found) == 1
        texts += found
    for text in texts:
        words = shlex.split(text.replace("\\\n", " ").replace("BUCKET", "bucket"))
        words = words[words.index("build") + 1 :]
        config, _ = read_build_options(make_parser("build").parse_args(["build", *words]))
        assert all(path.startswith("s3://") for path in config.input)
        assert config.output_prefix.startswith("s3://")
        assert str(config.work_dir or config.output_prefix).startswith("s3://")
        assert not config.tokenizer_model.startswith("/")
