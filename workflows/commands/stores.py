"""Datasets in object stores, as commands name and reach them."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from dsindex.errors import InputError
from dsindex.objects.requests import all_requests
from dsindex.objects.urls import check_endpoint, is_url, parse_url, refuse_url
from workflows.commands.object_requests import describe_requests
from workflows.commands.options import UsageError, add_store_options

if TYPE_CHECKING:
    from dsindex.objects.requests import RequestCounts

_VARIABLES = {"endpoint_url": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"), "region": ("AWS_REGION",)}


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where `s3://` addresses lead."""
    add_store_options(parser.add_argument_group("object stores"))


def enter_stores(options: argparse.Namespace) -> RequestCounts:
    """Let this process, and those that it starts, reach the stores as the options say, and take these out.

    Returns:
        What was asked of object stores so far.

    Raises:
        UsageError: If the endpoint is none.
    """
    for name, variables in _VARIABLES.items():
        value = vars(options).pop(name, None)
        if value is None:
            continue
        try:
            value = check_endpoint(value) if name == "endpoint_url" else value
        except ValueError as error:
            msg = f"--endpoint-url: {error}"
            raise UsageError(msg) from error
        os.environ.update(dict.fromkeys(variables, value))
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
        msg = (
            f"{url}: expected an address without a signature, since a dataset has several files; use credentials of "
            f"the environment"
        )
        raise argparse.ArgumentTypeError(msg)
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


def requests_since(before: RequestCounts) -> str:
    """Return a line about what was asked of object stores since then; empty if that is nothing."""
    return "".join(f"{line}\n" for line in describe_requests(all_requests().since(before)))
