"""The command line: one module per command, which parses flags and prints."""
