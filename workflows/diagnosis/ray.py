"""Ray: its version, the address and the source of the token that jobs would use, and whether a head answers.

The token is never shown.
"""

from __future__ import annotations

import importlib.metadata
import os

from dsindex.errors import DsindexError, TaskError
from workflows.diagnosis.report import Finding, Group
from workflows.execution.ray_address import parse_address
from workflows.execution.ray_token import Token, TokenError, find_token


def examine_ray(address: str | None) -> Group:
    """Return the state of Ray.

    Args:
        address: The cluster to ask, as HOST:PORT, HOST or auto; None asks none.
    """
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        version = "missing"
    named = os.environ.get("RAY_ADDRESS", "")
    joins = f"{named} (a job with a work folder joins it)" if named else "not set: jobs run on this machine"
    facts = [("Ray", version), ("RAY_ADDRESS", joins)]
    findings = []
    token = None
    try:
        token = find_token()
        facts.append(("token", _describe_token(token)))
    except TokenError as error:
        facts.append(("token", "cannot be used"))
        findings.append(Finding(message=str(error), breaks_builds=bool(address or named)))
    if named not in {"", "auto"} and address is None:
        try:
            parse_address(named, source="RAY_ADDRESS")
        except TaskError as error:
            findings.append(Finding(message=str(error), breaks_builds=True))
    if address is not None:
        fact, finding = "not asked: the token cannot be used", None
        if not findings:
            fact, finding = _ask(address, token)
        facts.append(("head", fact))
        findings += [] if finding is None else [finding]
    return Group(name="ray", facts=tuple(facts), findings=tuple(findings))


def _describe_token(token: Token | None) -> str:
    mode = os.environ.get("RAY_AUTH_MODE", "")
    told = f", RAY_AUTH_MODE={mode}" if mode else ""
    if token is not None:
        return f"from {token.place}{told}"
    return f"none{told}" if told else "none: neither RAY_AUTH_TOKEN nor RAY_AUTH_TOKEN_PATH nor ~/.ray/auth_token"


def _ask(named: str, token: Token | None) -> tuple[str, Finding | None]:
    """Ask a head whether it is one and accepts the token."""
    try:
        from workflows.execution.ray_connection import locate
        from workflows.execution.ray_head import check_head, find_job_server, uses_tls, wants_token

        address, source = locate(named, "--address")
        check_head(address, token, source=source)
        if uses_tls():
            return f"{address} listens, with TLS", None
        wants = wants_token(address)
        server = find_job_server(address)
    except (DsindexError, ImportError, OSError) as error:
        return "does not answer as a head that accepts us", Finding(message=str(error), breaks_builds=True)
    answers = "wants a token and accepts ours" if wants else "wants no token"
    return f"{address} answers and {answers}; job server {server or 'none'}", None
