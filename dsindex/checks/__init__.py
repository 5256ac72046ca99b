"""Prove that a dataset is intact: its index, its tokens, the provenance of its documents, and its index caches.

The work is cut into pieces that run on any executor. Each returns its findings as sentences; damaged files are findings
and raise no error.
"""
