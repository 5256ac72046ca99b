"""The Python API: what `import dsindex` offers, a file for each group of functions. The jobs do the work."""
