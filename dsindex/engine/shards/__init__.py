"""The unit of work: tokenizing a byte range, document layout, provenance, quarantine, and the files of an attempt."""
