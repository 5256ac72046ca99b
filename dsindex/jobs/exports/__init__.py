"""Instruction data in the formats of other trainers, made of a dataset's tokens and loss masks."""
