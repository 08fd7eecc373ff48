"""Objects that a cluster's administrator applies for a team, and whether a job fits its quotas."""
