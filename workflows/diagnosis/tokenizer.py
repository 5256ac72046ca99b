"""The engine that would encode for a tokenizer, and why it is not the fast one."""

from __future__ import annotations

import importlib.metadata

from dsindex.errors import DsindexError
from dsindex.text.agreement import GIGATOKEN_VERSIONS, REFERENCE_VERSIONS, was_compared
from workflows.diagnosis.report import Finding, Group


def examine_tokenizer(path: str | None) -> Group:
    """Return the engine for a tokenizer; without one, whether the installed versions allow the fast engine.

    Args:
        path: As for --tokenizer-model.
    """
    if path is None:
        return Group(name="tokenizer", facts=(("engine", _describe_versions()),))
    from dsindex.text.engines import choose_engine
    from dsindex.text.tokenizer import load_tokenizer

    try:
        tokenizer = load_tokenizer(path)
        engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    except (DsindexError, OSError, importlib.metadata.PackageNotFoundError) as error:
        finding = Finding(message=f"tokenizer: {error}", breaks_builds=True)
        return Group(name="tokenizer", facts=(("tokenizer", f"{path}: cannot be used"),), findings=(finding,))
    eod = "no EOD token" if tokenizer.eod_id is None else f"EOD {tokenizer.eod_token!r} is {tokenizer.eod_id}"
    facts = (
        ("tokenizer", f"{tokenizer.name}, {tokenizer.vocabulary_size:,} tokens, {eod}, of {tokenizer.library}"),
        ("sha256", tokenizer.sha256),
        ("engine", engine.describe()),
    )
    fallback = engine.describe_fallback()
    findings = () if fallback is None else (Finding(message=f"{fallback}; builds are right, but slower"),)
    return Group(name="tokenizer", facts=facts, findings=findings)


def _describe_versions() -> str:
    """Return which references the installed gigatoken was compared with."""
    try:
        version = importlib.metadata.version("gigatoken")
    except importlib.metadata.PackageNotFoundError:
        return "gigatoken is not installed"
    told = []
    for library in REFERENCE_VERSIONS:
        try:
            own = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
        told.append(f"{'' if was_compared(version, own, library) else 'not '}with {library} {own}")
    known = f"gigatoken {version}, which was compared {', '.join(told)}"
    note = "" if version in GIGATOKEN_VERSIONS else f" (gigatoken {', '.join(GIGATOKEN_VERSIONS)} was)"
    return f"{known}{note}; --tokenizer-model tells the engine of one"
