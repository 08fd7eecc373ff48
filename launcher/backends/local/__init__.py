"""Jobs on this machine: real agents, one for each simulated node, and an operator that drives them."""
