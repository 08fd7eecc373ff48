"""Termination of a pod: the grace period for a last checkpoint, and the start script that forwards SIGTERM.

Source: Kubernetes, Pod Lifecycle: Termination of Pods; kill(2), Notes.
"""

from collections.abc import Sequence

from launcher.backends.kubernetes.job_options import k8s_options
from launcher.backends.kubernetes.rules.bounds import place
from launcher.bundle import container
from launcher.common.templating import render_template
from launcher.families import interface
from launcher.model.job_spec import JobSpec

SCRIPT = "start.sh"
"""Name of the start script in a job's ConfigMap."""

MARGIN_S = 60
"""Seconds that a pod has beyond its workers' time to save.

The agent needs them to notice the request, kill workers that did not save (up to 15 s) and close its server (1 s).
Source: hyperpod_elastic_agent 1.1.3, pcontext. The rest is a margin for a busy node; our own choice.
"""

_AGENT_PORT = 8080
"""Source: HyperPod training operator: the agent's port."""


def grace_period_s(job: JobSpec) -> int:
    """Return the pods' terminationGracePeriodSeconds: their workers' time to save, and the margin."""
    return job.save_timeout_s + MARGIN_S


def started(args: Sequence[str], mount: str) -> list[str]:
    """Return the command that runs `args` under the start script, which is mounted in the folder `mount`."""
    return ["/bin/bash", f"{mount}/{SCRIPT}", *args]


def start_script(job: JobSpec, *, has_agent: bool) -> str:
    """Return the start script of a job's pods.

    Args:
        job: The planned job.
        has_agent: Whether its command starts the elastic agent.
    """
    log = image_log(job)
    return render_template(
        "kubernetes/start.sh.j2",
        stops_agent=has_agent and job.elastic is not None and job.elastic.use_graceful_shutdown,
        save_timeout_s=job.save_timeout_s,
        port=_AGENT_PORT,
        log=log if log and is_mounted(job, log) else None,
    )


def image_log(job: JobSpec) -> str | None:
    """Return the file that receives the output of the published image's start command; None for other commands."""
    is_image_command = not k8s_options(job).command and not container.is_own(job)
    return interface(job.model_type, job.trainer).workers.image_log if is_image_command else None


def is_mounted(job: JobSpec, path: str) -> bool:
    """Return whether a writable volume or claim is mounted at a folder above `path`."""
    mounts = (*(k8s_options(job).volumes or ()), *(k8s_options(job).persistent_volume_claims or ()))
    above = [each for each in mounts if f"{path}/".startswith(f"{place(each.mountPath).rstrip('/')}/")]
    nearest = max(above, key=lambda each: len(place(each.mountPath)), default=None)
    return nearest is not None and not nearest.readOnly
