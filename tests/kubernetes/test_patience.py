"""Refusals that pass, refusals by admission, and how long the API asks to be left alone."""

import http.server
import json
import ssl
import time
from base64 import b64encode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from background import Collected, await_true, serving
from log_texts import log_texts

from launcher.backends.kubernetes.api_errors import ApiError, problem, retry_after_s
from launcher.backends.kubernetes.api_objects import path
from launcher.backends.kubernetes.connection import connect
from launcher.backends.kubernetes.submit import submit
from launcher.common.problems import ProblemsFound
from launcher.model import backend_registry
from launcher.model.job_spec import JobState, LogSelection

pytest_plugins = ("cluster_fixtures",)

JOB = "HyperPodPyTorchJob"
BACKEND = backend_registry.load_backend("k8s")
ODD = {
    "unauthorized": {"status": 401},
    "not-found": {"status": 404},
    "empty": {"body": b""},
    "garbled": {"body": b"<html>gateway</html>"},
    "no-object": {"body": b"{}"},
    "list-of-nothing": {"body": b"[]"},
    "throttled": {"status": 429, "retry_after": "1"},
}
PLACES = {
    "list-of-jobs": "hyperpodpytorchjobs[?](?!.*watch)",
    "watch-of-jobs": "hyperpodpytorchjobs.*watch=true",
    "list-of-pods": "/pods[?](?!.*watch)",
    "watch-of-pods": "/pods.*watch=true",
    "pod": "/pods/[^/?]*$",
    "log": "/log[?]",
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("fault", ODD.values(), ids=ODD)
def test_one_odd_answer_ends_no_follower(space, bundle, fault, place):
    handle = BACKEND.submit(bundle())
    pod = space.pod(space.get(JOB, handle.native_id))
    space.run_container(pod)
    space.cluster.kubelet.write(pod, "first")
    space.cluster.proxy.fail(method="GET", path=place, **fault)
    waiting = Collected(BACKEND.wait(handle))
    logs = Collected(log_texts(BACKEND, handle, LogSelection(), follow=True))
    await_true(lambda: waiting.got and "first" in logs.got)
    space.cluster.kubelet.write(pod, "last")
    space.end_container(pod)
    space.conditions(handle.native_id, "Completed")
    assert waiting.result(60)[-1].state is JobState.SUCCEEDED
    assert [line for line in logs.result(60) if "  " not in line] == ["first", "last"]


@pytest.mark.parametrize(
    "line",
    [b"null\n", b"{}\n", b'{"type": "ADDED"}\n', b'{"type": "ERROR", "object": {"code": 500}}\n', b"\n"],
    ids=["null", "empty", "no-object", "error", "blank"],
)
def test_an_odd_event_of_a_watch_ends_no_follower(space, bundle, line):
    handle = BACKEND.submit(bundle())
    space.cluster.proxy.fail(path="hyperpodpytorchjobs.*watch=true", body=line)
    seen = Collected(BACKEND.wait(handle))
    await_true(lambda: seen.got)
    space.conditions(handle.native_id, "Completed")
    assert seen.result(60)[-1].state is JobState.SUCCEEDED


def test_a_follower_gives_up_on_credentials_that_stay_refused(space, bundle, monkeypatch):
    monkeypatch.setattr("launcher.backends.kubernetes.job_watch.REFUSAL_PATIENCE_S", 0.3)
    handle = BACKEND.submit(bundle())
    space.cluster.proxy.fail(path="/pods[?]", status=401, times=10**6)
    with pytest.raises(ProblemsFound, match="E343"):
        Collected(BACKEND.wait(handle)).result(60)


def test_a_command_asks_once_more_with_credentials_that_were_renewed(space):
    space.kubeconfig("not-valid")
    connection = connect(None)
    with pytest.raises(ApiError) as caught:
        connection.get(path("Namespace", "", space.name))
    assert caught.value.status == 401
    space.kubeconfig()
    assert connection.get(path("Namespace", "", space.name))["metadata"]["name"] == space.name


@pytest.mark.parametrize("as_date", [False, True], ids=["seconds", "date"])
def test_a_request_waits_as_long_as_it_is_asked_to(space, as_date):
    connection, began = space.connection(patience_s=60), time.monotonic()
    until = (datetime.now(UTC) + timedelta(seconds=3)).replace(microsecond=0)
    space.cluster.proxy.fail(status=503, retry_after=format_datetime(until, usegmt=True) if as_date else "2")
    assert connection.get(path("Namespace", "", space.name))
    assert datetime.now(UTC) >= until if as_date else time.monotonic() - began >= 2.0


def test_a_request_that_is_asked_to_wait_beyond_its_patience_ends_at_once(space):
    space.cluster.proxy.fail(status=429, retry_after="3600", times=10**6)
    with pytest.raises(ApiError) as caught:
        space.connection(patience_s=60).get(path("Namespace", "", space.name))
    assert caught.value.retry_after_s == 3600 and len(space.cluster.proxy.seen) == 1


@pytest.mark.parametrize(
    ("text", "date", "seconds"),
    [
        (None, None, None),
        ("", None, None),
        ("soon", None, None),
        ("-3", None, None),
        ("²", None, None),
        ("120", None, 120.0),
        ("Wed, 21 Oct 2015 07:28:10 GMT", "Wed, 21 Oct 2015 07:28:00 GMT", 10.0),
        ("Wed, 21 Oct 2015 07:28:10 GMT", None, 0.0),
        ("Wed, 99 Oct 2015 07:28:10 GMT", None, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_a_date(text, date, seconds):
    assert retry_after_s(text, date) == seconds


def refused(space, bundle):
    with pytest.raises(ProblemsFound) as caught:
        submit(space.connection(), bundle)
    return caught.value.problems


def test_a_quota_s_refusal_is_reported_as_one(space, bundle):
    quota = space.make("ResourceQuota", "none", spec={"hard": {"count/configmaps": "0"}})
    used = {"hard": {"count/configmaps": "0"}, "used": {"count/configmaps": "0"}}
    space.set_status("ResourceQuota", quota["metadata"]["name"], used)
    made = bundle()

    def is_enforced():
        problems = refused(space, made)
        return [each for each in problems if each.code == "E354"]

    await_true(is_enforced)
    (found,) = is_enforced()
    assert "exceeded quota: none" in found.message and "Role" not in found.remedy and "quota" in found.remedy


@pytest.fixture
def webhook(space):
    """Run a webhook that denies the ConfigMaps of the test's namespace."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            response = {"uid": asked["request"]["uid"], "allowed": False, "status": {"message": "no cost centre"}}
            text = json.dumps({**asked, "request": None, "response": response}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context, authority = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), space.cluster.engine.authority
    context.load_cert_chain(*authority.issue("webhook"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    space.admin.merge(path("Namespace", "", space.name), {"metadata": {"labels": {"audited": space.name}}}, "test")
    hook = {
        "name": "costs.example.com",
        "clientConfig": {
            "url": f"https://127.0.0.1:{server.server_address[1]}/",
            "caBundle": b64encode(authority.ca_file.read_bytes()).decode(),
        },
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}],
        "namespaceSelector": {"matchLabels": {"audited": space.name}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    where = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/costs"
    body = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "costs"},
        "webhooks": [hook],
    }
    with serving(server):
        made = space.admin.apply(where, body, "test")
        yield
        space.admin.delete(where, made["metadata"]["uid"])


def test_a_webhook_s_refusal_is_reported_as_one(space, bundle, webhook):
    made, found = bundle(), []

    def is_asked():
        try:
            connection = replace(space.connection(), patience_s=1.0)
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe", "namespace": space.name}}
            connection.apply(path("ConfigMap", space.name, "probe"), body, "test", dry_run=True)
        except ApiError as error:
            return "denied" in error.message
        return False

    await_true(is_asked)
    found = refused(space, made)
    assert [each.code for each in found] == ["E355"]
    assert "no cost centre" in found[0].message and 'admission webhook "costs.example.com"' in found[0].remedy


@pytest.mark.parametrize(
    ("status", "message", "causes", "code"),
    [
        (403, 'configmaps is forbidden: User "ada" cannot create resource "configmaps" in API group ""', (), "E344"),
        (403, "made to fail", (), "E344"),
        (
            403,
            'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1',
            (),
            "E354",
        ),
        (403, 'pods "x" is forbidden: failed quota: q: must specify limits.memory', (), "E354"),
        (400, 'admission webhook "a.b" denied the request: no', (), "E355"),
        (403, 'admission webhook "a.b" denied the request: no', (), "E355"),
        (422, "x is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", (), "E355"),
        (403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot', (), "E355"),
        (403, 'pods "x" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi', (), "E355"),
        (403, "forbidden: unable to create new content in namespace t", ("NamespaceTerminating",), "E345"),
        (422, "spec.x: invalid", (), "E351"),
    ],
)
def test_a_refusal_is_reported_as_what_it_is(status, message, causes, code):
    found = problem(ApiError(status, message, None, causes), "cluster.namespace", value="t")
    assert found.code == code and found.message == message
    assert ("Role" in (found.remedy or "")) is (code == "E344")
