"""The reviewable result of a compile: its files, its digest, and how it is written."""
