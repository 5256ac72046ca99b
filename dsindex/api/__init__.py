"""The Python API behind `import dsindex`, a file for each group of functions. The jobs do the work."""
