"""The operator of an elastic job: its state machine, its calls of the agents, and the files that it writes."""
