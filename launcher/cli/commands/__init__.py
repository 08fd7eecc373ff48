"""The `recipes` command: what each of its commands does. Every import that costs time waits for its command."""
