"""Calls of the agents of a job, all at once; what fails becomes faults of their nodes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from launcher.operator.agent_client import AgentClient, AgentUnreachable, CommandIgnored, StartCall
from launcher.operator.types import Cause, Fault, StartWorkers, StopWorkers

Call = Callable[[AgentClient], None]
Item = TypeVar("Item")
Result = TypeVar("Result")


class AgentCalls:
    """Calls agents at the same time.

    Args:
        agent_of: Returns the agent of a node that lives; None for any other node.
        at_once: Maximum number of calls at the same time.
    """

    def __init__(self, agent_of: Callable[[int], AgentClient | None], at_once: int):
        self._agent_of = agent_of
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="agent-call")

    def close(self) -> None:
        """Wait for the calls that are running; make no more."""
        self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Apply a function to items at the same time; yield the results in order."""
        return self._pool.map(function, items)

    def later(self, function: Callable[[], object]) -> None:
        """Call a function without waiting for it."""
        self._pool.submit(function)

    def start(self, command: StartWorkers, master: tuple[str, int]) -> tuple[Fault, ...]:
        """Start workers; return a fault for each node on which that failed.

        Args:
            command: The nodes, in the order of ranks.
            master: Address and port of rank 0's store.
        """
        size = len(command.nodes)

        def call(rank: int) -> Call:
            return lambda agent: agent.start(StartCall(rank, size, command.attempt, master, command.progress))

        return self._each({node: call(rank) for rank, node in enumerate(command.nodes)})

    def stop(self, command: StopWorkers) -> tuple[Fault, ...]:
        """Stop the workers of all nodes of `command`; return a fault for each node on which that failed."""
        return self._each(dict.fromkeys(command.nodes, lambda agent: agent.stop(command.graceful_timeout_s)))

    def shut_down(self, nodes: Iterable[int]) -> None:
        """Shut down the agents of some nodes."""
        self._each(dict.fromkeys(nodes, AgentClient.shutdown))

    def _each(self, calls: Mapping[int, Call]) -> tuple[Fault, ...]:
        def call_one(item: tuple[int, Call]) -> Fault | None:
            index, call = item
            if (agent := self._agent_of(index)) is None:
                return Fault(index, Cause.LOST)
            try:
                call(agent)
            except (AgentUnreachable, CommandIgnored) as error:
                return Fault(index, Cause.DISOBEDIENT, str(error))
            return None

        return tuple(fault for fault in self._pool.map(call_one, calls.items()) if fault)
