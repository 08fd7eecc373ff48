"""The record of a job's code, data, image and packages, and how two records differ."""
