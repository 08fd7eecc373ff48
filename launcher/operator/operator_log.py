"""The log of an operator, on its standard error."""

import logging

from launcher.common import redaction


def start() -> None:
    """Let this process log, without secrets."""
    redaction.install()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    # At its own level, httpx logs every request.
    logging.getLogger("httpx").setLevel(logging.WARNING)
