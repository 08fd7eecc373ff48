"""Jobs on Slurm: options that are read, and nothing that submits yet."""
