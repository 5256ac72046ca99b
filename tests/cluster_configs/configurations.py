"""Where the configurations are, and how they are read."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "cluster_configs"
RAY_UP_SHARED = ["aws.yaml", "gcp.yaml", "on_premises.yaml"]
"""Those that mount the shared storage."""
RAY_UP = [*RAY_UP_SHARED, "aws_bucket.yaml"]
SHARED = "/mnt/dsindex"
"""Where every configuration mounts the shared storage."""


def load(name):
    """Return a configuration, which is one mapping."""
    config = yaml.safe_load((CONFIGS / name).read_text())
    assert isinstance(config, dict)
    return config


def read_stack(name):
    """Read a CloudFormation template, with the text of `!Ref X`, `!Sub X` and `!GetAtt X` in place of what it is."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda loader, _, node: loader.construct_scalar(node))
    stack = Loader((CONFIGS / name).read_text()).get_single_data()
    assert isinstance(stack, dict)
    return stack
