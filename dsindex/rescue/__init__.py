"""Make an intact dataset out of a damaged one: always new files, and a report of what is lost.

Each source of the repair has a module: the shards of a work folder, the remains of an `.idx`, and the tokens, with EOD
or with lengths from tokenizing again. The manifest decides which is certain (workflows.jobs.repair).
"""
