"""Variables of a host's program: those of the job, and those that the toolkit would derive from its files.

Source: sagemaker-training toolkit 5.1.4, environment.py and mapping.py.
"""

import json
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import launcher
from launcher.backends.contract.optml import INTERFACE, Host, resource_config
from launcher.contract import ENV_MASTER_ADDR, ENV_RUN_DIR

_HOME = Path(launcher.__file__).resolve().parent.parent

_KEPT = ("HOME", "LANG", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHONPATH", "TERM", "TMPDIR", "TZ", "USER")
_KEPT_PREFIXES = ("AWS_", "LC_")
"""What of this machine's own variables a program gets: where things are, and who it is for AWS, as by its role."""

RECIPE_DIR, START = "/opt/ml/input/data/recipe", "start.sh"
"""Where the recipe's channel is, and what starts the launcher's own program there."""

_OWN_PREFIX = "sagemaker_"
"""Hyperparameters that begin so are the toolkit's, not the program's."""


def launcher_path() -> dict[str, str]:
    """Return this process's variables with which a child finds this Python's programs, and this launcher."""
    home = str(_HOME)
    programs = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    found = {**os.environ, "PATH": os.pathsep.join(programs)}
    # PYTHONPATH comes before the standard library: an installed launcher must not put its neighbours there.
    if home not in sysconfig.get_paths().values():
        inherited = os.environ.get("PYTHONPATH")
        found["PYTHONPATH"] = f"{home}{os.pathsep}{inherited}" if inherited else home
    return found


def of_job(
    request: Mapping[str, Any], arn: str, region: str, endpoint: str | None, hosts: Sequence[Host], host: Host
) -> dict[str, str]:
    """Return the whole environment of a host's program.

    Args:
        request: The job's.
        arn: The job's.
        region: The job's.
        endpoint: Where S3 answers; None is AWS.
        hosts: All of the job's.
        host: The program's.
    """
    own = {n: v for n, v in os.environ.items() if n in _KEPT or n.startswith(_KEPT_PREFIXES)}
    entry = request["AlgorithmSpecification"].get("ContainerEntrypoint") or ()
    if f"{RECIPE_DIR}/{START}" not in entry:
        # Only the launcher's own program finds the launcher in a checkout; to any other it is not there.
        paths = [path for path in own.pop("PYTHONPATH", "").split(os.pathsep) if path and path != str(_HOME)]
        own |= {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}
    found = own | {"AWS_REGION": region, "AWS_DEFAULT_REGION": region}
    found |= {"AWS_ENDPOINT_URL_S3": endpoint} if endpoint else {}
    found |= {"TRAINING_JOB_NAME": request["TrainingJobName"], "TRAINING_JOB_ARN": arn}
    if not host.is_private:
        found |= toolkit(request, hosts, host) | {"SAGEMAKER_BASE_DIR": host.base}
        found |= {ENV_RUN_DIR: f"{host.base}/output/data", ENV_MASTER_ADDR: "127.0.0.1"}
    return found | {name: host.mapped(value) for name, value in (request.get("Environment") or {}).items()}


def decoded(request: Mapping[str, Any], host: Host) -> dict[str, Any]:
    """Return the hyperparameters of the program itself, each read as JSON where it is."""
    found = {}
    for name, text in (request.get("HyperParameters") or {}).items():
        if not name.startswith(_OWN_PREFIX):
            found[name] = _read(host.mapped(text))
    return found


def toolkit(request: Mapping[str, Any], hosts: Sequence[Host], host: Host) -> dict[str, str]:
    """Return the SM_* variables."""
    resources = resource_config(host, hosts)
    channels = sorted(channel["ChannelName"] for channel in request.get("InputDataConfig") or ())
    values = decoded(request, host)
    group = [each.name for each in hosts if each.group == host.group]
    named = {
        "HOSTS": resources["hosts"],
        "CURRENT_HOST": host.name,
        "CURRENT_INSTANCE_TYPE": host.instance_type,
        "CURRENT_INSTANCE_GROUP": host.group,
        "CURRENT_INSTANCE_GROUP_HOSTS": group,
        "INSTANCE_GROUPS": [each["instance_group_name"] for each in resources["instance_groups"]],
        "NETWORK_INTERFACE_NAME": INTERFACE,
        "RESOURCE_CONFIG": resources,
        "CHANNELS": channels,
        "HPS": values,
        "NUM_CPUS": os.cpu_count() or 1,
        "NUM_GPUS": 0,
        "MODEL_DIR": f"{host.base}/model",
        "INPUT_DIR": f"{host.base}/input",
        "INPUT_CONFIG_DIR": f"{host.base}/input/config",
        "OUTPUT_DIR": f"{host.base}/output",
        "OUTPUT_DATA_DIR": f"{host.base}/output/data",
        "OUTPUT_INTERMEDIATE_DIR": f"{host.base}/output/intermediate",
        **{f"CHANNEL_{name.upper()}": f"{host.base}/input/data/{name}" for name in channels},
        **{f"HP_{name.upper()}": value for name, value in values.items()},
    }
    return {f"SM_{name}": _text(value) for name, value in named.items()}


def _text(value: Any) -> str:
    """Return a value as the toolkit writes it: texts as they are, all else as compact, sorted JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
