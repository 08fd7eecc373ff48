"""Input channels of one host: from the request's InputDataConfig to the contents of /opt/ml/input/data.

Source: How Amazon SageMaker Provides Training Information; Amazon SageMaker API 2017-07-24, Channel.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.backends.sagemaker.request import misfits
from launcher.backends.sagemaker_local import fastfile, manifests
from launcher.backends.sagemaker_local.manifests import Entry
from launcher.backends.sagemaker_local.objects import Stores
from launcher.backends.sagemaker_local.pipe import Writer
from launcher.common.problems import Problem, ProblemsFound, fail, gathering, raise_any


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a host's inputs.

    Args:
        data_dir: The host's …/input/data, by its real path outside the host's mount namespace.
        hosts: Every host of the job, sorted as strings.
        groups: Hosts of each instance group, sorted as strings; empty if there are no groups.
    """

    data_dir: Path
    host: str
    hosts: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Feed:
    """One channel on one host.

    Args:
        folder: The folder of this machine to mount as the channel; None if its content is in place.
        is_writable: Whether its program may write there: file systems with access rw.
        note: How the channel is provided if that differs from SageMaker; else "".
        server: Streams it in Pipe mode, or serves its view in FastFile mode.
    """

    name: str
    folder: Path | None = None
    is_writable: bool = False
    note: str = ""
    server: Writer | fastfile.View | None = None

    @property
    def problem(self) -> Problem | None:
        """Why it failed while the job ran, which ends the job; None if it works."""
        return self.server.problem if self.server else None

    def start(self) -> None:
        """Start the writer of Pipe mode; its first FIFO exists when this returns."""
        if isinstance(self.server, Writer):
            try:
                self.server.start()
            except OSError as error:
                raise fail("E425", self.name, f"cannot be streamed: {error}") from error

    def close(self) -> None:
        """Stop it; never blocks for long."""
        if self.server:
            self.server.close()


def prepare(channels: Sequence[Mapping[str, Any]], default_mode: str, place: Place, stores: Stores) -> list[Feed]:
    """Provide a host's channels: copy those in File mode, and return all, without those of other groups.

    Args:
        channels: InputDataConfig of the request.
        default_mode: AlgorithmSpecification.TrainingInputMode.

    Raises:
        ProblemsFound: Every fault of every channel; nothing has been started or mounted.
    """
    contents: list[_Content] = []
    problems: list[Problem] = []
    for channel in channels_of(channels, place):
        with gathering(problems):
            contents.append(_Content.of(channel, default_mode, stores))
    raise_any(problems)
    feeds: list[Feed] = []
    try:
        for content in contents:
            feeds.append(content.provided(place, stores))
    except ProblemsFound:
        for feed in feeds:
            feed.close()
        raise
    return feeds


def num_objects(channel: Mapping[str, Any], default_mode: str, stores: Stores) -> int | None:
    """Return how many objects a channel has; None for a file system. Copies nothing.

    Raises:
        ProblemsFound: Every fault of the channel.
    """
    found = _Content.of(channel, default_mode, stores)
    return None if found.folder else len(found.entries)


def channels_of(channels: Sequence[Mapping[str, Any]], place: Place) -> list[Mapping[str, Any]]:
    """Return the channels that a host gets: those for all, and for its instance group."""
    return [channel for channel in channels if place.host in _sharers(channel, place)]


def input_data_config(channels: Sequence[Mapping[str, Any]], default_mode: str) -> dict[str, dict[str, str]]:
    """Return inputdataconfig.json: each channel's description for the container.

    Source: How Amazon SageMaker Provides Training Information, Input Data Configuration.
    """
    found = {}
    for channel in channels:
        mode = channel.get("InputMode") or default_mode
        source = channel["DataSource"].get("S3DataSource", {})
        found[channel["ChannelName"]] = {
            **({"ContentType": channel["ContentType"]} if channel.get("ContentType") else {}),
            "TrainingInputMode": "File" if mode == "FastFile" else mode,
            "S3DistributionType": source.get("S3DataDistributionType") or "FullyReplicated",
            "RecordWrapperType": channel.get("RecordWrapperType") or "None",
        }
    return found


def _sharers(channel: Mapping[str, Any], place: Place) -> tuple[str, ...]:
    """Return the hosts that receive a channel."""
    names = channel["DataSource"].get("S3DataSource", {}).get("InstanceGroupNames")
    if not names or not place.groups:
        return place.hosts
    return tuple(sorted(host for name in names for host in place.groups.get(name, ())))


@dataclass(frozen=True, slots=True)
class _Content:
    """A channel with its listed content, before anything is copied.

    Args:
        entries: Its objects; empty for a file system.
        folder: Its file system's folder on this machine; None for S3.
    """

    channel: Mapping[str, Any]
    mode: str
    entries: tuple[Entry, ...] = ()
    folder: Path | None = None

    @classmethod
    def of(cls, channel: Mapping[str, Any], default_mode: str, stores: Stores) -> "_Content":
        """List a channel's content; raise everything that is wrong with it."""
        mode, source = channel.get("InputMode") or default_mode, channel["DataSource"]
        path = f"InputDataConfig.{channel['ChannelName']}"
        raise_any(
            Problem("E372", f"{path}.{key}", message, value=value, allowed=allowed)
            for key, message, value, allowed in misfits(channel, mode)
        )
        if "FileSystemDataSource" in source:
            return cls(channel, mode, folder=_folder(source["FileSystemDataSource"], path, stores))
        entries = tuple(manifests.read(source["S3DataSource"], stores))
        if mode != "Pipe":
            raise_any(manifests.path_problems(entries))
        return cls(channel, mode, entries)

    def provided(self, place: Place, stores: Stores) -> Feed:
        """Return the channel on a host."""
        name: str = self.channel["ChannelName"]
        target = place.data_dir / name
        try:
            if self.mode == "Pipe":
                place.data_dir.mkdir(parents=True, exist_ok=True)
                writer = Writer(
                    target,
                    lambda epoch: self._share(place, epoch),
                    stores,
                    is_gzip=self.channel.get("CompressionType") == "Gzip",
                    is_recordio=self.channel.get("RecordWrapperType") == "RecordIO",
                )
                return Feed(name, server=writer, note=self._thin(place))
            target.mkdir(parents=True, exist_ok=True)
            if self.folder:
                access = self.channel["DataSource"]["FileSystemDataSource"]["FileSystemAccessMode"]
                return Feed(name, self.folder, is_writable=access == "rw")
            if self.mode == "FastFile":
                return self._viewed(name, place, stores)
            stores.fetch_all((entry.objects[0], f"{target}/{entry.path}") for entry in self._share(place))
            return Feed(name, note=self._thin(place))
        except OSError as error:
            raise fail("E421", str(error.filename or place.data_dir), error.strerror or str(error)) from error

    def _viewed(self, name: str, place: Place, stores: Stores) -> Feed:
        """Return the channel in FastFile mode: a folder of this machine itself, else a view, else a copy."""
        if self._is_whole and (source := stores.folder(self.channel["DataSource"]["S3DataSource"]["S3Uri"])):
            return Feed(name, source)
        folder = place.data_dir.parent / ".fastfile" / name
        folder.mkdir(parents=True, exist_ok=True)
        entries = self._share(place)
        view, how = fastfile.mount(folder, entries, stores)
        if view is None:
            stores.fetch_all((entry.objects[0], f"{folder}/{entry.path}") for entry in entries)
        note = ", ".join(filter(None, (f"{name}: {how}", self._thin(place))))
        return Feed(name, folder, note=note, server=view)

    def _share(self, place: Place, epoch: int = 0) -> list[Entry]:
        """Return the host's part. Source: ShuffleConfig: shuffled first, then divided, in each epoch again."""
        seed = (self.channel.get("ShuffleConfig") or {}).get("Seed")
        hosts = self._dividing(place)
        return manifests.share(self.entries, hosts.index(place.host), len(hosts), seed, epoch)

    def _thin(self, place: Place) -> str:
        """Return a warning if hosts get no object: they are billed all the same."""
        objects, hosts = len(self.entries), len(self._dividing(place))
        return f"{objects} objects for {hosts} hosts: some get none" if objects < hosts else ""

    def _dividing(self, place: Place) -> tuple[str, ...]:
        """Return the hosts that divide its entries among them: this one alone if each gets all."""
        return (place.host,) if self._is_whole else _sharers(self.channel, place)

    @property
    def _is_whole(self) -> bool:
        source: Mapping[str, Any] = self.channel["DataSource"]["S3DataSource"]
        return bool(source.get("S3DataDistributionType") != "ShardedByS3Key")


def _folder(source: Mapping[str, Any], path: str, stores: Stores) -> Path:
    """Return the folder of this machine that replaces a file system's."""
    whole = os.path.normpath(f"{source['FileSystemId']}/{source['DirectoryPath'].strip('/')}")
    known = {key.rstrip("/"): folder for key, folder in stores.file_systems.items()}
    # The longest key: a part of a file system may be elsewhere than the rest of it.
    root = max((key for key in known if f"{whole}/".startswith(f"{key}/")), key=len, default=None)
    if root is None:
        message = "no folder of this machine is configured for that file system"
        remedy = f"cluster.file_systems={{{source['FileSystemId']}: /folder}}"
        raise fail("E424", path, message, value=whole, remedy=remedy)
    folder = Path(known[root], whole.removeprefix(root).lstrip("/"))
    if not folder.is_dir():
        raise fail("E424", path, "the folder of that file system does not exist on this machine", value=str(folder))
    return folder
