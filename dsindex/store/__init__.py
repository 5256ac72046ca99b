"""Files and objects: locations, ranges, atomic writes, locks."""
