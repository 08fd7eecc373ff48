"""Errors of a user's data, template or tokenizer."""


class DataError(ValueError):
    """The data cannot be prepared; the message names what is wrong, where, and how to fix it."""


class SampleError(ValueError):
    """One sample is not valid; its reader adds the file and the line."""
