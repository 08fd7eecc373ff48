"""The command lines: `recipes`, `main.py` and what they print."""
