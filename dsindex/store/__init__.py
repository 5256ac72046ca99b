"""Files and objects: paths and addresses, listings, reads in ranges, atomic writes, locks and journals."""
