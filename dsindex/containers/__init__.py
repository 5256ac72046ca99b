"""Compressed files: told by their content, decoded as streams with bounded memory, cut where members begin."""
