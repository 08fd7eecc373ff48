"""A checked recipe becomes a job: which sizes it may have, and what each of them means."""
