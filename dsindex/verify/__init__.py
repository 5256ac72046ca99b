"""Prove that a dataset is whole: its index, its tokens, where its documents came from, and the indices built on it.

Everything is cut into pieces that run on any executor; each gives what it found as sentences, and nothing is raised for
a damaged file: damage is the finding.
"""
