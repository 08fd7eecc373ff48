"""The script that starts one node of a Ray cluster inside a job, and on the first node the program."""

from launcher.common.templating import render_template

PATIENCE_S = 900
"""Seconds for which a Ray cluster's nodes wait for each other: they start their containers first. Our own choice."""


def render(job_name: str, devices: int, python: str) -> str:
    """Return the script for every node of a job.

    Args:
        job_name: Of the job.
        devices: Accelerators of each node.
        python: The Python that Ray is installed for, as a word for bash.
    """
    return render_template("ray/node.sh.j2", job_name=job_name, devices=devices, python=python, patience_s=PATIENCE_S)
