"""Errors of a user's data, template or tokenizer. A sample must not control the terminal."""

from launcher.common.texts import in_line


class DataError(ValueError):
    """The data cannot be prepared.

    Args:
        messages: What is wrong, where, and how to fix it; several if several samples are not valid.
    """

    def __init__(self, *messages: str):
        self.messages = tuple(in_line(message, keeps="\n") for message in messages)
        super().__init__("\n".join(self.messages))


class SampleError(ValueError):
    """One sample is not valid; its reader adds the file and the line."""

    def __init__(self, message: str):
        super().__init__(in_line(message))


class TemplateFault(SampleError):
    """The chat template does not fit a sample, and most likely none of its kind: the samples are named together."""
