"""The suite that every backend passes, against a real API server; a thread does what operator and kubelets would."""

import threading

import pytest
from job_suite import *  # noqa: F403  # with this module's stage
from job_suite import NODES, write_bundle
from job_suite import test_a_job_is_scaled_within_its_plan_only as test_a_job_is_scaled_within_its_plan_only

from launcher.backends.kubernetes.api_objects import path
from launcher.backends.kubernetes.backend import KubernetesBackend
from launcher.model.job_spec import JobState

pytest_plugins = ("cluster_fixtures",)

JOB = "HyperPodPyTorchJob"


class ClusterStage:
    """Jobs of a namespace, whose pods come and go as the operator would have it."""

    def __init__(self, space):
        self._space = space
        self._stop = threading.Event()
        self._pods = {}
        self._thread = threading.Thread(target=self._operate, daemon=True)
        self._thread.start()

    def close(self):
        self._stop.set()
        self._thread.join(10)

    def backend(self):
        return KubernetesBackend()

    def bundle(self, name):
        words = (f"cluster.namespace={self._space.name}", "container=me/image:1", "cluster.command=[train]")
        return write_bundle(self._space.folder, name, "k8s", *words, "instance_type=ml.m5.2xlarge")

    def say(self, handle, rank, line):
        self._space.cluster.kubelet.write(f"{handle.native_id}-pods-{rank}", line)

    def end(self, handle, state):
        code = 0 if state is JobState.SUCCEEDED else 3
        for rank in range(NODES):
            self._space.end_container(f"{handle.native_id}-pods-{rank}", exit_code=code)
        self._tell(self._space.get(JOB, handle.native_id), "Ended")
        self._space.conditions(handle.native_id, "Completed" if state is JobState.SUCCEEDED else "Failed")

    def _operate(self):
        while not self._stop.wait(0.05):
            jobs = {
                job["metadata"]["name"]: job for job in self._space.admin.get(path(JOB, self._space.name))["items"]
            }
            for name, job in jobs.items():
                if name not in self._pods:
                    self._start(name, job)
            for name in [name for name in self._pods if name not in jobs]:
                for pod in self._pods.pop(name):
                    there = self._space.get("Pod", pod)
                    self._space.end_container(pod, exit_code=143)  # without a kubelet a pod that runs stays for ever
                    self._space.admin.delete(path("Pod", self._space.name, pod), there["metadata"]["uid"])

    def _start(self, name, job):
        self._tell(job, "Created")
        self._pods[name] = [self._space.pod(job, index) for index in range(NODES)]
        for pod in self._pods[name]:
            self._space.run_container(pod)
        self._space.conditions(name, "Created", "PodsRunning", "Running")

    def _tell(self, job, reason):
        metadata = job["metadata"]
        about = {"kind": JOB, "name": metadata["name"], "uid": metadata["uid"], "namespace": self._space.name}
        name, stamp = f"{metadata['name']}.{reason.lower()}", "2026-01-02T03:04:05Z"
        more = {"reason": reason, "message": f"the job is {reason}", "type": "Normal", "lastTimestamp": stamp}
        self._space.make("Event", name, involvedObject=about, **more)


@pytest.fixture(scope="module")
def stage(shared_space):
    stage = ClusterStage(shared_space)
    yield stage
    stage.close()
