"""Failures of a tier that prove no damage, and how errors of a file system become failures of a tier."""

import contextlib
import errno
from collections.abc import Iterator

from launcher.runtime.checkpoint_search import Unavailable
from launcher.runtime.progress import WRONG_KIND
from launcher.runtime.tiers.shards import Broken

REFUSALS = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR)
"""Errors of a file system that remain until someone changes it. Source: errno(3)."""


class TierFailure(Unavailable):
    """A tier could not complete a request: it is unreachable, full, or throttling. No damage is known.

    Args:
        retry_after_s: Seconds to wait, if the tier named any; otherwise 0.
        code: The service's error code; "" if it has none.
    """

    def __init__(self, reason: str, retry_after_s: float = 0.0, code: str = ""):
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.code = code


class TierRefused(TierFailure):
    """A tier refuses a request, and waiting will not help: access denied, no such bucket, not a folder."""


@contextlib.contextmanager
def translated(*, is_reading: bool = False) -> Iterator[None]:
    """Raise errors of a file system as failures of a tier, or as damage if a file is missing.

    Args:
        is_reading: Whether the block reads what was saved: a file of a wrong kind then is damage too.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise Broken(f"{error.filename} is gone") from error
    except OSError as error:
        if is_reading and error.errno in WRONG_KIND:
            raise Broken(f"{error.filename}: {error.strerror}") from error
        raise (TierRefused if error.errno in REFUSALS else TierFailure)(str(error)) from error
