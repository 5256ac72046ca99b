"""`dsindex doctor`: examine this machine, for a job or a bug report.

Nothing is built, and only an empty temporary file is written. What cannot be examined is a finding, so that one fault
does not hide the rest. Secrets are removed from every text.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import resource
import shlex
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.requirements import Requirement  # ray depends on it
from packaging.specifiers import SpecifierSet

import dsindex
from dsindex.amounts import count, format_size
from dsindex.cli.options import read_config
from dsindex.engine.start import WORKER_MEMORY_BYTES
from dsindex.errors import DsindexError, TaskError, missing_package
from dsindex.execution.local import available_cpus
from dsindex.execution.progress.standard_streams import write_json, write_lines
from dsindex.execution.ray_address import NEWEST_RAY, parse_address, untried_release
from dsindex.execution.ray_token import Token, TokenError, find_token, hide_secrets
from dsindex.options.config import JsonOutput
from dsindex.options.declare import option
from dsindex.text.agreement import GIGATOKEN_VERSIONS, REFERENCE_VERSIONS, was_compared

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from typing import Any

DESCRIPTION = """\
Examine this machine: versions, CPUs, memory, limits, storage, the engine for a tokenizer, Ray, and
the cache of compiled kernels. What needs attention is marked with !, with what to do. The output
holds no tokens or passwords: paste it into a bug report.

Exit code 0: nothing makes builds fail. 1: something does."""
EXAMPLES = (
    "dsindex doctor",
    "dsindex doctor --tokenizer-model FOLDER --path /data/out --address auto",
)
ANSWER_SECONDS = 10.0
"""How long a folder may take to be examined: a network file system whose server is gone never answers."""
_FULL_BYTES = 1 << 30
"""Free space below which a folder is called nearly full."""
_UNLIMITED_BYTES = 1 << 60
"""From here on, a limit of version 1 of control groups means none."""
_FEWEST_OPEN_FILES = 1024
_SMALLEST_FILE_LIMIT_BYTES = 1 << 30
_SHORTEST_HIDDEN = 6
"""The shortest value of a variable that is hidden; shorter ones occur in ordinary words."""

_OPTIONAL = ("torch", "transformers", "megatron-core", "huggingface-hub")
"""Packages that are named if they are installed."""
_VARIABLES = (
    *("HF_HOME", "HF_HUB_OFFLINE", "NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT", "OMP_NUM_THREADS", "RAYON_NUM_THREADS"),
    *("RAY_TMPDIR", "TMPDIR", "TOKENIZERS_PARALLELISM", "XDG_CACHE_HOME"),
)
"""Variables of the environment that change how jobs run, and hold no secrets."""

_NETWORK = re.compile(
    r"nfs.*|cifs|smb.*|ceph|lustre|gpfs|beegfs.*|glusterfs|9p|afs|virtiofs|fuse\.(sshfs|ceph|gluster.*)"
)
_OBJECT_STORE = re.compile(r"fuse\.(gcsfuse|s3fs|goofys|mount-s3|rclone|blobfuse.*|geesefs|juicefs)|fuse")
_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})

_SECRET_NAME = re.compile(
    r"(^|_)(\w*TOKEN|\w*SECRET\w*|PASS|PASSWD|\w*PASSWORD|PASSPHRASE|PAT|SAS|\w*KEY(_ID)?|\w*CONNECTION_STRING|CREDENTIALS?|AUTHORIZATION)(_\d+)?$",
    re.IGNORECASE,
)
_BARE_USER_INFO = re.compile(r"[^\s/@'\",:]+:[^\s/@'\",]+@(?=[\w\[])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that needs attention."""

    message: str
    """One sentence: what is wrong, and what to do."""
    breaks_builds: bool
    """Whether builds fail because of it."""


@dataclass(frozen=True, slots=True)
class Group:
    """Facts and findings about one subject; they hold no secrets."""

    name: str
    facts: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def state(self, name: str, value: str) -> None:
        """Add a fact."""
        self.facts[hide_all_secrets(name)] = hide_all_secrets(value)

    def find(self, message: str, *, breaks_builds: bool = False) -> None:
        """Add a finding."""
        self.findings.append(Finding(message=hide_all_secrets(message), breaks_builds=breaks_builds))


class DoctorConfig(JsonOutput):
    """`dsindex doctor`: this machine."""

    tokenizer_model: str | None = option(
        None, "tell the engine for this tokenizer, and why it is not the fast one", "PATH"
    )
    path: tuple[str, ...] = option(
        (), "folders of output or work (default: the current one and that of temporary files)", "FOLDER"
    )
    address: str | None = option(None, "ask the head of this Ray cluster: HOST:6379, or auto for this machine's", "A")


OPTIONS = (DoctorConfig,)


def run(options: argparse.Namespace) -> int:
    """Examine the machine, and print what was found."""
    config = read_config(options, DoctorConfig)
    parts: dict[str, Callable[[Group], None]] = {
        "software": examine_software,
        "machine": examine_machine,
        "storage": lambda group: examine_folders(group, config.path),
        "tokenizer": lambda group: examine_tokenizer(group, config.tokenizer_model),
        "ray": lambda group: examine_ray(group, config.address),
        "kernels": examine_kernels,
    }
    groups = [Group(name) for name in parts]
    for group, examine in zip(groups, parts.values(), strict=True):
        try:
            examine(group)
        except Exception as error:  # noqa: BLE001 - of a broken installation anything can come
            group.find(
                f"{group.name}: cannot be examined ({type(error).__name__}: {error}); report it with the lines above"
            )
    is_fine = not any(finding.breaks_builds for group in groups for finding in group.findings)
    if config.as_json:
        write_json(sys.stdout, _as_json(groups, is_fine=is_fine))
    else:
        write_lines(describe_groups(groups))
    return 0 if is_fine else 1


def _as_json(groups: Sequence[Group], *, is_fine: bool) -> dict[str, Any]:
    findings = [
        {"group": group.name, "message": finding.message, "breaks_builds": finding.breaks_builds}
        for group in groups
        for finding in group.findings
    ]
    return {"is_fine": is_fine, "groups": {group.name: group.facts for group in groups}, "findings": findings}


def describe_groups(groups: Sequence[Group]) -> list[str]:
    """Return groups as text, each followed by its findings, and a summary."""
    lines = []
    for group in groups:
        lines.append(group.name)
        width = max((len(name) for name in group.facts if len(name) <= 16), default=0)
        lines += [f"  {name:{width}}  {value}" for name, value in group.facts.items()]
        lines += [f"! {' '.join(finding.message.split())}" for finding in group.findings]
    findings = [finding for group in groups for finding in group.findings]
    breaking = sum(finding.breaks_builds for finding in findings)
    summary = f"{count(len(findings), 'finding')}, marked with !" if findings else "nothing needs attention"
    if breaking:
        summary += f"; {breaking:,} of them {'makes' if breaking == 1 else 'make'} builds fail"
    return [*lines, summary]


def hide_all_secrets(text: str) -> str:
    """Return a text without the cluster's token, secrets in the environment, and credentials and queries of URLs.

    >>> hide_all_secrets("http://me:pw@host:8265/x?sig=1 and me:pw@head:6379")
    'http://host:8265/x and <hidden>@head:6379'
    """
    text = hide_secrets(text)
    secrets = {
        name: value.strip()
        for name, value in os.environ.items()
        if _SECRET_NAME.search(name) and len(value.strip()) >= _SHORTEST_HIDDEN
    }
    for name, value in sorted(secrets.items(), key=lambda item: -len(item[1])):
        text = text.replace(value, f"<{name}>")
    return _BARE_USER_INFO.sub("<hidden>@", text)


# Software.


def examine_software(group: Group) -> None:
    """State the versions that matter, and find what is missing or was not tried."""
    source = os.path.dirname(os.path.dirname(os.path.abspath(dsindex.__file__)))
    python = platform.python_version()
    group.state("dsindex", f"{dsindex.__version__} in {source}")
    group.state("Python", f"{python} ({platform.python_implementation()}) at {sys.executable}")
    system = "unknown distribution"
    with contextlib.suppress(OSError):
        system = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    library = " ".join(filter(None, platform.libc_ver())) or "unknown C library"
    group.state("system", f"{system}, Linux {platform.release()}, {platform.machine()}, {library}")
    try:
        installed = importlib.metadata.distribution("dsindex")
    except importlib.metadata.PackageNotFoundError:
        tried, requirements = "", []  # code that was shipped to a cluster
    else:
        tried, requirements = (
            installed.metadata["Requires-Python"] or "",
            list(map(Requirement, installed.requires or ())),
        )
    if python not in SpecifierSet(tried):
        group.find(f"Python {python} is not in the tried range {tried}; use one that is", breaks_builds=True)
    for requirement in requirements:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            examine_package(group, requirement)
    for name in _OPTIONAL:
        if (version := _version(name)) is not None:
            group.state(name, f"{version}, optional")
    variables = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    group.state("environment", " ".join(variables) or "no variable that changes how jobs run")


def examine_package(group: Group, requirement: Requirement) -> None:
    """State the version of a required package, and find it if it is missing or was not tried."""
    version = _version(requirement.name)
    tried = ",".join(sorted(map(str, requirement.specifier), key=lambda text: (text.startswith("<"), text)))
    install = f"pip install '{requirement.name}{tried}'"
    if version is None:
        group.state(requirement.name, "missing")
        message = f"{requirement.name}: expected a version {tried}, found none; install it: {install}"
        group.find(message, breaks_builds=True)
    elif requirement.specifier.contains(version, prereleases=True):
        group.state(requirement.name, version)
    else:
        group.state(requirement.name, f"{version}, outside {tried}")
        group.find(f"{requirement.name} {version} was not tried (what was: {tried}); if builds fail: {install}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


# The machine: CPUs, memory and limits, as the system and the control group of this process grant them.


def examine_machine(group: Group) -> None:
    """State CPUs, memory and limits, and find where they are scarce."""
    usable, quota, limit = available_cpus(), _cpu_quota(), _memory_limit()
    model = re.search(r"^(?:model name|Model)\s*: *(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    memory = dict(re.findall(r"^(\w+): +(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE))
    total, free = (int(memory[name]) * 1024 if name in memory else None for name in ("MemTotal", "MemAvailable"))
    group.state("CPU", model[1] if model else "unknown model")
    granted = "no quota" if quota is None else f"a quota of {quota:g}"
    affinity = len(os.sched_getaffinity(0))
    group.state("CPUs", f"{os.cpu_count()} in the machine, {affinity} by affinity, {granted}; jobs use {usable}")
    bounded = "no limit" if limit is None else f"limit {_gigabytes(limit)}"
    group.state(
        "memory",
        f"{_gigabytes(total)} in the machine, {_gigabytes(free)} available, {bounded} of the control group",
    )
    if quota is not None and quota < usable:
        group.find(
            f"the control group grants {quota:g} CPUs, but jobs would start work for {usable}; use "
            f"--workers {max(1, int(quota))}"
        )
    usable_bytes = min((size for size in (free, limit) if size is not None), default=WORKER_MEMORY_BYTES)
    if usable_bytes < WORKER_MEMORY_BYTES:
        group.find(
            f"{_gigabytes(usable_bytes)} of memory can be used, and a worker takes up to "
            f"{_gigabytes(WORKER_MEMORY_BYTES)}; use --workers 1, or raise the limit"
        )
    limits = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)
    files, file_size, space = (resource.getrlimit(limit)[0] for limit in limits)
    group.state(
        "limits",
        f"{'unlimited' if files == resource.RLIM_INFINITY else f'{files:,}'} open files (ulimit -n), "
        f"file size {_limit(file_size)} (ulimit -f), address space {_limit(space)} (ulimit -v)",
    )
    if 0 <= files < _FEWEST_OPEN_FILES:
        group.find(f"{count(files, 'open file')} are few for a job with many inputs; raise it: ulimit -n 65536")
    if file_size >= 0:
        group.find(
            f"files may have at most {_limit(file_size)}, and a larger dataset fails; raise it: ulimit -f unlimited",
            breaks_builds=file_size < _SMALLEST_FILE_LIMIT_BYTES,
        )


def _cpu_quota() -> float | None:
    """Return the smallest quota of this process's control groups in CPUs; None if there is none."""
    texts = [_read(f"{folder}/cpu.max") for folder in _control_groups("")]
    texts += [
        f"{_read(f'{folder}/cpu.cfs_quota_us')} {_read(f'{folder}/cpu.cfs_period_us')}"
        for folder in _control_groups("cpu")
    ]
    pairs = [words for text in texts if len(words := text.split()) == 2 and all(map(str.isdigit, words))]
    return min((int(quota) / max(1, int(period)) for quota, period in pairs), default=None)


def _memory_limit() -> int | None:
    """Return the smallest limit on the memory of this process's control groups; None if there is none."""
    texts = [_read(f"{folder}/memory.max").strip() for folder in _control_groups("")]
    texts += [_read(f"{folder}/memory.limit_in_bytes").strip() for folder in _control_groups("memory")]
    return min((int(text) for text in texts if text.isdigit() and int(text) < _UNLIMITED_BYTES), default=None)


def _control_groups(controller: str) -> list[str]:
    """Return the folders of this process's control group and of those above it; within a container, the root is it.

    Args:
        controller: Name of a controller of version 1; empty for version 2.
    """
    root = os.path.join("/sys/fs/cgroup", controller)
    folders = [root]
    for line in _read("/proc/self/cgroup").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if controller in names.split(","):
            parts = [part for part in path.split("/") if part and part != ".."]
            folders += [os.path.join(root, *parts[: number + 1]) for number in range(len(parts))]
    return folders


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(1 << 20)
    except OSError:
        return ""


def _limit(size_bytes: int) -> str:
    return "unlimited" if size_bytes == resource.RLIM_INFINITY else _gigabytes(size_bytes)


def _gigabytes(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / 1e9:,.2f} GB"


# Storage.


def examine_folders(group: Group, given: Sequence[str]) -> None:
    """Examine folders.

    Args:
        group: Gets the facts.
        given: Folders in which jobs are to write; without any, the working folder and the one of temporary files.
    """
    usual = []
    for find in (os.getcwd, tempfile.gettempdir):
        with contextlib.suppress(OSError):  # it was removed, or none can be written
            usual.append(find())
    for folder in dict.fromkeys(given or usual):
        answer = Group(folder)
        thread = threading.Thread(target=_examine, args=(answer, folder), daemon=True)
        thread.start()
        thread.join(ANSWER_SECONDS)
        if thread.is_alive():
            answer = Group(folder, {folder: "no answer"})
            answer.find(
                f"{folder}: does not answer within {ANSWER_SECONDS:.0f} s; its server may be gone or its disk busy: "
                f"check the mount, or use another folder",
                breaks_builds=True,
            )
        group.facts.update(answer.facts)
        for finding in answer.findings:
            group.find(finding.message, breaks_builds=finding.breaks_builds and bool(given))


def _examine(group: Group, folder: str) -> None:
    if not os.path.isdir(folder):
        is_there = os.path.exists(folder)
        what, remedy = ("a file", "name another") if is_there else ("none", f"make it: mkdir -p {shlex.quote(folder)}")
        group.state(folder, "no folder")
        group.find(f"{folder}: expected a folder, got {what}; {remedy}", breaks_builds=True)
        return
    kind = _describe_mount(group, folder)
    try:
        room = os.statvfs(folder)
    except OSError as error:
        group.state(folder, kind)
        message = f"{folder}: free space is unknown ({error.strerror}); check the mount"
        group.find(message, breaks_builds=True)
        return
    free = room.f_bavail * room.f_frsize if room.f_blocks else None  # some file systems do not say
    has_nodes = room.f_files == 0 or room.f_favail > 0
    if (free is not None and free < _FULL_BYTES) or not has_nodes:
        lack = f"{_gigabytes(free or 0)} are free" if has_nodes else "no file can be added: no inode is free"
        message = f"{folder}: {lack}; make room, or use another folder (dsindex plan says how much a build needs)"
        group.find(message, breaks_builds=free == 0 or not has_nodes)
    facts = [kind, "free space unknown" if free is None else f"{_gigabytes(free)} free"]
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        facts.append("cannot be written")
        reason = error.strerror or str(error)
        message = f"{folder}: no file can be written there ({reason}); name another folder, or correct the mount"
        group.find(message, breaks_builds=True)
    group.state(folder, ", ".join(facts))


def _describe_mount(group: Group, folder: str) -> str:
    """Return the file system of a folder as text, and find what is to be known of its kind."""
    mount = mount_of(os.path.realpath(folder), _read("/proc/self/mountinfo"))
    if mount is None:
        return "unknown file system"
    place, kind, source = mount
    shown = f"{kind} at {place} from {source}"
    if kind in _MEMORY:
        group.find(
            f"{folder}: its files take memory, and are lost at a restart; put large output and work folders on a disk"
        )
        return f"{shown} (memory)"
    if kind == "overlay":
        group.find(f"{folder}: its files are lost with the container; put output and work folders on a mounted volume")
        return f"{shown} (a container's own)"
    if _OBJECT_STORE.fullmatch(kind):
        group.find(
            f"{folder}: a file system over an object store may lack renames and writes in the middle of files, which "
            f"jobs need; put work folders on a disk"
        )
        return f"{shown} (user space)"
    return f"{shown} (network)" if _NETWORK.fullmatch(kind) else shown


def mount_of(path: str, table: str) -> tuple[str, str, str] | None:
    r"""Return place, type and source of the file system with an absolute path, from the text of /proc/self/mountinfo.

    >>> mount_of("/my disk/x", r"36 35 98:0 / /my\040disk rw,noatime master:1 - ext3 /dev/root rw,errors=continue")
    ('/my disk', 'ext3', '/dev/root')
    """
    found: tuple[str, str, str] | None = None
    for line in table.splitlines():
        own, _, rest = line.partition(" - ")
        fields, more = own.split(" "), rest.split(" ")
        if len(fields) > 4 and len(more) > 1:
            place, source = (
                re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), x) for x in (fields[4], more[1])
            )
            is_above = os.path.commonpath([place, path]) == place
            if is_above and (found is None or len(place) >= len(found[0])):  # of several at one place, the last
                found = place, more[0], source
    return found


# The tokenizer.


def examine_tokenizer(group: Group, path: str | None) -> None:
    """State the engine for a tokenizer; without one, whether the installed versions allow the fast engine.

    Args:
        group: Gets the facts.
        path: As for --tokenizer-model.
    """
    if path is None:
        group.state("engine", _describe_versions())
        return
    from dsindex.text.engines import choose_engine
    from dsindex.text.tokenizer import load_tokenizer

    try:
        tokenizer = load_tokenizer(path)
        engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    except (DsindexError, OSError, importlib.metadata.PackageNotFoundError) as error:
        group.state("tokenizer", f"{path}: cannot be used")
        group.find(f"tokenizer: {error}", breaks_builds=True)
        return
    eod = "no EOD token" if tokenizer.eod_id is None else f"EOD {tokenizer.eod_token!r} is {tokenizer.eod_id}"
    group.state("tokenizer", f"{tokenizer.name}, {tokenizer.vocabulary_size:,} tokens, {eod}, of {tokenizer.library}")
    group.state("sha256", tokenizer.sha256)
    group.state("engine", engine.describe())
    fallback = engine.describe_fallback()
    if fallback is not None:
        group.find(f"{fallback}; builds are right, but slower")


def _describe_versions() -> str:
    """Return which references the installed gigatoken was compared with."""
    version = _version("gigatoken")
    if version is None:
        return "gigatoken is not installed"
    told = [
        f"{'' if was_compared(version, own, library) else 'not '}with {library} {own}"
        for library in REFERENCE_VERSIONS
        if (own := _version(library)) is not None
    ]
    known = f"gigatoken {version}, which was compared {', '.join(told)}"
    note = "" if version in GIGATOKEN_VERSIONS else f" (gigatoken {', '.join(GIGATOKEN_VERSIONS)} was)"
    return f"{known}{note}; --tokenizer-model tells the engine of one"


# Ray: its version, the address and the source of the token that jobs would use, and whether a head answers.


def examine_ray(group: Group, address: str | None) -> None:
    """State what jobs would use of Ray; the token is never shown.

    Args:
        group: Gets the facts.
        address: The cluster to ask, as HOST:PORT, HOST or auto; None asks none.
    """
    named = os.environ.get("RAY_ADDRESS", "")
    joins = f"{named} (a job with a work folder joins it)" if named else "not set: jobs run on this machine"
    version = _version("ray")
    group.state("Ray", version or "missing")
    if version is not None and (note := untried_release(version)) is not None:
        group.find(f"{note}; if builds on Ray fail: pip install 'ray=={NEWEST_RAY}', or --executor local")
    group.state("RAY_ADDRESS", joins)
    token = None
    try:
        token = find_token()
        group.state("token", _describe_token(token))
    except TokenError as error:
        group.state("token", "cannot be used")
        group.find(str(error), breaks_builds=bool(address or named))
    if named not in {"", "auto"} and address is None:
        try:
            parse_address(named, source="RAY_ADDRESS")
        except TaskError as error:
            group.find(str(error), breaks_builds=True)
    if address is not None:
        group.state("head", "not asked: the token cannot be used" if group.findings else _ask(group, address, token))


def _describe_token(token: Token | None) -> str:
    mode = os.environ.get("RAY_AUTH_MODE", "")
    told = f", RAY_AUTH_MODE={mode}" if mode else ""
    if token is not None:
        return f"from {token.place}{told}"
    return f"none{told}" if told else "none: neither RAY_AUTH_TOKEN nor RAY_AUTH_TOKEN_PATH nor ~/.ray/auth_token"


def _ask(group: Group, named: str, token: Token | None) -> str:
    """Ask a head whether it is one and accepts the token."""
    try:
        from dsindex.execution.ray_cluster import check_head, locate, uses_tls, wants_token

        address, source = locate(named, "--address")
        check_head(address, token, source=source)
        if uses_tls():
            return f"{address} listens, with TLS"
        wants = wants_token(address)
    except (DsindexError, ImportError, OSError) as error:
        missing = missing_package(error) if isinstance(error, ImportError) else None
        group.find(str(missing or error), breaks_builds=True)
        return "does not answer as a head that accepts us"
    return f"{address} answers and {'wants a token and accepts ours' if wants else 'wants no token'}"


# The cache of compiled kernels.


def examine_kernels(group: Group) -> None:
    """State the folder and the size of the cache, and find why it cannot be used; nothing is compiled."""
    base, total = "none", 0
    problem: str | None = None
    try:
        from dsindex.kernels.cache import kernel_folder, why_unusable

        base = os.path.dirname(kernel_folder(os.path.abspath(dsindex.__file__)))
        for folder, _, names in os.walk(base):
            for name in names:
                with contextlib.suppress(OSError):  # removed meanwhile
                    total += os.lstat(os.path.join(folder, name)).st_size
        problem = why_unusable(base)
    except (ImportError, OSError, RuntimeError) as error:
        problem = str(error) or type(error).__name__
    group.state("folder", base)
    group.state("size", format_size(total))
    if problem is not None:
        group.find(
            f"compiled kernels cannot be kept ({problem}): every process compiles for some seconds; set "
            f"NUMBA_CACHE_DIR to a folder that only you can write"
        )
