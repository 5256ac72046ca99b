"""A Ray cluster of several raylets on this machine, started by cluster_configs/local.sh with token authentication."""

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
    """Folder of the cluster; also the HOME of its processes."""
    environment: dict[str, str]
    """Environment in which local.sh runs."""
    access: dict[str, str] = field(default_factory=dict)
    """Variables that local.sh prints and that a command needs to reach the cluster."""

    def script(self, *words):
        """Run local.sh and return its output."""
        command = ["bash", str(ROOT / "cluster_configs" / "local.sh"), *words]
        # Write the output to a file: the daemons that stay running would keep a pipe open.
        with tempfile.TemporaryFile("w+") as out:
            streams = {"stdout": out, "stderr": out}
            process = subprocess.run(command, env=self.environment, timeout=PATIENCE_SECONDS, check=False, **streams)
            out.seek(0)
            output = out.read()
        assert process.returncode == 0, output
        return output


@contextlib.contextmanager
def local_cluster(num_workers):
    """Start a head and nodes with one CPU each, stop them at the end, and check that no process is left."""
    with tempfile.TemporaryDirectory(prefix="dsx", dir="/tmp") as name:  # Ray's sockets need a short path.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        environment |= {"HOME": name, "DSINDEX_CLUSTER_DIR": f"{name}/c", "DSINDEX_CLUSTER_CPUS": "1"}
        variables = {"VIRTUAL_ENV": sys.prefix, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        cluster = LocalCluster(Path(name), environment | variables)
        output = cluster.script("start", str(num_workers))
        try:
            cluster.access |= dict(word.split("=", 1) for word in shlex.split(output) if "=" in word)
            yield cluster
        finally:
            if (cluster.folder / "c").exists():
                cluster.script("stop")
        remaining_pids = find_marked(f"DSINDEX_CLUSTER_DIR={name}/c")
        assert not remaining_pids, f"local.sh stop has left processes behind: {remaining_pids}"
