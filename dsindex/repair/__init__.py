"""Make a whole dataset of what is left of one: always new files, and an account of what could not be saved.

Each way of doing it is a module: from the shards of a work folder, from what is left of an `.idx`, from EOD in the
`.bin`, from sequence lengths that tokenizing again gave. Which way is certain is decided in workflows.repair, by the
manifest.
"""
