"""The `cluster` section of cluster=sm_local: a training job's keys, and the locations of its stores."""

from typing import Annotated, Literal

from launcher.backends.sagemaker import training_options
from launcher.model.base_model import TextForm, default

_NAME = "[A-Za-z0-9](-*[A-Za-z0-9])*"
_URL = rf"^https?://({_NAME}(\.{_NAME})*|\[[0-9A-Fa-f:]+\])(:[0-9]{{1,5}})?(/|$)"
"""A URL without a user. Source: RFC 1123, 2.1, which botocore holds names to: no underscore."""

_Endpoint = Annotated[str, TextForm(pattern=_URL, words="a URL such as http://127.0.0.1:9000")]
_ID = r"^fs-[0-9a-f]{8,}(/.*)?$"
_FileSystem = Annotated[str, TextForm(pattern=_ID, words="a file system's id such as fs-0123abcd, or fs-…/folder")]
_Absolute = Annotated[str, TextForm(pattern="^/", words="an absolute path")]


class Settings(training_options.Settings):
    """Every key of cluster=sm_local; output_path, inputs and checkpoints may also be file:///folder."""

    contract: Literal["sagemaker"] = default("sagemaker")
    """The container contract that the job runs under."""
    s3_endpoint: _Endpoint | None = default(None)
    """Endpoint of S3, such as http://127.0.0.1:9000; AWS when null."""
    file_systems: dict[_FileSystem, _Absolute] | None = default(None)
    """{fs-…: folder of this machine that replaces that file system}; fs-…/folder names a part of one."""
    command: None = default(None)
    """Arguments of the agent, which training jobs do not have: see sm_jobs_config.container_entrypoint."""
