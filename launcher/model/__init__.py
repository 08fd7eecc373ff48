"""Values passed between the stages: typed recipes, batches, sizes, instance types, jobs, the backend protocol."""
