"""The agent as process 1 of a pod, which terminates when the kubelet requests it.

    python -m launcher.backends.kubernetes.process_one ARGUMENTS-OF-HYPERPODRUN

The kernel delivers to process 1 only the signals that it handles. The agent handles SIGTERM while workers run, not
while it imports or waits for its start: a pod without this would run until the end of its grace period.

Source: kill(2), Notes; torch.distributed.elastic.multiprocessing.api, PContext.start.
"""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


class _Ended(BaseException):
    """SIGTERM arrived before the agent had a handler for it.

    A BaseException, so that no `except Exception` in the agent's imports swallows it.
    """


def main() -> None:
    """Run the agent with hyperpodrun's command line; after SIGTERM its exit status is 143."""
    signal.signal(signal.SIGTERM, _end)
    try:
        _run()
    except _Ended:
        _leave(signal.SIGTERM)


def _run() -> None:
    from torch.distributed.elastic.multiprocessing import SignalException

    from launcher.runtime import hyperpodrun

    try:
        hyperpodrun.main()
    except SignalException as error:  # raised by the agent after it has ended the workers
        _leave(error.sigval)


def _end(_signum: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Ended


def _leave(signum: int) -> NoReturn:
    """End the process even if threads run: an agent that ends during its start leaves its server's threads behind."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(128 + signum)


if __name__ == "__main__":
    main()
