"""Kernels (functions compiled by numba), and how they are loaded."""
