"""Datasets in object stores, as commands name and reach them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dsindex.cli.options import add_options
from dsindex.errors import InputError
from dsindex.execution.store_variables import STORE_VARIABLES, give_store_variables
from dsindex.options.config import StoreConfig, UsageError
from dsindex.store.requests import all_requests, describe_requests
from dsindex.store.urls import check_endpoint, is_url, parse_url, refuse_url

if TYPE_CHECKING:
    from dsindex.store.requests import RequestCounts


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where `s3://` addresses lead."""
    add_options(parser.add_argument_group("object stores"), StoreConfig, *StoreConfig.model_fields)


def enter_stores(options: argparse.Namespace) -> RequestCounts:
    """Let this process, and those that do its work, reach the stores as the options say, and take these out.

    Returns:
        What was asked of object stores so far.

    Raises:
        UsageError: If the endpoint is none.
    """
    for name in STORE_VARIABLES:
        value = vars(options).pop(name, None)
        if value is None:
            continue
        try:
            value = check_endpoint(value) if name == "endpoint_url" else value
        except ValueError as error:
            raise UsageError(f"--endpoint-url: {error}") from error
        give_store_variables(name, value)
    return all_requests()


def dataset_path(text: str) -> str:
    """Return the path or address of a dataset from a command line.

    Raises:
        ArgumentTypeError: If the address cannot be used.
    """
    if not is_url(text):
        return text
    try:
        url = parse_url(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if url.query:
        raise argparse.ArgumentTypeError(
            f"{url}: expected an address without a signature, since a dataset has several files; use credentials of "
            f"the environment"
        )
    if url.has_magic or url.is_folder:
        shown = text.partition("?")[0]  # what follows may be meant as a signature
        msg = f"{shown}: expected the address of one dataset, got a pattern or a folder; name its prefix"
        raise argparse.ArgumentTypeError(msg)
    return str(url)


def path_here(text: str, *, instead: str = "copy it here first") -> str:
    """Return a path of this machine from a command line.

    Args:
        text: The word.
        instead: What to do with an address.

    Raises:
        ArgumentTypeError: If it is an address.
    """
    if is_url(text):
        msg = f"expected a path of this machine, got the address {text.partition('?')[0]}; {instead}"
        raise argparse.ArgumentTypeError(msg)
    return text


def output_here(text: str) -> str:
    """Return a path of this machine to write to, from a command line.

    Raises:
        ArgumentTypeError: If it is an address.
    """
    try:
        return refuse_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def requests_since(before: RequestCounts) -> list[str]:
    """Return a line about what was asked of object stores since then; none if that is nothing."""
    return describe_requests(all_requests().since(before))
