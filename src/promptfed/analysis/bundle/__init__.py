"""A bundle: all that it takes to answer for every client of a finished run, and nothing else."""
