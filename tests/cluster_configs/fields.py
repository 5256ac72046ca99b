"""The fields that the configurations may use, at every level: what is not listed here is taken for a typo.

Kept by hand from the API references of KubeRay 1.6 (ray.io/v1), Kubernetes, Ray, EC2, Compute Engine, SkyPilot 0.14 and
Anyscale. A dict lists fields, a list says
what each element may be, a set holds the values allowed, a type is what a value must be; MAP is free names to text.
"""

MAP = object()


def of(kind, names):
    """Fields of one type."""
    return dict.fromkeys(names.split(), kind)


QUANTITIES = of(str, "cpu memory ephemeral-storage")
RESOURCES = {"requests": QUANTITIES, "limits": QUANTITIES}
METADATA = {**of(str, "name namespace"), **of(MAP, "labels annotations")}
OBJECT = {"kind": str, "metadata": METADATA}
CONTAINER_SECURITY = {"allowPrivilegeEscalation": bool, "capabilities": {"drop": [{"ALL"}]}}
NODE_SELECTOR = {"matchExpressions": [{"key": str, "operator": {"In", "NotIn"}, "values": [str]}]}
CONTAINER = {
    **of(str, "name image"),
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "securityContext": CONTAINER_SECURITY,
    "env": [{**of(str, "name value"), "valueFrom": {"secretKeyRef": of(str, "name key")}}],
    "ports": [{"name": str, "containerPort": int}],
    "resources": RESOURCES,
    "volumeMounts": [{**of(str, "name mountPath subPath"), "readOnly": bool}],
}
VOLUME = {
    "name": str, "persistentVolumeClaim": {"claimName": str}, "configMap": {"name": str},
    "emptyDir": {"sizeLimit": str},
}  # fmt: skip
POD = {
    "restartPolicy": {"Never"},
    "nodeSelector": MAP,
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [NODE_SELECTOR]}}
    },
    "serviceAccountName": str,
    "automountServiceAccountToken": bool,
    "terminationGracePeriodSeconds": int,
    "securityContext": {
        **of(int, "runAsUser runAsGroup fsGroup"),
        "runAsNonRoot": bool,
        "fsGroupChangePolicy": {"OnRootMismatch"},
        "seccompProfile": {"type": {"RuntimeDefault"}},
    },
    "tolerations": [{**of(str, "key value effect"), "operator": {"Exists", "Equal"}}],
    "containers": [CONTAINER],
    "volumes": [VOLUME],
}
POD_TEMPLATE = {"metadata": METADATA, "spec": POD}
RAY_GROUP = {"rayStartParams": of(str, "num-cpus dashboard-host object-store-memory memory"), "template": POD_TEMPLATE}
RAY_CLUSTER = {
    "rayVersion": str,
    "authOptions": {"mode": {"token"}, "secretName": str},
    "enableInTreeAutoscaling": bool,
    "autoscalerOptions": {
        "idleTimeoutSeconds": int,
        "upscalingMode": {"Default", "Aggressive", "Conservative"},
        "securityContext": CONTAINER_SECURITY,
        "resources": RESOURCES,
    },
    "headGroupSpec": RAY_GROUP,
    "workerGroupSpecs": [{"groupName": str, **of(int, "replicas minReplicas maxReplicas"), **RAY_GROUP}],
}
RAY_JOB = {
    **of(str, "entrypoint runtimeEnvYAML"),
    **of(int, "backoffLimit activeDeadlineSeconds ttlSecondsAfterFinished"),
    "submissionMode": {"K8sJobMode", "HTTPMode", "SidecarMode"},
    "shutdownAfterJobFinishes": bool,
    "submitterPodTemplate": POD_TEMPLATE,
    "rayClusterSpec": RAY_CLUSTER,
}
POD_MONITOR = {
    "selector": {"matchLabels": MAP},
    "podMetricsEndpoints": [{"port": str, "relabelings": [{"sourceLabels": [str], "targetLabel": str}]}],
}
CLAIM = {
    "accessModes": [{"ReadWriteMany"}], "storageClassName": str, "resources": {"requests": {"storage": str}},
}  # fmt: skip
KUBERNETES = {
    "RayCluster": {"apiVersion": {"ray.io/v1"}, **OBJECT, "spec": RAY_CLUSTER},
    "RayJob": {"apiVersion": {"ray.io/v1"}, **OBJECT, "spec": RAY_JOB},
    "PodMonitor": {"apiVersion": {"monitoring.coreos.com/v1"}, **OBJECT, "spec": POD_MONITOR},
    "ServiceAccount": {"apiVersion": {"v1"}, **OBJECT},
    "PersistentVolumeClaim": {"apiVersion": {"v1"}, **OBJECT, "spec": CLAIM},
}
AWS_DISK = {"VolumeSize": int, "VolumeType": {"gp3"}, **of(bool, "Encrypted DeleteOnTermination")}
AWS_NODE = {
    **of(str, "InstanceType ImageId KeyName"),
    "SubnetIds": [str],
    "SecurityGroupIds": [str],
    "IamInstanceProfile": of(str, "Arn Name"),
    "InstanceMarketOptions": {"MarketType": {"spot"}, "SpotOptions": {"MaxPrice": str}},
    "MetadataOptions": {"HttpTokens": {"required"}, "HttpPutResponseHopLimit": int},
    "BlockDeviceMappings": [{"DeviceName": str, "Ebs": AWS_DISK}],
}
GCP_DISK = {"diskSizeGb": int, **of(str, "diskType sourceImage")}
GCP_NODE = {
    "machineType": str,
    "scheduling": {"provisioningModel": {"SPOT"}, "instanceTerminationAction": {"DELETE"}},
    "serviceAccounts": [{"email": str, "scopes": [str]}],
    "disks": [{**of(bool, "boot autoDelete"), "type": {"PERSISTENT"}, "initializeParams": GCP_DISK}],
}
RAY_PROVIDERS = {
    "aws": {**of(str, "type region availability_zone"), "cache_stopped_nodes": bool},
    "gcp": of(str, "type region availability_zone project_id"),
    "local": {**of(str, "type head_ip"), "worker_ips": [str]},
}
RAY_NODES = {"aws": AWS_NODE, "gcp": GCP_NODE, "local": {}}
SKYPILOT = {
    **of(str, "name workdir setup run"),
    "num_nodes": int,
    "resources": {
        **of(str, "infra cpus memory"),
        "use_spot": bool,
        "job_recovery": {"strategy": {"FAILOVER", "EAGER_NEXT_REGION"}, "max_restarts_on_errors": int},
    },
    **of(MAP, "volumes envs"),
    "secrets": {"RAY_AUTH_TOKEN": type(None)},
}
ANYSCALE_NODES = {"instance_type": str, **of(int, "min_nodes max_nodes")}
ANYSCALE = {
    **of(str, "name image_uri working_dir entrypoint"),
    "max_retries": int,
    "compute_config": {
        "head_node": {"instance_type": str, "resources": {"CPU": int}},
        "worker_nodes": [{**ANYSCALE_NODES, "market_type": {"ON_DEMAND", "SPOT", "PREFER_SPOT"}}],
    },
}


def ray_up_fields(config):
    """Return the fields of a `ray up` configuration, whose node types have names of their own."""
    provider = config["provider"]["type"]
    workers = of(int, "min_workers max_workers")
    node_type = {**workers, "resources": of(int, "CPU memory"), "node_config": RAY_NODES[provider]}
    commands = "initialization_commands setup_commands head_start_ray_commands worker_start_ray_commands"
    return {
        **of(str, "cluster_name head_node_type"),
        **workers,
        "upscaling_speed": float,
        "idle_timeout_minutes": int,
        "provider": RAY_PROVIDERS[provider],
        "auth": of(str, "ssh_user ssh_private_key"),
        "docker": {**of(str, "image container_name"), "pull_before_run": bool, "run_options": [str]},
        "available_node_types": of(node_type, "head worker"),
        "file_mounts": MAP,
        **of([str], f"{commands} rsync_exclude rsync_filter"),
    }


def unknown_fields(value, allowed, place=""):
    """List every field, value or type that is not allowed, with its place."""
    if allowed is MAP:
        entries = value.items() if isinstance(value, dict) else [(value, None)]
        return [f"{place}.{name}" for name, text in entries if not (isinstance(name, str) and isinstance(text, str))]
    if isinstance(allowed, dict):
        if not isinstance(value, dict):
            return [f"{place}: {value!r}"]
        unknown = [f"{place}.{name}" for name in value if name not in allowed]
        for name in value.keys() & allowed.keys():
            unknown += unknown_fields(value[name], allowed[name], f"{place}.{name}")
        return unknown
    if isinstance(allowed, list):
        if not isinstance(value, list):
            return [f"{place}: {value!r}"]
        return [
            problem
            for number, element in enumerate(value)
            for problem in unknown_fields(element, allowed[0], f"{place}[{number}]")
        ]
    right = value in allowed if isinstance(allowed, set) else type(value) is allowed
    return [] if right else [f"{place}: {value!r}"]
