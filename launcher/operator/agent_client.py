"""A client of the elastic agent's HTTP API.

The agent answers 200 even to calls that it ignores, so /status confirms every command.

Source: hyperpod_elastic_agent 1.1.3, server/server.py and server/util.py (PLR_VALID_TRANSITIONS).
"""

import time
from collections.abc import Sequence
from typing import Any

import httpx

from launcher.common import names
from launcher.operator.state_machine import progress_step
from launcher.operator.types import AgentProgress, AgentState, AgentStatus

REQUEST_TIMEOUT_S = 5.0
"""How long one answer may take on a machine that is busy importing torch."""

CONFIRM_TIMEOUT_S = 15.0
"""How long after a command /status may show the old state."""

_CONFIRM_POLL_S = 0.05
_IN_PROCESS, _PROCESS_LEVEL = "in_process_restart", "process_level_restart"
"""Ways to stop workers. Source: hyperpod_elastic_agent 1.1.3, ipc/common.py, RestartMode; others mean the first."""


class AgentUnreachable(Exception):
    """The agent did not answer in time, or not with a valid answer."""


class CommandIgnored(Exception):
    """The agent answered a command but did not execute it."""


class AgentClient:
    """The agent that listens at one address.

    Args:
        started: The body of its last /start, if another operator sent it.
    """

    def __init__(self, host: str, port: int, started: dict[str, Any] | None = None):
        self.host, self.port = host, port
        self.started = started
        # trust_env off: a proxy must not see calls inside the cluster.
        self._http = httpx.Client(base_url=f"http://{host}:{port}", timeout=REQUEST_TIMEOUT_S, trust_env=False)

    def status(self) -> AgentStatus:
        """Return the agent's state. Each call raises AgentUnreachable if the agent does not answer."""
        answer = self._call("GET", "/status")
        try:
            body = answer.json()
            message, progress = body.get("message") or "", body.get("progress") or {}
            if not isinstance(message, str):
                raise ValueError("the message is not a text")
            progress_step(progress)
            is_in_place = body.get("restartMode") == _IN_PROCESS
            return AgentStatus(AgentState(body["status"]), message, progress, is_in_place)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise AgentUnreachable(f"/status answered {answer.text[:200]!r}") from error

    def start(
        self,
        rank: int,
        hosts: Sequence[str],
        attempt: int,
        master: tuple[str, int],
        progress: AgentProgress | None = None,
    ) -> None:
        """Start the workers of a ready agent.

        Args:
            hosts: Addresses of all agents, by rank.
            attempt: Incremented at every restart; part of the log folder's name.
            master: Address and port of rank 0's store.
            progress: The checkpoint to start from.

        Raises:
            CommandIgnored: The agent is not ready, or /status does not confirm the start.
        """
        before = self.status()
        if before.state is not AgentState.READY:
            raise CommandIgnored(f"/start would be ignored: the agent is {before.state}")
        body = {
            "rank": rank,
            "nnodes": len(hosts),
            "faultCount": attempt,
            "master_addr": master[0],
            "master_port": master[1],
        }
        self.started = body
        body = {**body, "progress": dict(progress or {})}
        if before.is_in_place:  # such an agent asserts that it knows all addresses
            addresses = [{"rank": each, "ip": host} for each, host in enumerate(hosts)]
            body |= {"rankIps": addresses, "ipVersion": str(attempt)}
        self._call("POST", "/start", body)
        self._confirm("/start", {AgentState.RUNNING, AgentState.COMPLETED, AgentState.FAULTED})

    def notify(self, notice: str | None) -> None:
        """Announce the reason of the next stop to workers that stay in their processes; None to start them anew."""
        status = self.status()
        if status.state is AgentState.READY or not (status.is_in_place and self.started):
            return
        # A worker that is started anew belongs to the next attempt: its logs must not replace those of this one.
        later = {"faultCount": self.started["faultCount"] + 1, "worker_data": {names.NOTICE: notice}}
        self._call("POST", "/update", {**self.started, **later})

    def stop(self, graceful_timeout_s: int | None, notice: str | None = None) -> None:
        """Stop the agent's workers; it is `ready` once they are gone. An agent that is ready is left alone.

        Args:
            graceful_timeout_s: Seconds between SIGUSR1 and SIGKILL; None kills at once.
            notice: The notice to workers that stay in their processes; None to start them anew.

        Raises:
            CommandIgnored: /status does not confirm the stop.
        """
        status = self.status()
        if status.state is AgentState.READY:
            return
        body: dict[str, Any] = {"restart_mode": _PROCESS_LEVEL if notice is None else _IN_PROCESS}
        if graceful_timeout_s is not None:
            body |= {"is_graceful": True, "timeout": graceful_timeout_s}
        self._call("POST", "/stop", body)
        self._confirm("/stop", {AgentState.STOPPING, AgentState.READY, AgentState.INIT})

    def shutdown(self) -> None:
        """Shut the agent down, which takes about a second. Ignored while it is stopping."""
        self._call("POST", "/shutdown")

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        try:
            return self._http.request(method, path, json=body).raise_for_status()
        except httpx.HTTPError as error:
            raise AgentUnreachable(f"{method} {path}: {error}") from error

    def _confirm(self, order: str, expected: set[AgentState]) -> None:
        deadline = time.monotonic() + CONFIRM_TIMEOUT_S
        while (state := self.status().state) not in expected:
            if time.monotonic() > deadline:
                raise CommandIgnored(f"{order} had no effect in {CONFIRM_TIMEOUT_S:g} s: the agent is {state}")
            time.sleep(_CONFIRM_POLL_S)
