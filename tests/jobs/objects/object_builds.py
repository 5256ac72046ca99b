"""Builds, and what of their outputs is under the one law, in a bucket and on a disk."""

import json

import orjson

from dsindex.options.build import BuildConfig
from tests.support.jobs import config_of, run_config

FILES = ("bin", "idx", "provenance.parquet")


def build(source, prefix, **options):
    own = {"append_eod": True, "output_prefix": prefix, "shard_size": "8KiB"}
    return run_config(config_of(BuildConfig, source, **{**own, **options}))


def built(store, prefix):
    """The objects of a dataset; of the manifest, the part under the one law."""
    found = {suffix: store.content(f"{prefix}_text_document.{suffix}") for suffix in FILES}
    manifest = json.loads(store.content(f"{prefix}_text_document.manifest.json"))
    return {**found, "content": orjson.dumps(manifest["content"])}


def on_disk(prefix):
    found = {suffix: prefix.with_name(f"{prefix.name}_text_document.{suffix}").read_bytes() for suffix in FILES}
    manifest = json.loads(prefix.with_name(f"{prefix.name}_text_document.manifest.json").read_bytes())
    return {**found, "content": orjson.dumps(manifest["content"])}
