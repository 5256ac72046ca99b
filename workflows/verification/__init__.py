"""Checks of published data against their manifests and sources, and the report of the findings."""
