"""The fields that the configurations may use, at every level: what is not listed here is taken for a typo.

Kept by hand from the API references of KubeRay 1.6 (ray.io/v1), Kubernetes, Ray, EC2, Compute Engine, SkyPilot 0.14 and
Anyscale. A dict lists fields, a list says
what each element may be, a set holds the values allowed, a type is what a value must be; MAP is free names to text.
"""

MAP = object()
QUANTITIES = {"cpu": str, "memory": str, "ephemeral-storage": str}
RESOURCES = {"requests": QUANTITIES, "limits": QUANTITIES}
METADATA = {"name": str, "namespace": str, "labels": MAP, "annotations": MAP}
CONTAINER_SECURITY = {"allowPrivilegeEscalation": bool, "capabilities": {"drop": [{"ALL"}]}}
NODE_SELECTOR = {"matchExpressions": [{"key": str, "operator": {"In", "NotIn"}, "values": [str]}]}
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
        "runAsNonRoot": bool,
        "runAsUser": int,
        "runAsGroup": int,
        "fsGroup": int,
        "fsGroupChangePolicy": {"OnRootMismatch"},
        "seccompProfile": {"type": {"RuntimeDefault"}},
    },
    "tolerations": [{"key": str, "operator": {"Exists", "Equal"}, "value": str, "effect": str}],
    "containers": [
        {
            "name": str,
            "image": str,
            "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
            "securityContext": CONTAINER_SECURITY,
            "env": [{"name": str, "value": str, "valueFrom": {"secretKeyRef": {"name": str, "key": str}}}],
            "ports": [{"name": str, "containerPort": int}],
            "resources": RESOURCES,
            "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool, "subPath": str}],
        }
    ],
    "volumes": [
        {
            "name": str,
            "persistentVolumeClaim": {"claimName": str},
            "configMap": {"name": str},
            "emptyDir": {"sizeLimit": str},
        }
    ],
}
POD_TEMPLATE = {"metadata": METADATA, "spec": POD}
RAY_START = {"num-cpus": str, "dashboard-host": str, "object-store-memory": str, "memory": str}
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
    "headGroupSpec": {"rayStartParams": RAY_START, "template": POD_TEMPLATE},
    "workerGroupSpecs": [
        {
            "groupName": str,
            "replicas": int,
            "minReplicas": int,
            "maxReplicas": int,
            "rayStartParams": RAY_START,
            "template": POD_TEMPLATE,
        }
    ],
}
KUBERNETES = {
    "RayCluster": {"apiVersion": {"ray.io/v1"}, "kind": str, "metadata": METADATA, "spec": RAY_CLUSTER},
    "RayJob": {
        "apiVersion": {"ray.io/v1"},
        "kind": str,
        "metadata": METADATA,
        "spec": {
            "entrypoint": str,
            "submissionMode": {"K8sJobMode", "HTTPMode", "SidecarMode"},
            "backoffLimit": int,
            "activeDeadlineSeconds": int,
            "shutdownAfterJobFinishes": bool,
            "ttlSecondsAfterFinished": int,
            "runtimeEnvYAML": str,
            "submitterPodTemplate": POD_TEMPLATE,
            "rayClusterSpec": RAY_CLUSTER,
        },
    },
    "PodMonitor": {
        "apiVersion": {"monitoring.coreos.com/v1"},
        "kind": str,
        "metadata": METADATA,
        "spec": {
            "selector": {"matchLabels": MAP},
            "podMetricsEndpoints": [{"port": str, "relabelings": [{"sourceLabels": [str], "targetLabel": str}]}],
        },
    },
    "ServiceAccount": {"apiVersion": {"v1"}, "kind": str, "metadata": METADATA},
    "PersistentVolumeClaim": {
        "apiVersion": {"v1"},
        "kind": str,
        "metadata": METADATA,
        "spec": {
            "accessModes": [{"ReadWriteMany"}],
            "storageClassName": str,
            "resources": {"requests": {"storage": str}},
        },
    },
}

AWS_NODE = {
    "InstanceType": str,
    "ImageId": str,
    "KeyName": str,
    "SubnetIds": [str],
    "SecurityGroupIds": [str],
    "IamInstanceProfile": {"Arn": str, "Name": str},
    "InstanceMarketOptions": {"MarketType": {"spot"}, "SpotOptions": {"MaxPrice": str}},
    "MetadataOptions": {"HttpTokens": {"required"}, "HttpPutResponseHopLimit": int},
    "BlockDeviceMappings": [
        {
            "DeviceName": str,
            "Ebs": {"VolumeSize": int, "VolumeType": {"gp3"}, "Encrypted": bool, "DeleteOnTermination": bool},
        }
    ],
}
GCP_NODE = {
    "machineType": str,
    "scheduling": {"provisioningModel": {"SPOT"}, "instanceTerminationAction": {"DELETE"}},
    "serviceAccounts": [{"email": str, "scopes": [str]}],
    "disks": [
        {
            "boot": bool,
            "autoDelete": bool,
            "type": {"PERSISTENT"},
            "initializeParams": {"diskSizeGb": int, "diskType": str, "sourceImage": str},
        }
    ],
}
RAY_PROVIDERS = {
    "aws": {"type": str, "region": str, "availability_zone": str, "cache_stopped_nodes": bool},
    "gcp": {"type": str, "region": str, "availability_zone": str, "project_id": str},
    "local": {"type": str, "head_ip": str, "worker_ips": [str]},
}
RAY_NODES = {"aws": AWS_NODE, "gcp": GCP_NODE, "local": {}}
SKYPILOT = {
    "name": str,
    "num_nodes": int,
    "workdir": str,
    "resources": {
        "infra": str,
        "cpus": str,
        "memory": str,
        "use_spot": bool,
        "job_recovery": {"strategy": {"FAILOVER", "EAGER_NEXT_REGION"}, "max_restarts_on_errors": int},
    },
    "volumes": MAP,
    "secrets": {"RAY_AUTH_TOKEN": type(None)},
    "envs": MAP,
    "setup": str,
    "run": str,
}
ANYSCALE = {
    "name": str,
    "image_uri": str,
    "working_dir": str,
    "entrypoint": str,
    "max_retries": int,
    "compute_config": {
        "head_node": {"instance_type": str, "resources": {"CPU": int}},
        "worker_nodes": [
            {
                "instance_type": str,
                "min_nodes": int,
                "max_nodes": int,
                "market_type": {"ON_DEMAND", "SPOT", "PREFER_SPOT"},
            }
        ],
    },
}


def ray_up_fields(config):
    """Return the fields of a `ray up` configuration, whose node types have names of their own."""
    provider = config["provider"]["type"]
    node_type = {
        "min_workers": int,
        "max_workers": int,
        "resources": {"CPU": int, "memory": int},
        "node_config": RAY_NODES[provider],
    }
    return {
        "cluster_name": str,
        "min_workers": int,
        "max_workers": int,
        "upscaling_speed": float,
        "idle_timeout_minutes": int,
        "provider": RAY_PROVIDERS[provider],
        "auth": {"ssh_user": str, "ssh_private_key": str},
        "docker": {"image": str, "container_name": str, "pull_before_run": bool, "run_options": [str]},
        "head_node_type": str,
        "available_node_types": dict.fromkeys(("head", "worker"), node_type),
        "initialization_commands": [str],
        "file_mounts": MAP,
        "rsync_exclude": [str],
        "rsync_filter": [str],
        "setup_commands": [str],
        "head_start_ray_commands": [str],
        "worker_start_ray_commands": [str],
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
