"""`hyperpodrun` for any version of torch, with workers that stop and start promptly.

Since torch 2.12, torchrun has an option `--shutdown-timeout`, which the agent defines, too; argparse refuses the
second definition. Here the agent's option replaces torchrun's, which the agent does not read. That torch also passes
the agent its own default of 30 s between SIGTERM and SIGKILL as if it had been requested.

The agent checks ten times a second whether a command has come and whether a worker has ended. A restart of the
workers meets three such pauses, which are shorter here.

In its in-process mode the agent does not check at all until its workers are at the barrier: it would wait in vain for
one that ended before, such as by an error of its script. Here that is a fault like any other.
"""

import contextlib
import os
import queue
import signal
import time
from typing import TYPE_CHECKING

from launcher.runtime.imports import without_collections

with without_collections():
    from hyperpod_elastic_agent.elastic_agent.hyperpod_elastic_agent import HyperPodElasticAgent
    from hyperpod_elastic_agent.elastic_agent.ipr_hyperpod_elastic_agent import IPRHyperPodElasticAgent
    from hyperpod_elastic_agent.ipc import HyperPodPLRException
    from hyperpod_elastic_agent.pcontext.pcontext import HyperpodSubprocessContext
    from hyperpod_elastic_agent.run import add_additional_hyperpod_args, register_hyperpod_rendezvous, run
    from hyperpod_elastic_agent.server import AgentState
    from torch.distributed.elastic.agent.server.api import WorkerState
    from torch.distributed.run import get_args_parser

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

MONITOR_INTERVAL_S = 0.02
"""Default of `--monitor-interval`. A look at the workers takes 0.1 ms."""

_EXIT_POLL_S = 0.01
_BARRIER_POLL_S = 0.1
_on_success = IPRHyperPodElasticAgent._handle_succeeded_state


def main(argv: list[str] | None = None) -> None:
    """Run the agent with hyperpodrun's command line.

    Source: hyperpod_elastic_agent 1.1.3, run.py: main; torch.distributed.elastic.agent.server.api,
    SimpleElasticAgent, which sets `_shutdown_timeout`.
    """
    register_hyperpod_rendezvous()
    parser = get_args_parser()
    for container in (parser, parser._optionals):
        container.conflict_handler = "resolve"
    add_additional_hyperpod_args(parser)
    if "PET_MONITOR_INTERVAL" not in os.environ:  # torchrun's own way to set a default
        parser.set_defaults(monitor_interval=MONITOR_INTERVAL_S)
    args = parser.parse_args(argv)
    timeout = property(lambda _: args.shutdown_timeout, lambda *_: None)
    setattr(HyperPodElasticAgent, "_shutdown_timeout", timeout)  # noqa: B010 a property where torch has an int
    setattr(HyperpodSubprocessContext, "_close_single", staticmethod(close_worker))  # noqa: B010 a method
    setattr(IPRHyperPodElasticAgent, "_handle_succeeded_state", on_success)  # noqa: B010 a method
    run(args)


def on_success(agent: IPRHyperPodElasticAgent, role: str, spec: "WorkerSpec") -> None:
    """Start the workers of a new agent, which is ready once they wait at the barrier.

    Source: hyperpod_elastic_agent 1.1.3, IPRHyperPodElasticAgent._handle_succeeded_state, which this replaces.
    """
    if agent._agent_state != AgentState.INIT:
        _on_success(agent, role, spec)
        return
    next(agent._training_stages_gen)
    agent.stop_log_monitoring(clear_log_monitoring_configuration=False)
    if await_barrier(agent):
        agent.set_agent_state(AgentState.READY)


def await_barrier(agent: IPRHyperPodElasticAgent) -> bool:
    """Return whether the workers are at the barrier, or have all completed without it, as a program may.

    False once one has failed, or the agent is to stop: its own loop acts on that.

    Raises:
        HyperPodPLRException: They took longer than `--inprocess-timeout`: the agent starts them anew.

    Source: hyperpod_elastic_agent 1.1.3, InProcessRestartSocketServer.get_ranks_at_barrier, which this replaces.
    """
    server, missing = agent._ipc_server, set(agent._ipc_server._local_ranks)
    deadline = time.monotonic() + (agent.inprocess_timeout or float("inf"))
    while missing:
        state = agent._monitor_workers(agent._worker_group).state
        if state is WorkerState.SUCCEEDED:
            return True
        if state is WorkerState.FAILED or agent._process_level_start or agent._agent_state != AgentState.INIT:
            return False
        if time.monotonic() > deadline:
            raise HyperPodPLRException(f"not at the barrier in {agent.inprocess_timeout} s: local ranks {missing}")
        with contextlib.suppress(queue.Empty):
            _, message = server._clients_ready_queue.get(timeout=_BARRIER_POLL_S)
            missing.discard(message["local_rank"])
            server.ipc_wg.notify_rank_at_barrier(message["local_rank"])
    return True


def close_worker(handler: "SubprocessHandler", death_sig: signal.Signals, timeout: float = 15.0) -> None:
    """Send a worker a signal and return once it has ended; kill it if that takes too long.

    Source: hyperpod_elastic_agent 1.1.3, HyperpodSubprocessContext._close_single, which this replaces.
    """
    _send(handler, death_sig)
    deadline = time.monotonic() + timeout
    while _runs(handler.proc.pid):
        if time.monotonic() > deadline:
            _send(handler, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(_EXIT_POLL_S)
    handler.proc.poll()  # reaps it where the agent has no handler for that


def _send(handler: "SubprocessHandler", signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        handler.close(signum)


def _runs(pid: int) -> bool:
    """Return whether a child runs. Its status is left to the agent, which reaps its children in a signal handler."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


if __name__ == "__main__":
    main()
