"""Subjects: arguments that name datasets, by path or by the result of a function that made them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol, TypeAlias, runtime_checkable

from dsindex.api.boundary import OptionsError
from dsindex.datasets.opening import PBIN_SUFFIX
from dsindex.store.urls import as_prefix


@runtime_checkable
class Result(Protocol):
    """A result that can be passed where a dataset is expected."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The datasets: prefixes, or paths of `.pbin` files."""
        ...


Subject: TypeAlias = str | os.PathLike[str] | Result
"""A dataset: a prefix, a `.bin`, `.idx` or `.pbin`, or a result with `prefixes`."""
Subjects: TypeAlias = Subject | Iterable[Subject]


def list_prefixes(option: str, subjects: Subjects) -> list[str]:
    """Return the prefixes of datasets, including all of each result.

    Raises:
        OptionsError: If something is not a dataset, or nothing is given.
    """
    found = [prefix for subject in _each(subjects) for prefix in _prefixes(option, subject)]
    if not found:
        raise OptionsError(f"{option}: expected at least one dataset, got none")
    return found


def find_prefix(option: str, subject: Subject) -> str:
    """Return the prefix of a single dataset.

    Raises:
        OptionsError: If there are several, or the subject is not a dataset.
    """
    found = list_prefixes(option, subject)
    if len(found) > 1:
        raise OptionsError(f"{option}: expected one dataset, got {len(found)} ({', '.join(found)}); choose one")
    return found[0]


def list_text_prefixes(option: str, subjects: Subjects) -> list[str]:
    """Return the prefixes of MMIDIDX datasets of texts, including all of each result.

    Raises:
        OptionsError: If one is a `.pbin`, or instruction data, whose tokens and masks belong together.
    """
    given = _each(subjects)
    for subject in given:
        if isinstance(subject, str | os.PathLike):
            continue
        from dsindex.jobs.instruct import InstructResult  # loads the jobs, which only have a result if they are loaded

        if isinstance(subject, InstructResult):
            msg = f"{option}: expected datasets of texts, got instruction data, whose tokens and masks belong together"
            raise OptionsError(msg)
    found = list_prefixes(option, given)
    packed = next((prefix for prefix in found if prefix.endswith(PBIN_SUFFIX)), None)
    if packed is not None:
        raise OptionsError(f"{option}: expected datasets of .bin and .idx, got {packed}; convert it: dsindex.convert")
    return [as_prefix(prefix) for prefix in found]


def _each(subjects: Subjects) -> list[Subject]:
    if isinstance(subjects, str | os.PathLike | Result) or not isinstance(subjects, Iterable):
        return [subjects]
    return list(subjects)


def _prefixes(option: str, subject: object) -> tuple[str, ...]:
    if isinstance(subject, str | os.PathLike):
        return (os.fsdecode(subject),)
    if isinstance(subject, Result):
        return tuple(subject.prefixes)
    from dsindex.jobs.index import IndexResult

    if isinstance(subject, IndexResult):
        msg = f"{option}: expected a dataset, got index caches; pass the dataset that they were built for"
    else:
        msg = f"{option}: expected a path, or the result of a function that made a dataset, got {subject!r}"
    raise OptionsError(msg)
