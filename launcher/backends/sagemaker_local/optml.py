"""A host's /opt/ml: its folders, its configuration files, and the real paths behind words that name it.

Source: Amazon SageMaker, How Amazon SageMaker Provides Training Information; sagemaker-training toolkit 5.1.4,
environment.py, for the newer keys of resourceconfig.json.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.model.parallelism.ranks import host_names

OPT_ML = "/opt/ml"
INTERFACE = "lo"
"""Network interface of every host: all share this machine's loopback."""

_HOMOGENEOUS = "homogeneousCluster"
"""Instance group of a job without groups."""

_FOLDERS = ("input/config", "input/data", "model", "output/data", "checkpoints", "code")
_MOST_LINKS = 40
"""Source: path_resolution(7): a longer chain of links is an error."""
_NAMED = re.compile(r"(?<![\w.-])/opt/ml(?![\w.-])")


@dataclass(frozen=True, slots=True)
class Host:
    """A host of a job.

    Args:
        name: Its name, such as algo-1.
        instance_type: With its `ml.` prefix.
        folder: Its folder on this machine: holds ml, its /opt/ml, and hosts, its /etc/hosts.
        is_private: Whether its program sees that as /opt/ml.
    """

    name: str
    group: str
    instance_type: str
    folder: Path
    is_private: bool

    @property
    def root(self) -> Path:
        """Its /opt/ml on this machine."""
        return self.folder / "ml"

    @property
    def data_dir(self) -> Path:
        """Parent of its channels."""
        return self.root / "input" / "data"

    @property
    def base(self) -> str:
        """Its /opt/ml as its program sees it."""
        return OPT_ML if self.is_private else str(self.root)

    def real(self, path: str) -> Path:
        """Return the path on this machine of a path below /opt/ml."""
        return self.root / path.removeprefix(OPT_ML).strip("/")

    def led(self, path: Path) -> Path:
        """Return the target of a path below the host's folder, with links resolved as its program would."""
        for _ in range(_MOST_LINKS):
            if not path.is_symlink():
                break
            target = os.readlink(path)
            is_below = self.is_private and target.startswith(f"{OPT_ML}/")
            path = self.real(target) if is_below else path.parent / target
        return path

    def mapped(self, word: str) -> str:
        """Return a word in the form for the host's program."""
        return word if self.is_private else _NAMED.sub(lambda _: self.base, word)


def hosts(resources: Mapping[str, Any], folder: Path, *, is_private: bool) -> tuple[Host, ...]:
    """Return the hosts of a ResourceConfig, sorted as strings; groups get them by number, in the request's order."""
    groups = resources.get("InstanceGroups") or [{"InstanceGroupName": _HOMOGENEOUS, **resources}]
    owners = [group for group in groups for _ in range(group["InstanceCount"])]
    found = []
    for name in host_names(len(owners)):
        group = owners[_number(name) - 1]
        found.append(
            Host(name, group["InstanceGroupName"], group["InstanceType"], folder / name, is_private=is_private)
        )
    return tuple(found)


def _number(host: str) -> int:
    return int(host.rpartition("-")[2])


def lay_out(host: Host, peers: Sequence[Host], request: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """Create a host's folders and configuration files; `inputs` is inputdataconfig.json."""
    for name in _FOLDERS:
        (host.root / name).mkdir(parents=True, exist_ok=True)
    files = {
        "hyperparameters": {k: host.mapped(v) for k, v in (request.get("HyperParameters") or {}).items()},
        "inputdataconfig": inputs,
        "resourceconfig": resource_config(host, peers),
    }
    for name, content in files.items():
        (host.root / "input/config" / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    # Each host has its own address, and all are this machine. Source: RFC 6890, 127.0.0.0/8 is the loopback.
    numbers = {each.name: _number(each.name) for each in peers}
    lines = [f"127.1.{number >> 8}.{number & 255} {name}\n" for name, number in numbers.items()]
    text = "".join(("127.0.0.1 localhost\n", "::1 localhost\n", *lines))
    (host.folder / "hosts").write_text(text, encoding="utf-8")


def resource_config(host: Host, peers: Sequence[Host]) -> dict[str, Any]:
    """Return resourceconfig.json of a host."""
    groups: dict[str, dict[str, Any]] = {}
    for each in peers:
        group = {"instance_group_name": each.group, "instance_type": each.instance_type, "hosts": []}
        groups.setdefault(each.group, group)["hosts"].append(each.name)
    return {
        "current_host": host.name,
        "current_instance_type": host.instance_type,
        "current_group_name": host.group,
        "hosts": [each.name for each in peers],
        "instance_groups": list(groups.values()),
        "network_interface_name": INTERFACE,
    }
