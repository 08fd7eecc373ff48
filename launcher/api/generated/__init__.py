"""What `recipes docs`, `scripts`, `schema` and `rules` generate from the code."""
