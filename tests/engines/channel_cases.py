"""Channels for tests: data in a store of either kind, and a host to provide it on."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.backends.sagemaker_local.channels import Place
from launcher.backends.sagemaker_local.objects import Stores


@dataclass(frozen=True)
class Data:
    """Where a test's objects are: `base` is their URI's beginning, without a slash at its end."""

    base: str
    stores: Stores
    folder: Path

    @staticmethod
    def of(request: pytest.FixtureRequest, folder: Path) -> "Data":
        """Return the objects of a test below a folder, or in a bucket if the parameter of its fixture is s3."""
        if request.param == "file":
            return Data(f"file://{folder}/store", Stores(), folder)
        bucket = request.getfixturevalue("bucket")
        return Data(f"s3://{bucket.name}/store", Stores(endpoint=bucket.endpoint), folder)

    def put(self, key: str, data: bytes) -> str:
        """Make an object; return its URI."""
        source = self.folder / "source"
        source.write_bytes(data)
        self.stores.put(source, f"{self.base}/{key}")
        return f"{self.base}/{key}"


def channel(uri: str, mode: str | None = None, *, name: str = "train", kind: str = "S3Prefix", **more) -> dict:
    """Return a channel as a request has it; `shared` gives each host its part."""
    is_shared, attributes = more.pop("shared", False), more.pop("attributes", None)
    source = {"S3DataType": kind, "S3Uri": uri}
    source["S3DataDistributionType"] = "ShardedByS3Key" if is_shared else "FullyReplicated"
    if attributes:
        source["AttributeNames"] = attributes
    made = {"ChannelName": name, "DataSource": {"S3DataSource": source}, **more}
    return made | ({"InputMode": mode} if mode else {})


def file_system(mode: str | None = None, access: str = "ro", path: str = "/data") -> dict:
    """Return a channel of a file system."""
    source = {
        "FileSystemId": "fs-0123456789abcdef0",
        "FileSystemType": "EFS",
        "DirectoryPath": path,
        "FileSystemAccessMode": access,
    }
    made = {"ChannelName": "shared", "DataSource": {"FileSystemDataSource": source}}
    return made | ({"InputMode": mode} if mode else {})


def place(folder: Path, index: int = 0, count: int = 1, **more) -> Place:
    """Return a host of several."""
    hosts = tuple(sorted(f"algo-{number + 1}" for number in range(count)))
    return Place(folder / hosts[index] / "data", hosts[index], hosts, **more)


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
