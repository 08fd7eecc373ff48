"""Samples of a file as tokens: read, tokenized and stored once, then read by every rank from memory-mapped arrays.

`preparation.prepare` writes, `prepared.load` reads. Reading needs numpy only. No module here imports torch,
transformers or datasets.
"""
