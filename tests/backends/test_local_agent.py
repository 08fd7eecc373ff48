"""The client of the agent's API against a server that answers 200 to everything, as the agent does."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from launcher.operator import agent_client as agent_module
from launcher.operator.agent_client import AgentClient, AgentState, AgentUnreachable, CommandIgnored
from launcher.operator.processes import port_of, reserve_port

START = {
    **{"rank": 1, "hosts": ("a", "b", "c"), "attempt": 2, "master": ("127.0.0.1", 5678)},
    "progress": {"job": {"progressCount": 7}},
}


class Stub:
    """An agent in `state` that takes an order when `obeys` names what it becomes."""

    def __init__(self, state, obeys=None, status_body=None):
        stub = self
        self.orders, self.body = [], status_body

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(stub.body or json.dumps({"status": state, "progress": None}).encode())

            def do_POST(self):
                nonlocal state
                length = int(self.headers.get("Content-Length", 0))
                stub.orders.append((self.path, json.loads(self.rfile.read(length) or "null")))
                state = obeys or state
                self.answer(b"")

            def answer(self, body):
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.client = AgentClient("127.0.0.1", self.server.server_port)


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(agent_module, "CONFIRM_TIMEOUT_S", 0.2)
    made = []

    def make(*args, **kwargs):
        made.append(Stub(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.client.close()
        each.server.shutdown()
        each.server.server_close()


def test_start_sends_what_the_node_must_know(stub):
    ready = stub("ready", obeys="running")
    ready.client.start(**START)
    body = {"rank": 1, "nnodes": 3, "faultCount": 2, "master_addr": "127.0.0.1", "master_port": 5678}
    assert ready.orders == [("/start", {**body, "progress": {"job": {"progressCount": 7}}})]
    assert ready.client.status().state is AgentState.RUNNING


def test_start_refuses_an_agent_that_would_ignore_it(stub):
    completed = stub("completed")
    with pytest.raises(CommandIgnored, match="completed"):
        completed.client.start(**START)
    assert completed.orders == []


@pytest.mark.slow
def test_an_order_that_has_no_effect_is_not_taken_for_done(stub):
    with pytest.raises(CommandIgnored, match="/start had no effect"):
        stub("ready").client.start(**START)
    with pytest.raises(CommandIgnored, match="/stop had no effect"):
        stub("running").client.stop(None)


@pytest.mark.parametrize(
    ("graceful_timeout_s", "extra"),
    [(None, {}), (9, {"is_graceful": True, "timeout": 9})],
    ids=["at-once", "graceful"],
)
def test_stop_is_graceful_only_when_asked(stub, graceful_timeout_s, extra):
    running = stub("running", obeys="stopping")
    running.client.stop(graceful_timeout_s)
    assert running.orders == [("/stop", {"restart_mode": "process_level_restart", **extra})]


STAYS = b'{"status": "%s", "restartMode": "in_process_restart"}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("notice", "mode"),
    [("resize", "in_process_restart"), ("abort", "in_process_restart"), (None, "process_level_restart")],
)
def test_workers_that_stay_get_a_notice_and_addresses_and_logs_of_the_next_attempt(stub, notice, mode):
    agent = stub("ready", status_body=STAYS % b"ready", obeys="running")
    with pytest.raises(CommandIgnored):  # the stub does not change what it says
        agent.client.start(**START)
    ((_, start),) = agent.orders
    assert start["rankIps"] == [{"rank": rank, "ip": host} for rank, host in enumerate("abc")]
    assert start["ipVersion"] == "2"
    agent.body = STAYS % b"init"
    agent.client.notify(notice)
    agent.client.stop(9, notice)
    (_, (update, sent), (stop, body)) = agent.orders
    assert (update, sent["worker_data"], sent["faultCount"], sent["rank"]) == ("/update", {"notice": notice}, 3, 1)
    assert (stop, body) == ("/stop", {"restart_mode": mode, "is_graceful": True, "timeout": 9})


@pytest.mark.parametrize(
    "body",
    [
        *(b'{"status": "levitating"}', b'{"status": ["ready"]}', b"[]", b'"ready"', b"7", b"null", b"{}", b"<html>"),
        *(b'{"status": "faulted", "message": [1]}', b'{"status": "ready", "progress": [1]}'),
        *(b'{"status": "ready", "progress": {"a": 1}}', b'{"status": "ready", "progress": {"a": {}}}'),
        b'{"status": "ready", "progress": {"a": {"progressCount": "many"}}}',
    ],
    ids=str,
)
def test_an_answer_that_makes_no_sense_counts_as_none(stub, body):
    with pytest.raises(AgentUnreachable, match="/status answered"):
        stub("ready", status_body=body).client.status()


def test_no_agent_is_unreachable_and_a_proxy_is_never_asked(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:1")
    with reserve_port() as reservation:
        client = AgentClient("127.0.0.1", port_of(reservation))
        with pytest.raises(AgentUnreachable, match="refused"):
            client.status()
        client.close()
