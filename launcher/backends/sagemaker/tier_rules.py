"""Training jobs of SageMaker: which folders of the container are kept, for checkpoints that go to a folder."""

import posixpath
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from launcher.backends.sagemaker import default_values
from launcher.backends.sagemaker.keys import API, JOBS, jobs_of, sm_rule
from launcher.common.problems import Problem
from launcher.model.checked_recipe import CheckedRecipe

_PATH = "recipes.checkpointing.persistent.path"
_DATA = "/opt/ml/input/data"
"""Source: Amazon SageMaker API, Channel: ChannelName."""


@sm_rule("E265", "checkpoints", "inputs", more=("recipes.checkpointing",), source=f"{API}: CheckpointConfig, Channel")
def path_outlives_the_container(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Files that a container writes outside the folders that the service keeps are lost with it."""
    section = checked.recipe.checkpointing
    path = section.persistent.path if section and section.persistent else ""
    if not path.startswith("/"):
        return
    jobs = jobs_of(checked)
    places = [jobs.checkpoints.local_path or default_values.CHECKPOINTS] if jobs.checkpoints.s3_uri else []
    places += [
        f"{_DATA}/{channel.name}"
        for channel in default_values.channels(jobs)
        if channel.source.get("FileSystemDataSource", {}).get("FileSystemAccessMode") == "rw"
    ]
    real = PurePosixPath(posixpath.normpath(path))
    if not any(real.is_relative_to(place) for place in places):
        yield problem(
            _PATH,
            "is not in a folder of the container that is kept: checkpoints would be lost with it",
            value=path,
            allowed=", ".join(f"{place}/…" for place in places) or "s3://bucket/prefix",
            remedy=f"{JOBS}.checkpoints.s3_uri=s3://<bucket>/<folder> {_PATH}={default_values.CHECKPOINTS}",
        )
