"""What a cluster's administrator applies for a team, and whether a job fits into it."""
