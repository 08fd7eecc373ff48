"""What every package may use: Problems, secrets, YAML, text tables, the terminal, paths."""
