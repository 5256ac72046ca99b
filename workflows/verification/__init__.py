"""Checks of published data, their report, and what is compared with what."""
