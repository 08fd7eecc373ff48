"""Errors of a user's data, template or tokenizer."""


class DataError(ValueError):
    """The data cannot be prepared.

    Args:
        messages: What is wrong, where, and how to fix it; several if several samples are not valid.
    """

    def __init__(self, *messages: str):
        super().__init__("\n".join(messages))
        self.messages = messages


class SampleError(ValueError):
    """One sample is not valid; its reader adds the file and the line."""
