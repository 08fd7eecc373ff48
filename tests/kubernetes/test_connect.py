"""Ways into a cluster: an exec plugin's token, a pod's own account, and kubeconfigs of every shape."""

import json
import os
import stat
import time
from datetime import timedelta

import kube_api
import pytest
from kubernetes.config import incluster_config

from launcher.backends.kubernetes.api_objects import path
from launcher.backends.kubernetes.connection import ApiError, connect
from launcher.common.problems import ProblemsFound

pytest_plugins = ("cluster_fixtures",)


@pytest.fixture
def configured(space, monkeypatch):
    """Return a function that changes the test's kubeconfig."""
    place = space.folder / "kubeconfig.json"

    def change(user=None, **changes):
        config = json.loads(place.read_text()) | changes
        if user is not None:
            config["users"] = [{"name": "u", "user": user}]
        place.write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(place))

    return change


def plugin(folder, *tokens, expires_in_s=3600.0):
    """Return a user whose exec plugin gives one token after another, each for a while."""
    words = [{"token": token, "expirationTimestamp": stamp(expires_in_s)} for token in tokens]
    answers = [
        json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": each})
        for each in words
    ]
    for number, answer in enumerate(answers):
        (folder / f"answer-{number}").write_text(answer)
    script = folder / "plugin"
    last = len(tokens) - 1
    script.write_text(
        f'#!/bin/sh\ncd "{folder}"\necho x >> calls\nn=$(($(wc -l < calls) - 1))\n'
        f"[ $n -gt {last} ] && n={last}\ncat answer-$n\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": str(script),
            "args": ["get-token"],
            "interactiveMode": "Never",
        }
    }


def stamp(in_s):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + in_s))


def refusal(context=None):
    with pytest.raises(ProblemsFound) as caught:
        connect(context)
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("E341", "cluster.kube_context")
    return problem


def test_an_exec_plugin_s_token_opens_the_cluster(space, configured):
    configured(plugin(space.folder, kube_api.ADMIN_TOKEN))
    where = path("Namespace", "", space.name)
    connection = connect(None)
    assert [connection.get(where)["metadata"]["name"] for _ in range(3)] == [space.name] * 3
    assert (space.folder / "calls").read_text().count("x") == 1


def test_a_token_that_has_expired_is_asked_for_anew_in_mid_course(space, configured):
    configured(plugin(space.folder, "no-token-of-anybody", kube_api.ADMIN_TOKEN, expires_in_s=-1.0))
    connection = connect(None)
    assert connection.get(path("Namespace", "", space.name))["metadata"]["name"] == space.name
    assert (space.folder / "calls").read_text().count("x") >= 2


@pytest.mark.parametrize(
    ("command", "words"),
    [("/nowhere/aws", "No such file"), ("false", "exec: process returned 1"), ("echo", "exec:")],
    ids=["absent", "fails", "no-answer"],
)
def test_an_exec_plugin_that_gives_no_token_is_told(configured, command, words):
    api = "client.authentication.k8s.io/v1"
    configured({"exec": {"apiVersion": api, "command": command, "interactiveMode": "Never"}})
    assert words in refusal().message


def test_a_kubeconfig_without_a_current_context_serves_who_names_one(space, configured):
    for current in (None, ""):
        configured(**{"current-context": current})
        assert connect("test").get(path("Namespace", "", space.name))
        problem = refusal()
        assert problem.message == "the kubeconfig has no current context" and problem.allowed == "test"


@pytest.mark.parametrize(
    "text",
    ["[1, 2]", "{a: ", "contexts: 3", "contexts: [{name: a}]", "users: [{user: {token: T}}]", ""],
    ids=["list", "no-yaml", "no-contexts", "no-context", "no-name", "empty"],
)
def test_a_file_that_is_no_kubeconfig_is_told(space, monkeypatch, text):
    place = space.folder / "broken"
    place.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(place))
    refusal()


def test_certificate_data_that_is_none_is_told(configured):
    configured({"client-certificate-data": "%%%", "client-key-data": "a"})
    refusal()


@pytest.fixture
def in_pod(space, monkeypatch):
    """Stand where a pod stands: a service account's own token, the cluster's authority, no kubeconfig."""
    account = path("ServiceAccount", space.name, "launcher")
    space.make("ServiceAccount", "launcher")
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    (space.folder / "token").write_text(space.admin.ask(f"{account}/token", request)["status"]["token"])
    host, _, port = space.cluster.engine.url.removeprefix("https://").partition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setenv("KUBECONFIG", os.fspath(space.folder / "absent"))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", os.fspath(space.folder / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", os.fspath(space.cluster.engine.ca_file))
    return space


def test_a_pod_s_own_account_opens_its_cluster(in_pod):
    connection = connect(None)
    with pytest.raises(ApiError, match=f"system:serviceaccount:{in_pod.name}:launcher.*cannot list") as caught:
        connection.get(path("ConfigMap", in_pod.name))
    assert connection.context is None and caught.value.status == 403


def test_a_pod_reads_its_token_again_when_that_was_renewed(in_pod, monkeypatch):
    place = in_pod.folder / "token"
    right = place.read_text()
    place.write_text("an-old-one")
    monkeypatch.setattr(incluster_config.InClusterConfigLoader, "_read_token_file", read_for(0.0))
    connection = connect(None)
    place.write_text(right)
    with pytest.raises(ApiError) as caught:
        connection.get(path("ConfigMap", in_pod.name))
    assert caught.value.status == 403


def read_for(period_s):
    """Return the client's reading of a token that is good for so long, instead of a minute."""
    read = incluster_config.InClusterConfigLoader._read_token_file

    def shortly(loader):
        loader._token_refresh_period = timedelta(seconds=period_s)
        return read(loader)

    return shortly


def test_a_context_that_is_named_goes_before_the_pod_s_account(in_pod):
    assert refusal("prod").message.startswith("cannot be used: no kubeconfig exists")
