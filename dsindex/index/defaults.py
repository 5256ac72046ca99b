"""Numbers and names of Megatron that options share with the arithmetic, which takes longer to load."""

MID_LEVEL_SURPLUS = 0.005
"""Share of extra samples requested from each dataset of a weighted blend, as a margin to draw from."""

FIM_CLASS = "GPTFIMDataset"
"""Class of the datasets of jobs with --fim-data: the same arrays under another name."""
