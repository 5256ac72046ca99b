"""Where the configurations are, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "cluster_configs"
RAY_UP = ["aws.yaml", "gcp.yaml", "on_premises.yaml"]
SHARED = "/mnt/dsindex"
"""Where every configuration mounts the shared storage."""


def load(name: str) -> dict[str, Any]:
    """Return a configuration, which is one mapping."""
    config = yaml.safe_load((CONFIGS / name).read_text())
    assert isinstance(config, dict)
    return config
