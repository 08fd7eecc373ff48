"""Fixtures of tests against the API server; a test module names this one in `pytest_plugins`."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import definitions
import fault_proxy
import kube_api
import kubelet as kubelets
import pytest
from background import await_true

from launcher import pipeline
from launcher.backends.kubernetes import connection
from launcher.backends.kubernetes.api_objects import path, pod_templates
from launcher.backends.kubernetes.connection import ApiError, Connection, connect
from launcher.bundle import store as bundles
from launcher.model.context import LaunchContext
from launcher.model.job_spec import Bundle

PATIENCE_S = 3.0
RECIPE = "fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_numbers = itertools.count()
_engines = ExitStack()
"""The API server of this process, while it runs."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The API server, its proxy and the kubelets' stand-in."""

    engine: kube_api.Engine
    proxy: fault_proxy.Proxy
    kubelet: kubelets.Kubelet
    admin: Connection
    folder: Path


ADMIN_CONFIG = "admin.json"
"""The kubeconfig of who may do everything, in the cluster's folder."""


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Run an API server with the CRDs until the block ends."""
    with (
        kube_api.running(folder, {kube_api.USER_TOKEN: "ada", kube_api.CANARY: "canary"}) as engine,
        fault_proxy.running(engine.url, engine.authority) as proxy,
        kubelets.running(engine.authority) as kubelet,
    ):
        config = kube_api.kubeconfig(folder / ADMIN_CONFIG, engine.url, engine.ca_file, kube_api.ADMIN_TOKEN)
        with pytest.MonkeyPatch.context() as patch:  # other tests of this process have no cluster
            patch.setenv("KUBECONFIG", str(config))
            admin = connect(None)
        _install(admin, kubelet)
        with pytest.MonkeyPatch.context() as patch:
            # A 404 of this server is right, unless a test lets its proxy give one.
            patch.setattr(connection, "_SECOND_LOOK_S", 0.02)
            yield Cluster(engine, proxy, kubelet, admin, folder)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real API server with the CRDs; nothing runs jobs, so tests do what operators and kubelets would."""
    if kube_api.binary() is None:
        pytest.skip(f"no kube-apiserver: run {kube_api.INSTALL}")
    with _engines:
        yield _engines.enter_context(running(tmp_path_factory.mktemp("cluster")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End the API server after the last of its tests, which run in a row: it takes processor time while it waits."""
    yield
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _engines.close()


def _install(admin: Connection, kubelet: kubelets.Kubelet) -> None:
    for crd in (definitions.training_job(admin.get("/openapi/v2")["definitions"]), *definitions.kueue()):
        admin.apply(f"{_CRDS}/{crd['metadata']['name']}", crd, "test")
    await_true(lambda: _serves(admin, "sagemaker.amazonaws.com/v1") and _serves(admin, "kueue.x-k8s.io/v1beta1"))
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}
    admin.apply("/api/v1/nodes/node-1", node, "test")
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
    }
    admin.merge("/api/v1/nodes/node-1/status", {"status": status}, "test")


def _serves(admin: Connection, version: str) -> bool:
    try:
        return bool(admin.get(f"/apis/{version}")["resources"])
    except ApiError:
        return False


@dataclass(frozen=True, slots=True)
class Space:
    """A namespace of one test, and who acts in it."""

    name: str
    cluster: Cluster
    folder: Path
    lines: list[str] = field(default_factory=list)

    @property
    def admin(self) -> Connection:
        return self.cluster.admin

    def connection(self, token: str = kube_api.ADMIN_TOKEN, *, patience_s: float = PATIENCE_S) -> Connection:
        """Return a connection through the proxy, in the launcher's own way."""
        self.kubeconfig(token)
        return replace(connect(None), patience_s=patience_s)

    def kubeconfig(self, token: str = kube_api.ADMIN_TOKEN) -> Path:
        proxy = self.cluster.proxy
        return kube_api.kubeconfig(self.folder / "kubeconfig.json", proxy.url, proxy.ca_file, token)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        try:
            return self.admin.get(path(kind, self.name, name))
        except ApiError as error:
            assert error.status == 404, error
            return None

    def make(self, kind: str, name: str, api: str = "v1", **body: Any) -> dict[str, Any]:
        """Make an object, in this namespace where its kind has one."""
        metadata = {"name": name, **body.pop("metadata", {})}
        whole = {"apiVersion": api, "kind": kind, "metadata": metadata, **body}
        return self.admin.apply(path(kind, self.name, name), whole, "test")

    def names(self, kind: str) -> list[str]:
        return sorted(item["metadata"]["name"] for item in self.admin.get(path(kind, self.name))["items"])

    def install(self, crd: dict[str, Any]) -> None:
        """Install a CRD, and wait until its objects are served, and its kind is listed, which may be later."""
        self.admin.apply(f"{_CRDS}/{crd['metadata']['name']}", crd, "test")
        kind = crd["spec"]["names"]["kind"]
        version = f"/apis/{crd['spec']['group']}/{crd['spec']['versions'][0]['name']}"

        def serves() -> bool:
            try:
                self.admin.get(path(kind, self.name))
                return kind in (each["kind"] for each in self.admin.get(version)["resources"])
            except ApiError as error:
                assert error.status == 404
                return False

        await_true(serves)

    def set_status(self, kind: str, name: str, status: dict[str, Any]) -> None:
        self.admin.merge(f"{path(kind, self.name, name)}/status", {"status": status}, "operator")

    def conditions(self, name: str, *types: str, **status: Any) -> None:
        """Write a job's status as the operator does: these conditions hold, in this order."""
        held = [{"type": each, "status": "True", "reason": f"Job{each}", "message": f"is {each}"} for each in types]
        self.set_status("HyperPodPyTorchJob", name, {"conditions": held, **status})

    def hold(self, job: dict[str, Any]) -> dict[str, Any]:
        """Make the StatefulSet that holds a job's pods, and name it in the job's status, as the operator does."""
        name, template = f"{job['metadata']['name']}-pods", pod_templates(job)[0]
        labels = template["metadata"]["labels"]
        containers = [{"name": "pytorch", "image": "me/image:1"}]
        body = {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": name, "ownerReferences": [reference(job)]},
            "spec": {
                "serviceName": name,
                "selector": {"matchLabels": {"set": name}},
                "template": {"metadata": {"labels": {**labels, "set": name}}, "spec": {"containers": containers}},
            },
        }
        held = self.admin.apply(f"/apis/apps/v1/namespaces/{self.name}/statefulsets/{name}", body, "operator")
        named = {**reference(held), "namespace": self.name}
        self.set_status(job["kind"], job["metadata"]["name"], {"jobPods": [named]})
        return held

    def pod(self, job: dict[str, Any], index: int = 0, *, suffix: str = "") -> str:
        """Make a pod of a job as its StatefulSet does, on the stand-in's node; return its name."""
        held = self.hold(job)
        name = f"{held['metadata']['name']}-{index}{suffix}"
        metadata = {"labels": pod_templates(job)[0]["metadata"]["labels"], "ownerReferences": [reference(held)]}
        container = {"name": "pytorch", "image": "me/image:1"}
        self.make("Pod", name, metadata=metadata, spec={"containers": [container], "nodeName": "node-1"})
        return name

    def run_container(self, pod: str, restarts: int = 0) -> None:
        """Start the container of a pod, as the kubelet does."""
        self.cluster.kubelet.start(pod)
        self._container(pod, {"running": {"startedAt": "2026-01-02T03:04:05Z"}}, restarts, "Running")

    def end_container(self, pod: str, restarts: int = 0, exit_code: int = 0, **terminated: str) -> None:
        """End the container of a pod: first its log, then its status."""
        self.cluster.kubelet.end(pod)
        phase = "Failed" if exit_code else "Succeeded"
        self._container(pod, {"terminated": {"exitCode": exit_code, **terminated}}, restarts, phase)

    def wait_container(
        self, pod: str, reason: str, message: str = "", restarts: int = 0, last: dict[str, Any] | None = None
    ) -> None:
        phase = "Running" if last else "Pending"
        self._container(pod, {"waiting": {"reason": reason, "message": message}}, restarts, phase, last)

    def _container(
        self, pod: str, state: dict[str, Any], restarts: int, phase: str, last: dict[str, Any] | None = None
    ) -> None:
        container = {
            "name": "pytorch",
            "image": "me/image:1",
            "imageID": "",
            "ready": "running" in state,
            "restartCount": restarts,
            "containerID": f"containerd://{pod}-{restarts}",
            "state": state,
            "lastState": {"terminated": last} if last else {},
        }
        self.set_status("Pod", pod, {"phase": phase, "containerStatuses": [container]})


def reference(owner: dict[str, Any]) -> dict[str, Any]:
    """Return a reference to an object, as its dependents have it."""
    own = {key: owner[key] for key in ("apiVersion", "kind")}
    return own | {key: owner["metadata"][key] for key in ("name", "uid")}


def _space(cluster: Cluster, folder: Path, patch: pytest.MonkeyPatch) -> Space:
    name = f"t{next(_numbers)}"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    cluster.admin.apply(path("Namespace", "", name), namespace, "test")
    cluster.proxy.faults.clear()
    cluster.proxy.seen.clear()
    here = Space(name, cluster, folder)
    patch.setenv("KUBECONFIG", str(here.kubeconfig()))
    patch.setattr("launcher.backends.kubernetes.connection._FIRST_PAUSE_S", 0.02)
    return here


@pytest.fixture
def space(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    """A namespace of its own; KUBECONFIG leads through the proxy, which has no fault to begin with."""
    yield _space(cluster, tmp_path, monkeypatch)
    cluster.proxy.faults.clear()


@pytest.fixture(scope="module")
def shared_space(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Space]:
    """A namespace for all tests of a module."""
    with pytest.MonkeyPatch.context() as patch:
        yield _space(cluster, tmp_path_factory.mktemp("space"), patch)


@pytest.fixture
def bundle(space: Space):
    """Return a function from overrides to an elastic job's bundle on disk, in the test's namespace."""

    def made(*overrides: str, suffix: str = "x068q", is_elastic: bool = True) -> Bundle:
        context = LaunchContext(space.folder, suffix, "2026-01-02T03:04:05+00:00", "ada", lambda: None, {})
        words = [f"recipes={RECIPE}", "cluster=k8s", f"cluster.namespace={space.name}"]
        words += [f"recipes.elastic_policy.is_elastic={str(is_elastic).lower()}", *overrides]
        whole = pipeline.render(pipeline.prepare(words, context), context)
        if not whole.directory.exists():
            bundles.write(whole)
        return whole

    return made
