"""Jobs on Slurm: options are checked, but submission is not supported yet."""
