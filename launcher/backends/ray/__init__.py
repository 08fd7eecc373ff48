"""Jobs of an existing Ray cluster, submitted to its dashboard."""
