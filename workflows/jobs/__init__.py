"""The frame that all jobs share, and one file for each kind of job."""
