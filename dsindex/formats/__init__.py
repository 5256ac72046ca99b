"""Bytes to arrays and back, nothing else: one file per format."""
