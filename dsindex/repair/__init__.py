"""Make a whole dataset of what is left of one: always new files, and an account of what could not be saved.

Each way of doing it is a module: from the shards of a work folder, from what is left of an `.idx`, from EOD in the
`.bin`, from sequence lengths that tokenizing again gave. The manifest tells which of
them is certain (workflows.jobs.repair).
"""
