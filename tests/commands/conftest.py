import io
import shlex
import sys

import pytest

from dsindex.cli.main import main
from dsindex.options.build import BuildConfig
from tests.support.buckets import ACCESS_KEY, SECRET_KEY
from tests.support.golden import OWN
from tests.support.jobs import config_of
from tests.support.processes import start_ray


@pytest.fixture(scope="session")
def ray_instance():
    """One private Ray instance for all tests that want the Ray executor; it finds the connection and uses it.

    Its workers have the credentials of the tests' object stores, and do not know where these are.
    """
    import ray

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patched.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        patched.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # some releases warn without it
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        start_ray(lambda: ray.init(address="local", num_cpus=2, **quiet))
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def executor(request):
    """The executor that a test is parametrized with, indirectly, so that Ray is started before the test begins."""
    name = request.param
    if name == "ray":
        request.getfixturevalue("ray_instance")
    return name


@pytest.fixture(scope="module")
def way(request):
    """The options of a job, indirectly, for the same reason."""
    if request.param.get("executor") == "ray":
        request.getfixturevalue("ray_instance")
    return request.param


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """Run the test in a folder of its own, and return the folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(capsys):
    """Run a command, given as text or words, and return what it prints; it must end with the code."""

    def run(words, code=0):
        capsys.readouterr()
        try:
            exit_code = main(shlex.split(words) if isinstance(words, str) else [*words])
        except SystemExit as stop:  # as argparse does
            exit_code = stop.code
        printed = capsys.readouterr()
        assert exit_code == code, printed
        return printed

    return run


@pytest.fixture
def pipe(monkeypatch):
    """Pipe bytes to the next command; where it stopped reading is `tell()` of what is returned."""

    def to_stdin(data):
        piped = io.BytesIO(data)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(piped))
        return piped

    return to_stdin


@pytest.fixture
def make_config(tmp_path):
    """A build of the project's own golden text into a folder of the test."""

    def make(**options):
        defaults = {"append_eod": True, "output_prefix": str(tmp_path / "out" / "docs"), "shard_size": "8KiB"}
        return config_of(BuildConfig, OWN.docs, **{**defaults, **options})

    return make


@pytest.fixture
def build_text(cli):
    """Build inputs with these names, which must end with the code; returns what is printed."""

    def run(names, prefix="out/x", options=(), code=0):
        paths = [f"{name}.jsonl" for name in names.split()]
        flags = ["--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod", "--output-prefix", prefix]
        return cli(["build", "--input", *paths, *flags, *options], code)

    return run
