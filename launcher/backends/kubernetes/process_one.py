"""The agent as process 1 of a pod, which ends when the kubelet says so.

    python -m launcher.backends.kubernetes.process_one ARGUMENTS-OF-HYPERPODRUN

The kernel hands process 1 only the signals that it handles. The agent handles SIGTERM while workers run, not while it
imports or waits for its start: such a pod would outlive its whole grace period.

Source: kill(2), Notes; torch.distributed.elastic.multiprocessing.api, PContext.start.
"""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


class _Ended(BaseException):
    """SIGTERM came before the agent handled it itself."""


def main() -> None:
    """Run the agent with hyperpodrun's command line; ended by SIGTERM, its exit status is 143."""
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
    except SignalException as error:  # the agent's own, after it has ended the workers
        _leave(error.sigval)


def _end(_signum: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Ended


def _leave(signum: int) -> NoReturn:
    """End the process, although threads may run: the agent leaves its server's behind when it ends while starting."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(128 + signum)


if __name__ == "__main__":
    main()
