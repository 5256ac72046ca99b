"""What was found, as data: groups of facts, and findings with what to do. Secrets are removed here, from every text."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

from workflows.execution.ray_token import hide_token

_SHORTEST_HIDDEN = 6
"""The shortest value of a variable that is hidden; shorter ones occur in ordinary words."""
_SECRET_NAME = re.compile(
    r"(^|_)(\w*TOKEN|\w*SECRET\w*|PASS|PASSWD|\w*PASSWORD|PASSPHRASE|PAT|SAS|\w*KEY(_ID)?|\w*CONNECTION_STRING|CREDENTIALS?|AUTHORIZATION)(_\d+)?$",
    re.IGNORECASE,
)
_USER_INFO = re.compile(r"(?<=://)[^\s'\"]*@")
_BARE_USER_INFO = re.compile(r"[^\s/@'\",:]+:[^\s/@'\",]+@(?=[\w\[])")
_QUERY = re.compile(r"(?<=://)([^\s'\"?#]*)[?#][^\s'\"]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that needs attention."""

    message: str
    """One sentence: what is wrong, and what to do."""
    breaks_builds: bool = False
    """Whether builds fail because of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Facts about one subject."""

    name: str
    facts: tuple[tuple[str, str], ...]
    """Name and value of each, in the order to show them."""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that was found; it holds no secrets."""

    groups: tuple[Group, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all groups."""
        return tuple(finding for group in self.groups for finding in group.findings)

    @property
    def is_fine(self) -> bool:
        """Whether nothing was found that makes builds fail."""
        return not any(finding.breaks_builds for finding in self.findings)


def without_secrets(group: Group) -> Group:
    """Return a group whose texts hold no secrets."""
    return Group(
        name=group.name,
        facts=tuple((name, hide_secrets(value)) for name, value in group.facts),
        findings=tuple(replace(finding, message=hide_secrets(finding.message)) for finding in group.findings),
    )


def hide_secrets(text: str) -> str:
    """Return a text without the cluster's token, secrets in the environment, and credentials and queries of URLs.

    >>> hide_secrets("http://me:pw@host:8265/x?sig=1 and me:pw@head:6379")
    'http://<hidden>@host:8265/x?<hidden> and <hidden>@head:6379'
    """
    text = hide_token(text)
    secrets = {
        name: value.strip()
        for name, value in os.environ.items()
        if _SECRET_NAME.search(name) and len(value.strip()) >= _SHORTEST_HIDDEN
    }
    for name, value in sorted(secrets.items(), key=lambda item: -len(item[1])):
        text = text.replace(value, f"<{name}>")
    text = _USER_INFO.sub("<hidden>@", text)
    text = _QUERY.sub(r"\1?<hidden>", text)
    return _BARE_USER_INFO.sub("<hidden>@", text)
