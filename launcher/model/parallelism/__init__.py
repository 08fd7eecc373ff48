"""How processes are started, and the placement of a model's parts on ranks."""
