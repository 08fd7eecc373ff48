"""Jobs on Slurm: batch scripts, arrays of the jobs of a sweep, and an operator for elastic jobs."""
