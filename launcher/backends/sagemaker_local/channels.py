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
from launcher.common.problems import Problem, ProblemsFound, fail


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a host's inputs.

    Args:
        data_dir: The host's …/input/data, by its real path outside the host's mount namespace.
        host: Its name, such as algo-1.
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
        mounts: Read-only bind mounts: real source, and mount point relative to the data folder.
        writable_mounts: The same, for file systems with access rw.
        note: How the channel is provided if that differs from SageMaker; else "".
        writer: Streams it in Pipe mode.
        view: Serves it in FastFile mode.
    """

    name: str
    mounts: tuple[tuple[Path, str], ...] = ()
    writable_mounts: tuple[tuple[Path, str], ...] = ()
    note: str = ""
    writer: Writer | None = None
    view: fastfile.View | None = None

    @property
    def problem(self) -> Problem | None:
        """Why it failed while the job ran, which ends the job; None if it works."""
        source = self.writer or self.view
        return source.problem if source else None

    def start(self) -> None:
        """Start the writer of Pipe mode; its first FIFO exists when this returns."""
        if self.writer:
            try:
                self.writer.start()
            except OSError as error:
                raise fail("E425", self.name, f"cannot be streamed: {error}") from error

    def close(self) -> None:
        """Stop it; never blocks for long."""
        if self.writer:
            self.writer.close()
        if self.view:
            self.view.close()


def prepare(channels: Sequence[Mapping[str, Any]], default_mode: str, place: Place, stores: Stores) -> list[Feed]:
    """Provide a host's channels: copy those in File mode, and return all, without those of other groups.

    Args:
        channels: InputDataConfig of the request.
        default_mode: AlgorithmSpecification.TrainingInputMode.
        place: The host's inputs.

    Raises:
        ProblemsFound: Every fault of every channel; nothing has been started or mounted.
    """
    contents: list[_Content] = []
    problems: list[Problem] = []
    for channel in channels_of(channels, place):
        try:
            contents.append(_Content.of(channel, default_mode, stores))
        except ProblemsFound as found:
            problems.extend(found.problems)
    if problems:
        raise ProblemsFound(tuple(problems))
    feeds: list[Feed] = []
    try:
        for content in contents:
            feeds.append(content.provided(place, stores))
    except ProblemsFound:
        for feed in feeds:
            feed.close()
        raise
    return feeds


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
        mode: Its input mode.
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
        wrong = [
            Problem("E372", f"{path}.{key}", message, value=value, allowed=allowed)
            for key, message, value, allowed in misfits(source, channel, mode)
        ]
        if wrong:
            raise ProblemsFound(tuple(wrong))
        if "FileSystemDataSource" in source:
            return cls(channel, mode, folder=_folder(source["FileSystemDataSource"], path, stores))
        entries = tuple(manifests.read(source["S3DataSource"], stores))
        if mode != "Pipe" and (wrong := list(manifests.path_problems(entries))):
            raise ProblemsFound(tuple(wrong))
        return cls(channel, mode, entries)

    def provided(self, place: Place, stores: Stores) -> Feed:
        """Return the channel on a host."""
        try:
            provide = {"Pipe": self._piped, "FastFile": self._shown}.get(self.mode, self._copied)
            return self._mounted(place, self.folder) if self.folder else provide(place, stores)
        except OSError as error:
            raise fail("E421", str(error.filename or place.data_dir), error.strerror or str(error)) from error

    @property
    def _name(self) -> str:
        name: str = self.channel["ChannelName"]
        return name

    def _share(self, place: Place, epoch: int = 0) -> list[Entry]:
        """Return the host's part. Source: ShuffleConfig: shuffled first, then divided, in each epoch again."""
        seed = (self.channel.get("ShuffleConfig") or {}).get("Seed")
        if self._is_whole:
            return manifests.share(self.entries, 0, 1, seed, epoch)
        hosts = _sharers(self.channel, place)
        return manifests.share(self.entries, hosts.index(place.host), len(hosts), seed, epoch)

    @property
    def _is_whole(self) -> bool:
        source: Mapping[str, Any] = self.channel["DataSource"]["S3DataSource"]
        return bool(source.get("S3DataDistributionType") != "ShardedByS3Key")

    def _piped(self, place: Place, stores: Stores) -> Feed:
        place.data_dir.mkdir(parents=True, exist_ok=True)
        writer = Writer(
            place.data_dir / self._name,
            lambda epoch: self._share(place, epoch),
            stores,
            is_gzip=self.channel.get("CompressionType") == "Gzip",
            is_recordio=self.channel.get("RecordWrapperType") == "RecordIO",
        )
        return Feed(self._name, writer=writer, note=self._thin(place))

    def _copied(self, place: Place, stores: Stores) -> Feed:
        folder = self._made(place)
        stores.fetch_all((entry.objects[0], f"{folder}/{entry.path}") for entry in self._share(place))
        return Feed(self._name, note=self._thin(place))

    def _shown(self, place: Place, stores: Stores) -> Feed:
        uri = self.channel["DataSource"]["S3DataSource"]["S3Uri"]
        self._made(place)
        if self._is_whole and (source := stores.folder(uri)):
            return Feed(self._name, mounts=((source, self._name),))
        folder = place.data_dir.parent / ".fastfile" / self._name
        folder.mkdir(parents=True, exist_ok=True)
        entries = self._share(place)
        view, how = fastfile.mount(folder, entries, stores)
        if view is None:
            stores.fetch_all((entry.objects[0], f"{folder}/{entry.path}") for entry in entries)
        note = ", ".join(filter(None, (f"{self._name}: {how}", self._thin(place))))
        return Feed(self._name, mounts=((folder, self._name),), note=note, view=view)

    def _mounted(self, place: Place, folder: Path) -> Feed:
        self._made(place)
        mount = ((folder, self._name),)
        is_writable = self.channel["DataSource"]["FileSystemDataSource"]["FileSystemAccessMode"] == "rw"
        return Feed(self._name, writable_mounts=mount) if is_writable else Feed(self._name, mounts=mount)

    def _made(self, place: Place) -> Path:
        folder = place.data_dir / self._name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _thin(self, place: Place) -> str:
        """Return a warning if hosts get no object: they are billed all the same."""
        hosts = 1 if self._is_whole else len(_sharers(self.channel, place))
        few = len(self.entries) < hosts
        return f"{len(self.entries)} objects for {hosts} hosts: some get none" if few else ""


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
