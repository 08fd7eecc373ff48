"""The command lines: `main.py`, `recipes` and what they print."""
