"""How processes are started, and which rank holds which part of a model."""
