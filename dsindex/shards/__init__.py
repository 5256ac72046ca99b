"""The unit of work: the files of an attempt, how documents are laid out, tokenizing a byte range, what is set aside."""
