"""From a checked recipe to a job: its sizes, and the configuration of each."""
