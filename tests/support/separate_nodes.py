"""A Ray cluster whose nodes share no folder that a build writes to, as machines without shared storage do not.

Each node runs in a mount namespace of its own, with an empty file system over the area: what it writes there no other
node sees, nor the test. The project's code, Python and Ray's sockets are the same for all, as an image would make them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.golden import ROOT
from tests.support.local_cluster import LocalCluster, local_cluster
from tests.support.processes import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

OWN_AREA = 'mount -t tmpfs -o mode=700 tmpfs "$0" && mkdir "$0/home" "$0/tmp" && exec "$@"'
"""A shell's command: hide the folder $0 behind an empty file system, then become the command $@."""


def wrapper_of(area):
    """Return the words before a command that give it an area of its own."""
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", OWN_AREA, str(area))


@functools.cache
def why_impossible():
    """Return why no command can have an area of its own here, or None if it can."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        try:
            ended = subprocess.run([*wrapper_of(Path(name)), "true"], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return "there is no unshare command (Linux, package util-linux)"
    said = ended.stderr.strip().replace("\n", " ")
    return None if ended.returncode == 0 else f"mount namespaces are not permitted here ({said}); they need root"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparateNodes:
    """A running cluster, and how to run commands beside it."""

    cluster: LocalCluster
    area: Path
    """Where every node, and every command of `run`, has its own files."""
    environment: Mapping[str, str]

    def run(self, *words):
        """Run a dsindex command as on a machine beside the cluster; return its exit code and output."""
        return self.run_command(sys.executable, "-m", "dsindex", *words)

    def run_command(self, *command):
        """Run any command as on a machine beside the cluster; return its exit code and output."""
        ended = subprocess.run(
            [*wrapper_of(self.area), *command],
            env={**self.environment, **self.cluster.access},
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        return ended.returncode, ended.stdout


@contextlib.contextmanager
def separate_nodes(area, variables):
    """Start a head with a worker on one node, and a worker on another, each with an area of its own.

    Args:
        area: A folder; each node sees an empty one in its place, with its home and temporary files.
        variables: Of the nodes' environment, as their credentials.
    """
    own = {"HOME": str(area / "home"), "TMPDIR": str(area / "tmp"), "PYTHONPATH": str(ROOT), **variables}
    with local_cluster(1, wrapper=wrapper_of(area), variables=own) as cluster:
        cluster.script("add", "1")
        common = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RAY_"))}
        yield SeparateNodes(cluster=cluster, area=area, environment=common | own)
