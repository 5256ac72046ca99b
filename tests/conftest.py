"""How tests are run: in any number of processes, next to each other, on a machine that may be slow or busy.

`make test` leaves out what is marked `exhaustive`: sweeps, drawn jobs, long kills, and most cases of long tables, of
which `quick(n)` keeps n. `make test-all` runs everything.

Both start several worker processes (pytest-xdist). Each works through groups of tests, and the tests of a group
run one after the other in one process: a group is a file, but all tests that start Ray are one group, so that one
instance serves most of them, and no two clusters compete for the machine.
"""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent

# The same examples in every run; --hypothesis-profile=random looks for new ones.
COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
settings.register_profile("fixed", derandomize=True, **COMMON)
settings.register_profile("random", **COMMON)
settings.load_profile("fixed")

# pytest-xdist sets a width of 80 for its workers, which what they start would go by.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# No test asks the hub for a tokenizer, not even for a path that is missing on purpose.
os.environ["HF_HUB_OFFLINE"] = "1"

# Tests that change HOME for what they start shall not compile all kernels again.
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path.home() / ".cache"))

# A shell ignores Ctrl-C for what it starts in the background, and children inherit that: tests send it to some.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def rank(item):
    """Return where an item comes: long groups first, so that short ones are left to fill the gaps at the end."""
    if item.get_closest_marker("ray") is not None:
        return 0
    folders = ("faults", "commands", "docs")
    return next((number for number, name in enumerate(folders, 1) if item.path.is_relative_to(HERE / name)), 4)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark what belongs to a folder, and put every item into its group"""
    for item in items:
        if item.path.is_relative_to(HERE / "faults"):
            item.add_marker(pytest.mark.fault)
        if config.pluginmanager.hasplugin("xdist") and item.get_closest_marker("xdist_group") is None:
            file = item.path.relative_to(HERE.parent).as_posix()
            item.add_marker(pytest.mark.xdist_group(file if item.get_closest_marker("ray") is None else "ray"))
    leave_cases_out(items)
    items.sort(key=rank)


def leave_cases_out(items):
    """Mark as exhaustive all cases of a test but the `quick(n)` that `make test` runs, spread over them evenly."""
    tables = {}
    for item in items:
        if item.get_closest_marker("quick") is not None:
            tables.setdefault((item.path, item.name.partition("[")[0]), []).append(item)
    for cases in tables.values():
        [count] = cases[0].get_closest_marker("quick").args
        chosen = {round(number * (len(cases) - 1) / max(count - 1, 1)) for number in range(count)}
        for number, item in enumerate(cases):
            if number not in chosen:
                item.add_marker(pytest.mark.exhaustive)


@pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")
def check_groups(config, items):
    """Refuse to start where pytest-xdist did not add the groups to the names of tests, by which it spreads them."""
    if getattr(config.option, "loadgroup", False) and not all("@" in item.nodeid for item in items):
        raise pytest.UsageError("this pytest and this pytest-xdist do not go together: groups of tests are lost")


OF_USERS = {"RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
"""Variables of Ray that users set; others are set by Ray itself once it is started."""


@pytest.fixture(autouse=True)
def leave_no_trace(monkeypatch, request):
    """Check that a test leaves this process as it found it; which test comes next in it differs from run to run."""
    environment = dict(os.environ)
    folder = Path.cwd()
    starts_ray = request.node.get_closest_marker("ray") is not None  # which sets a handler of its own
    watched = () if starts_ray else (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in watched}
    yield
    monkeypatch.undo()
    changed = {name for name in environment.keys() | os.environ.keys() if environment.get(name) != os.environ.get(name)}
    changed -= {"PYTEST_CURRENT_TEST", "TOKENIZERS_PARALLELISM"}
    changed -= {"RAY_CLIENT_MODE", "RAY_DEDUP_LOGS_SKIP_REGEX"}  # by the first import of Ray
    if starts_ray:
        changed = {name for name in changed if not name.startswith("RAY_") or name in OF_USERS}
    assert not changed, f"the test has changed these variables of its process: {sorted(changed)}"
    assert Path.cwd() == folder, "the test has changed the folder of its process"
    assert handlers == {number: signal.getsignal(number) for number in handlers}, "the test has left a signal handler"


@pytest.fixture(autouse=True)
def _unconnected(monkeypatch, request):
    """Tests that are not about Ray do not use the connection that others have left open for the session."""
    if request.node.get_closest_marker("ray") is None and "ray" in sys.modules:
        monkeypatch.setattr(sys.modules["ray"], "is_initialized", lambda: False)
