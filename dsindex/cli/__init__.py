"""The command line: parser, output, exit codes and signals."""
