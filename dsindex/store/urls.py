"""URLs of objects: strings without secrets that carry their endpoint and identity.

Everything that handles paths handles these: as a text, an address is its URL without user information and query, which
is what is recorded, compared and shown. What else is needed to read it travels beside the text, also to other
processes.
"""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dsindex.errors import InputError
from dsindex.locations import BUCKET_SCHEMES, OTHER_NAMES, URL, WEB_SCHEMES, Location

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

OUTPUT_SCHEMES = ("s3", "gs")
"""Schemes of writable stores."""
SCHEMES = (*BUCKET_SCHEMES, *WEB_SCHEMES)
HUB_ADDRESS = re.compile(r"datasets/([^/@]+/[^/@]+)(?:@(refs/[^/]+/[^/]+|[^/]+))?(?:/(.*))?")
"""Dataset, revision and path of an address on the Hugging Face Hub."""
MAGIC = re.compile(r"[*?[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Endpoint and region of a job's stores."""

    endpoint_url: str | None = None
    """Address of a server that speaks S3's language; None for AWS_ENDPOINT_URL or Amazon's own."""
    region: str | None = None
    """Region of S3's buckets; None for AWS_REGION or us-east-1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectIdentity:
    """Version of an object, from its HEAD."""

    size_bytes: int
    version: str
    """Its ETag, or without one `modified` and the time that the server says."""


NO_ACCESS = Access()


class ObjectUrl(Location):
    """The URL of an object, a folder of objects or a pattern."""

    __slots__ = ("access", "identity", "query")

    access: Access
    query: str
    """The query of a web address, which may hold a signature; empty for buckets."""
    identity: ObjectIdentity | None
    """None until its HEAD."""

    def __new__(
        cls, url: str, *, query: str = "", access: Access = NO_ACCESS, identity: ObjectIdentity | None = None
    ) -> Self:
        """Create a URL; keep query and identity as attributes."""
        self = str.__new__(cls, url)
        self.query, self.access, self.identity = query, access, identity
        self.raw = f"{url}?{query}" if query else str(url)
        return self

    @property
    def scheme(self) -> str:
        """One of SCHEMES."""
        return self.partition("://")[0]

    @property
    def is_web(self) -> bool:
        """Whether it is a file on a web server, which has no listing."""
        return self.scheme in WEB_SCHEMES

    @property
    def bucket(self) -> str:
        """The bucket, or the server with its port."""
        return self.partition("://")[2].partition("/")[0]

    @property
    def key(self) -> str:
        """Key in the bucket."""
        return self.partition("://")[2].partition("/")[2]

    @property
    def is_folder(self) -> bool:
        """Whether it ends with a slash."""
        return not self.is_web and (self.endswith("/") or not self.key)

    @property
    def has_magic(self) -> bool:
        """Whether it is a pattern."""
        return not self.is_web and MAGIC.search(self.key) is not None

    def with_key(self, key: str, *, identity: ObjectIdentity | None = None) -> ObjectUrl:
        """Return another URL of the same bucket."""
        return ObjectUrl(f"{self.scheme}://{self.bucket}/{key}", access=self.access, identity=identity)

    def with_suffix(self, ending: str) -> ObjectUrl:
        """Return the URL with a suffix appended."""
        return ObjectUrl(f"{self}{ending}", query=self.query, access=self.access)

    def without_suffix(self, ending: str) -> ObjectUrl:
        """Return the URL without a suffix."""
        return ObjectUrl(self.removesuffix(ending), query=self.query, access=self.access)

    def identified(self, identity: ObjectIdentity) -> ObjectUrl:
        """Return the URL pinned to an identity."""
        return ObjectUrl(str(self), query=self.query, access=self.access, identity=identity)


class Address(NamedTuple):
    """The parts of an address."""

    scheme: str
    bucket: str
    """The bucket, or the server with its port."""
    key: str


def split_address(url: str) -> Address:
    """Split an address.

    >>> split_address("s3://bucket/data/docs.jsonl")
    Address(scheme='s3', bucket='bucket', key='data/docs.jsonl')
    """
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return Address(scheme, bucket, key)


def is_web(url: str) -> bool:
    """Whether an address is that of a file on a web server, which has no listing."""
    return url.startswith(tuple(f"{scheme}://" for scheme in WEB_SCHEMES))


def names_folder(url: str) -> bool:
    """Whether an address is that of a folder: it ends with a slash, or is a bucket."""
    return not is_web(url) and (url.endswith("/") or not split_address(url).key)


def has_magic(url: str) -> bool:
    """Whether an address is a pattern."""
    return not is_web(url) and MAGIC.search(split_address(url).key) is not None


def is_url(path: object) -> bool:
    """Whether a string is a URL rather than a local path.

    >>> is_url("s3://bucket/key"), is_url("data/docs.jsonl")
    (True, False)
    """
    return isinstance(path, str) and URL.match(path) is not None


def parse_url(url: str, access: Access = NO_ACCESS) -> ObjectUrl:
    """Parse a URL from a user; a parsed one is returned as it is.

    >>> parse_url("https://example.com/a.jsonl?X-Amz-Signature=9f86d0")
    'https://example.com/a.jsonl'

    Raises:
        InputError: If its scheme is not read, or it names no bucket.
    """
    if isinstance(url, ObjectUrl):
        return url
    shown = Location(url)
    scheme, rest = shown.raw.split("://", 1)
    scheme = scheme.lower()
    if scheme not in SCHEMES:
        other = OTHER_NAMES.get(scheme)
        remedy = f"write it as {other}://BUCKET/KEY" if other else "copy it to one of these, or to this machine"
        msg = f"{shown}: expected a path or an address of {', '.join(f'{name}://' for name in SCHEMES)}; {remedy}"
        raise InputError(msg)
    if scheme in WEB_SCHEMES:
        return _parse_web_url(shown, access)
    bucket, _, key = rest.partition("/")
    if shown != shown.raw:
        msg = f"{shown}: expected an address without user, password and query; give credentials by the environment"
        raise InputError(msg)
    if not bucket or MAGIC.search(bucket) or "@" in bucket:
        msg = (
            f"{scheme}://{bucket}: expected the name of a bucket after {scheme}://, got another text; check the address"
        )
        raise InputError(msg)
    if {"", ".", ".."} & set(key.rstrip("/").split("/")) and key:
        msg = f"{shown}: expected a key without empty parts, `.` or `..` between slashes, got one; rename the object"
        raise InputError(msg)
    if scheme == "hf":
        match = HUB_ADDRESS.fullmatch(f"{bucket}/{key}")
        if match is None or MAGIC.search(match[1] + (match[2] or "")):
            msg = f"{shown}: expected hf://datasets/ORGANISATION/NAME or …/NAME@REVISION, then a path or a pattern"
            raise InputError(f"{msg}; check the address")
        if match[3] is None:  # all of the dataset
            key += "/"
        access = Access(endpoint_url=os.environ.get("HF_ENDPOINT") or None)
    return ObjectUrl(f"{scheme}://{bucket}/{key}", access=access)


def _parse_web_url(shown: Location, access: Access) -> ObjectUrl:
    from urllib.parse import urlsplit, urlunsplit  # slow to import for readers

    try:
        parts = urlsplit(shown.raw)
    except ValueError as error:  # an incomplete IPv6 address
        raise InputError(f"{shown}: expected the address of a file on a web server, got none; check it") from error
    if not shown.raw.startswith(shown):
        raise InputError(f"{shown}: expected an address without user and password; use a signed URL")
    if not parts.netloc or parts.path in ("", "/"):
        msg = f"{parts.scheme}://{parts.netloc}: expected the address of a file on a web server, got none; check it"
        raise InputError(msg)
    return ObjectUrl(urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")), query=parts.query, access=access)


def locate(text: str) -> str:
    """Return what a user wrote as a path, or as an address that can be read.

    >>> locate("https://example.com/a.jsonl?X-Amz-Signature=9f86d0")
    'https://example.com/a.jsonl'

    Raises:
        InputError: If it is an address whose scheme is not read, or that names no bucket.
    """
    if not is_url(text):
        return text
    shown = Location(text)
    scheme, rest = shown.raw.split("://", 1)
    scheme = scheme.lower()
    if scheme not in SCHEMES:
        other = OTHER_NAMES.get(scheme)
        remedy = f"write it as {other}://BUCKET/KEY" if other else "copy it to one of these, or to this machine"
        msg = f"{shown}: expected a path or an address of {', '.join(f'{name}://' for name in SCHEMES)}; {remedy}"
        raise InputError(msg)
    if scheme in WEB_SCHEMES:
        return _web_address(shown)
    bucket, _, key = rest.partition("/")
    if shown != shown.raw:
        msg = f"{shown}: expected an address without user, password and query; give credentials by the environment"
        raise InputError(msg)
    if not bucket or MAGIC.search(bucket) or "@" in bucket:
        msg = f"{scheme}://{bucket}: expected the name of a bucket after {scheme}://, got another text; check it"
        raise InputError(msg)
    if {"", ".", ".."} & set(key.rstrip("/").split("/")) and key:
        msg = f"{shown}: expected a key without empty parts, `.` or `..` between slashes, got one; rename the object"
        raise InputError(msg)
    url = f"{scheme}://{bucket}/{key}"
    if scheme == "hf":
        match = HUB_ADDRESS.fullmatch(f"{bucket}/{key}")
        if match is None or MAGIC.search(match[1] + (match[2] or "")):
            msg = f"{shown}: expected hf://datasets/ORGANISATION/NAME or …/NAME@REVISION, then a path or a pattern"
            raise InputError(f"{msg}; check the address")
        return url if match[3] is not None else f"{url}/"  # all of the dataset
    return url


def _web_address(shown: Location) -> Location:
    _, server, path = split_address(shown)
    if not shown.raw.startswith(shown):
        raise InputError(f"{shown}: expected an address without user and password; use a signed address")
    if not server or not path:
        raise InputError(f"{shown}: expected the address of a file on a web server, got none; check it")
    return shown


def locate_output(text: str) -> str:
    """Return the path or the URL of an output or a work folder from a user.

    Raises:
        InputError: If it is an address at which nothing can be written.
    """
    return parse_output_url(text, NO_ACCESS) if is_url(text) else text


def local_paths(paths: Iterable[str]) -> list[str]:
    """Return those that are on a file system of this machine.

    >>> local_paths(["/data/a", "s3://bucket/b"])
    ['/data/a']
    """
    return [path for path in paths if not is_url(path)]


def is_absolute(path: str) -> bool:
    """Whether a path or URL means the same in every folder."""
    return is_url(path) or posixpath.isabs(path)


def refuse_address(path: str, expected: str, error: type[Exception] = InputError) -> str:
    """Return a path of this machine.

    Args:
        path: What a user wrote.
        expected: The rest of the sentence, from `expected …, got an address` on.
        error: What is raised.

    Raises:
        Exception: Of that type, if it is an address.
    """
    if is_url(path):
        raise error(f"{Location(path)}: {expected}")
    return path


def absolute(path: str) -> str:
    """Return an absolute path, or the URL itself."""
    return path if is_url(path) else posixpath.abspath(path)


def real_path(path: str) -> str:
    """Return the path of the file that a path leads to through links, or the URL itself."""
    return path if is_url(path) else os.path.realpath(path)


def folder_of(path: str) -> str:
    """Return the absolute parent folder of a path, or the parent of a URL.

    >>> folder_of(ObjectUrl("s3://bucket/data/docs")), folder_of("/data/docs")
    ('s3://bucket/data', '/data')
    """
    known = absolute(path)
    if isinstance(known, ObjectUrl):
        return known.with_key(posixpath.dirname(known.key))
    return posixpath.dirname(known)


def server_of(path: str) -> str:
    """Return where a path is read: the store and the bucket of an object, or the file itself.

    >>> server_of(ObjectUrl("s3://bucket/data/docs")), server_of("/data/docs")
    ('s3://bucket', '/data/docs')
    """
    return f"{path.scheme}://{path.bucket}" if isinstance(path, ObjectUrl) else path


def joined(folder: str, name: str) -> str:
    """Join a folder and a name; both may be URLs.

    >>> joined("work", "shards/a.bin"), joined(ObjectUrl("s3://bucket/work"), "shards/a.bin")
    ('work/shards/a.bin', 's3://bucket/work/shards/a.bin')
    """
    if isinstance(folder, ObjectUrl):
        return folder.with_suffix(name if folder.endswith("/") else f"/{name}")
    return posixpath.join(folder, name)


def with_suffix(path: str, ending: str) -> str:
    """Append a suffix to a path or URL."""
    return path.with_suffix(ending) if isinstance(path, ObjectUrl) else path + ending


ONLY_INPUTS = "expected a path, got an address: only inputs are read from object stores; copy it to this machine"
ONLY_PATHS = (
    "expected a path, got an address: only build, merge, pack and instruct write to object stores; copy finished files"
)


def refuse_url(path: str) -> str:
    """Return the path of an output that is written to this machine.

    Raises:
        ValueError: If it is an address, which would become a folder `s3:`.
    """
    return refuse_address(path, ONLY_PATHS, ValueError)


def refuse_input_url(path: str, instead: str = "copy it here first") -> str:
    """Return a path of this machine to read from.

    Args:
        path: What a user wrote.
        instead: What to do with an address.

    Raises:
        ValueError: If it is an address.
    """
    if is_url(path):
        raise ValueError(f"expected a path of this machine, got the address {Location(path)}; {instead}")
    return path


def refuse_cache_url(path: str) -> str:
    """Return the folder of index caches.

    Raises:
        ValueError: If it is an address, since nothing reads caches there.
    """
    return refuse_address(
        path,
        "expected a folder, got an address: a training job maps index caches into memory, so they must be on a disk; "
        "choose a folder that its nodes share",
        ValueError,
    )


OWN_VERSION = "dsindex:own:"
"""Prefix of the version of objects that are never overwritten; a fingerprint of the content may follow."""


def pin_object(url: str, size_bytes: int, *, fingerprint: str = "") -> str:
    """Pin the URL of an object that is never overwritten; a path is returned as it is.

    Args:
        url: Its address.
        size_bytes: Its size.
        fingerprint: Fingerprint of its content, which takes the place of an ETag; empty if nobody asks for it.
    """
    identity = ObjectIdentity(size_bytes=size_bytes, version=f"{OWN_VERSION}{fingerprint}")
    return url.identified(identity) if isinstance(url, ObjectUrl) else url


def parse_output_url(url: str, access: Access) -> ObjectUrl:
    """Parse the URL of an output or a work folder from a user.

    Raises:
        InputError: If nothing can be written there, saying why.
    """
    parsed = parse_url(url, access)
    if parsed.scheme not in OUTPUT_SCHEMES:
        raise InputError(
            f"{parsed}: expected a path or an address of s3:// or gs://, the only object stores that are written to, "
            f"got {parsed.scheme}://; other stores are for inputs"
        )
    key = parsed.key.rstrip("/")
    if not key or parsed.has_magic or key != parsed.key:
        expected = f"{parsed.scheme}://BUCKET/KEY"
        msg = f"{parsed}: expected {expected}, with a key that ends in a name and without * ? [; choose another"
        raise InputError(msg)
    return parsed


def without_suffix(path: str, ending: str) -> str:
    """Remove a suffix from a path or URL, if present."""
    return path.without_suffix(ending) if isinstance(path, ObjectUrl) else path.removesuffix(ending)


def located(path: str | os.PathLike[str]) -> str:
    """Return the path or the address of one dataset.

    Raises:
        InputError: If it is a signed address, a pattern or a folder in a bucket.
    """
    url = locate(os.fspath(path))
    if not is_url(url):
        return url
    if isinstance(url, Location) and url.raw != url:
        msg = f"{url}: expected an address without a signature; use credentials of the environment, or download it"
        raise InputError(msg)
    if has_magic(url) or names_folder(url):
        raise InputError(f"{url}: expected the address of one dataset, got a pattern or a folder; name its prefix")
    return str(url)


def as_prefix(path: str) -> str:
    """Return the prefix `x` of `x.bin` or `x.idx`, which a shell's completion yields."""
    suffix = os.path.splitext(path)[1]
    return without_suffix(path, suffix) if suffix in {".bin", ".idx"} else path
