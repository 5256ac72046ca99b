"""Jobs that write: build, pack, instruct, merge, index, export, convert."""
