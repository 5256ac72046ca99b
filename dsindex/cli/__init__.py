"""The command line: its parser, output, exit codes and signals."""
