"""How a pod ends: the time it has for a last checkpoint, and the start script that hands SIGTERM on.

Source: Kubernetes, Pod Lifecycle: Termination of Pods; kill(2), Notes.
"""

from collections.abc import Sequence

from launcher.families import interface
from launcher.render import render_template
from launcher.specs import JobSpec

SCRIPT = "start.sh"
"""Name of the start script in a job's ConfigMap."""

MARGIN_S = 60
"""Seconds a pod has beyond its workers' time to save.

The agent needs them: it notices the request, kills workers that did not save, which it waits up to 15 s for, and
closes its server, 1 s. Source: hyperpod_elastic_agent 1.1.3, pcontext. The rest is for a busy node; our own choice.
"""

_AGENT_PORT = 8080
"""Source: HyperPod training operator: the agent's port."""


def grace_period_s(job: JobSpec) -> int:
    """Return the pods' terminationGracePeriodSeconds: their workers' time to save, and the margin."""
    return job.save_timeout_s + MARGIN_S


def started(words: Sequence[str], mount: str) -> list[str]:
    """Return the command that runs `words` below the start script, which is mounted in the folder `mount`."""
    return ["/bin/bash", f"{mount}/{SCRIPT}", *words]


def start_script(job: JobSpec, *, has_agent: bool, is_image_command: bool) -> str:
    """Return the start script of a job's pods.

    Args:
        job: The planned job.
        has_agent: Whether its command starts the elastic agent.
        is_image_command: Whether it starts the command of the family's published image.
    """
    return render_template(
        "kubernetes/start.sh.j2",
        stops_agent=has_agent and job.elastic is not None and job.elastic.use_graceful_shutdown,
        save_timeout_s=job.save_timeout_s,
        port=_AGENT_PORT,
        log=interface(job.model_type).image_log if is_image_command else None,
    )
