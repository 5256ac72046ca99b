"""Local paths, and addresses that begin with `s3:// gs:// az:// https:// hf://`, as strings.

Endpoint, region and credentials come from the environment of the machine that makes a request. Only a signed web
address contains a secret: it is a Location, a string without the query, which keeps the original in `raw`.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import TYPE_CHECKING, NamedTuple

from dsindex.errors import InputError
from dsindex.messages import BUCKET_SCHEMES, URL, WEB_SCHEMES, remove_credentials

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

OUTPUT_SCHEMES = tuple(scheme for scheme in BUCKET_SCHEMES if scheme != "hf")
"""Schemes of writable stores."""
SCHEMES = (*BUCKET_SCHEMES, *WEB_SCHEMES)
HUB_ADDRESS = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/[^/]+/[^/]+|[^/]+))?(?:/(.*))?")
"""Matches dataset, revision and path of an address on the Hugging Face Hub."""
MAGIC = re.compile(r"[*?[]")
ONLY_INPUTS = "only inputs are read from object stores; copy it to this machine"


class Location(str):
    """A path, or an address without user information and query; `raw` is the original text.

    >>> place = Location("https://me:pw@host/a.jsonl?sig=9f86d0")
    >>> place, place.raw
    ('https://host/a.jsonl', 'https://me:pw@host/a.jsonl?sig=9f86d0')
    """

    __slots__ = ("raw",)

    raw: str

    def __new__(cls, text: str) -> Self:
        """Remove user information and query from an address, and keep the original in `raw`."""
        url = URL.match(text)
        self = super().__new__(cls, text if url is None else remove_credentials(url[1], text[url.end() :]))
        self.raw = getattr(text, "raw", text)
        return self

    def __str__(self) -> str:
        return str.__str__(self[:])


class Address(NamedTuple):
    """The parts of an address."""

    scheme: str
    bucket: str
    """The bucket, or the server with its port."""
    key: str


def is_url(path: object) -> bool:
    """Whether a string is an address rather than a local path.

    >>> is_url("s3://bucket/key"), is_url("data/docs.jsonl")
    (True, False)
    """
    return isinstance(path, str) and URL.match(path) is not None


def split_address(url: str) -> Address:
    """Split an address into scheme, bucket and key.

    >>> split_address("s3://bucket/data/docs.jsonl")
    Address(scheme='s3', bucket='bucket', key='data/docs.jsonl')
    """
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return Address(scheme, bucket, key)


def is_web(url: str) -> bool:
    """Whether an address is a file on a web server, which cannot be listed."""
    return url.startswith(tuple(f"{scheme}://" for scheme in WEB_SCHEMES))


def names_folder(url: str) -> bool:
    """Whether an address is a folder: it ends with a slash, or names a whole bucket."""
    return not is_web(url) and (url.endswith("/") or not split_address(url).key)


def has_magic(path: str) -> bool:
    """Whether a path or an address is a pattern."""
    return not is_web(path) and MAGIC.search(split_address(path).key if is_url(path) else path) is not None


def locate(text: str) -> str:
    """Check a path or an address from a user, and return it in its normal form.

    >>> locate("https://example.com/a.jsonl?X-Amz-Signature=9f86d0")
    'https://example.com/a.jsonl'

    Raises:
        InputError: If an address has an unsupported scheme, a user or password, no bucket, or a key that is not valid.
    """
    if not is_url(text):
        return text
    location = Location(text)
    scheme, _, rest = location.raw.partition("://")
    scheme = scheme.lower()
    bucket, _, key = rest.partition("/")
    if scheme not in SCHEMES:
        schemes = ", ".join(f"{name}://" for name in SCHEMES)
        raise InputError(f"{location}: {scheme}:// is not read", hint=f"copy it to a disk, or to one of {schemes}")
    if scheme in WEB_SCHEMES:
        if not location.raw.startswith(location) or not bucket or not key:
            hint = f"write {scheme}://HOST/PATH; a signed address may have a query"
            raise InputError(f"{location}: an address must have a host and a path, and no user and password", hint=hint)
        return location
    has_odd_part = bool(key) and not {"", ".", ".."}.isdisjoint(key.rstrip("/").split("/"))
    if location != location.raw or not bucket or MAGIC.search(bucket) or "@" in bucket or has_odd_part:
        problem = "an address must have no user, password and query, and no empty part, `.` or `..` in its key"
        hint = f"write {scheme}://BUCKET/KEY, and put credentials in the environment"
        raise InputError(f"{location}: {problem}", hint=hint)
    url = f"{scheme}://{bucket}/{key}"
    if scheme != "hf":
        return url
    match = HUB_ADDRESS.fullmatch(url)
    if match is None or MAGIC.search(match[1] + (match[2] or "")):
        hint = "write hf://datasets/ORGANISATION/NAME or …/NAME@REVISION, then a path or a pattern"
        raise InputError(f"{location}: not the address of a dataset on the Hub", hint=hint)
    return url if match[3] is not None else f"{url}/"  # the whole dataset


def locate_output(text: str) -> str:
    """Check the path or address of an output or a work folder from a user, and return it in its normal form.

    Raises:
        InputError: If nothing can be written to an address.
    """
    url = locate(text)
    if not is_url(url):
        return url
    scheme, _, key = split_address(url)
    if scheme not in OUTPUT_SCHEMES:
        schemes = ", ".join(f"{name}://" for name in OUTPUT_SCHEMES)
        raise InputError(f"{url}: nothing can be written to {scheme}://", hint=f"name a path, or one of {schemes}")
    if not key or has_magic(url) or key.endswith("/"):
        raise InputError(f"{url}: an output needs a key that ends in a name and has no * ? [", hint="choose another")
    return url


def locate_dataset(path: str | os.PathLike[str]) -> str:
    """Check the path or address of one dataset from a user, and return it in its normal form.

    Raises:
        InputError: If it is a signed address, a pattern or a folder in a bucket.
    """
    url = locate(os.fspath(path))
    if not is_url(url):
        return url
    if isinstance(url, Location) and url.raw != url:
        hint = "use credentials of the environment, or download it"
        raise InputError(f"{url}: a dataset is not read through a signed address", hint=hint)
    if has_magic(url) or names_folder(url):
        raise InputError(f"{url}: a pattern or a folder is not one dataset", hint="name the prefix of a dataset")
    return str(url)


def require_confirmed(address: str, user_paths: Iterable[str], *, hint: str = "") -> None:
    """Refuse an address from a file, unless the user gave an address on the same bucket or server.

    Otherwise an untrusted file could decide which servers this machine contacts.

    Args:
        address: The address; a path is never refused.
        user_paths: Paths and addresses from the user.
        hint: How to confirm the address, if not by --contact.

    Raises:
        InputError: If the address is refused.
    """
    if is_url(address) and split_address(address)[:2] not in {split_address(path)[:2] for path in user_paths}:
        place = "://".join(split_address(address)[:2])
        hint = hint or f"if you trust it: --contact {place}"
        raise InputError(f"{Location(address)}: not contacted, because only a file names this address", hint=hint)


def local_paths(paths: Iterable[str]) -> list[str]:
    """Return the paths that are not addresses.

    >>> local_paths(["/data/a", "s3://bucket/b"])
    ['/data/a']
    """
    return [path for path in paths if not is_url(path)]


def refuse_address(path: str, problem: str, error: type[Exception] = InputError) -> str:
    """Return a local path unchanged, and refuse an address.

    Args:
        path: A path or an address from a user.
        problem: Why an address cannot be used.
        error: Type of the error.

    Raises:
        Exception: An `error`, if `path` is an address.
    """
    if is_url(path):
        raise error(f"{Location(path)}: {problem}")
    return path


def refuse_url(path: str) -> str:
    """Return a local path unchanged, for files that training jobs and other programs open themselves.

    Raises:
        ValueError: If it is an address, which would become a folder `s3:`.
    """
    return refuse_address(path, "this must be a path of this machine, not an address", ValueError)


def absolute(path: str) -> str:
    """Return an absolute path, or the address itself."""
    return path if is_url(path) else posixpath.abspath(path)


def folder_of(path: str) -> str:
    """Return the absolute parent folder of a path, or the parent of an address.

    >>> folder_of("s3://bucket/data/docs"), folder_of("/data/docs")
    ('s3://bucket/data', '/data')
    """
    return posixpath.dirname(absolute(path))


def join_path(folder: str, name: str) -> str:
    """Join a folder and a name.

    >>> join_path("work", "shards/a.bin"), join_path("s3://bucket/work", "shards/a.bin")
    ('work/shards/a.bin', 's3://bucket/work/shards/a.bin')
    """
    return posixpath.join(folder, name)


def prefix_of(path: str) -> str:
    """Return the prefix `x` of `x.bin` or `x.idx`, since shells complete a prefix to a file name."""
    suffix = os.path.splitext(path)[1]
    return path.removesuffix(suffix) if suffix in {".bin", ".idx"} else path
