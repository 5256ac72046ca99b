"""A Ray cluster of several raylets on this machine, made by cluster_configs/local.sh, which has tokens on."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.golden import ROOT
from tests.support.processes import PATIENCE_SECONDS, find_marked


@dataclass
class LocalCluster:
    """A running cluster."""

    folder: Path
    """Also the HOME of everything that is started for it."""
    environment: dict[str, str]
    """For what is started for it."""
    access: dict[str, str] = field(default_factory=dict)
    """Variables that local.sh prints: with them a command reaches the cluster."""
    wrapper: tuple[str, ...] = ()
    """Words before the command of local.sh, in whose surroundings the nodes then are."""

    def script(self, *words):
        """Run local.sh; return what it printed."""
        command = [*self.wrapper, "bash", str(ROOT / "cluster_configs" / "local.sh"), *words]
        # Into a file: the daemons that it leaves running would hold a pipe open.
        with tempfile.TemporaryFile("w+") as out:
            ended = subprocess.run(
                command, env=self.environment, stdout=out, stderr=out, timeout=PATIENCE_SECONDS, check=False
            )
            out.seek(0)
            shown = out.read()
        assert ended.returncode == 0, shown
        return shown

    def processes(self):
        """Return the ids of all processes that have the cluster's folder in their environment."""
        return find_marked(f"DSINDEX_CLUSTER_DIR={self.folder}/c")


@contextlib.contextmanager
def local_cluster(num_workers, *, wrapper=(), variables=None):
    """Start a cluster with so many workers of one CPU, and stop it at the end.

    Args:
        num_workers: Nodes beside the head.
        wrapper: Words before each command of local.sh.
        variables: More of the nodes' environment.
    """
    with tempfile.TemporaryDirectory(prefix="dsx", dir="/tmp") as name:  # Ray's sockets need a short path.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        environment |= {"HOME": name, "DSINDEX_CLUSTER_DIR": f"{name}/c", "DSINDEX_CLUSTER_CPUS": "1"}
        own = {"VIRTUAL_ENV": sys.prefix, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        cluster = LocalCluster(Path(name), environment | own | dict(variables or {}), wrapper=tuple(wrapper))
        shown = cluster.script("start", str(num_workers))
        try:
            cluster.access |= dict(word.split("=", 1) for word in shlex.split(shown) if "=" in word)
            yield cluster
        finally:
            if (cluster.folder / "c").exists():
                cluster.wrapper = ()
                cluster.script("stop")
        left = cluster.processes()
        assert not left, f"local.sh stop has left processes behind: {left}"
