"""The exits of workers, as their agent reports them."""

import re
import signal
from dataclasses import dataclass

from launcher.common.names import EXIT_NOT_FINITE

_FAILURE = re.compile(r"Local Rank (\d+) exited with code (-?\d+)")


@dataclass(frozen=True, slots=True)
class FailedWorker:
    """A failed worker; `exit_code` is the agent's number.

    The agent's SIGCHLD handler keeps the negated wait status (exit status in the high byte, signal in the low seven
    bits); if the handler ran too late, the number is Popen's: exit status or negated signal.
    """

    local_rank: int
    exit_code: int

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it."""
        return self.exit_code < 0 and bool(-self.exit_code & 0x7F)

    @property
    def status(self) -> int:
        """Its exit status, if it was not killed."""
        return self.exit_code if self.exit_code >= 0 else -self.exit_code >> 8

    @property
    def is_final(self) -> bool:
        """Whether it would end in the same way if it was started again."""
        return not self.was_killed and self.status == EXIT_NOT_FINITE

    def __str__(self) -> str:
        if self.was_killed:
            return f"was killed by {signal.Signals(-self.exit_code & 0x7F).name}"
        reason = " (its loss, gradients or weights are not finite)" if self.is_final else ""
        return f"exited with code {self.status}{reason}"


def failed_workers(message: str) -> tuple[FailedWorker, ...]:
    """Return the workers named in a faulted agent's message.

    Source: hyperpod_elastic_agent 1.1.3, HyperPodElasticAgent.set_agent_state_fault.
    """
    return tuple(FailedWorker(int(rank), int(code)) for rank, code in _FAILURE.findall(message))
