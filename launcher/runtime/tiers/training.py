"""The tiers for a training loop, which saves and loads a model and its optimizer."""

import functools
import importlib.util
import os
from dataclasses import asdict
from pathlib import Path

from launcher.runtime.checkpoint import CheckpointUnsaved, LaunchMark
from launcher.runtime.checkpoint_folder import Progress
from launcher.runtime.content import Content
from launcher.runtime.process_group import num_nodes, rank, world_size
from launcher.runtime.tiers.checkpoint_log import CheckpointLog
from launcher.runtime.tiers.checkpoint_manager import CheckpointManager, MemoryTier, StoreTier
from launcher.runtime.tiers.memory_service import PACKAGE, POD, MemoryService, service_address
from launcher.runtime.tiers.node_memory import NodeMemory, node_folder
from launcher.runtime.tiers.s3_store import REQUEST_PATIENCE_S, Bucket
from launcher.runtime.tiers.stores import Folder, Store
from launcher.runtime.tiers.tier_settings import S3, TierSettings, bucket_and_key


class TieredCheckpoints(LaunchMark):
    """The checkpoints of one training run in tiers. Every method is collective: all ranks call it.

    Args:
        run_dir: Receives the log, the records and the mark of the launch.
    """

    def __init__(self, settings: TierSettings, run_dir: Path):
        super().__init__(run_dir / f"{settings.namespace}-launch")
        self.folder = settings.path or f"the memory tier of {settings.namespace}"
        self._manager = manager_of(settings, run_dir)
        self._log = CheckpointLog(settings.namespace, rank(), run_dir)

    def is_due(self, step: int) -> bool:
        """Return whether some tier is saved to after this step."""
        return self._manager.is_due(step)

    def save(self, content: Content, progress: Progress, *, is_last: bool = False, is_late: bool = False) -> None:
        """Save to the tiers that are due; return when training may continue. The last save goes to all, and waits.

        Args:
            is_last: Whether training ends, or stops, with it.
            is_late: Whether it was due at an earlier step; it goes to all tiers, too.

        Raises:
            CheckpointUnsaved: The last save did not succeed.
        """
        self._manager.save(content.state(), progress.step, asdict(progress), everywhere=is_last or is_late)
        if is_last:
            self._manager.wait()
            if not self._manager.has(progress.step):
                raise CheckpointUnsaved(f"step {progress.step} is not in {self.folder}; the log has the reason")

    def load(self, content: Content) -> Progress | None:
        """Load the newest published checkpoint, written by any number of ranks; None if there is none."""
        restored = self._manager.load(lambda manifest: content.form(manifest.metadata, manifest.world_size))
        if restored is None:
            return None
        content.put(restored.state, restored.step, functools.partial(self._log.warn_once, restored.step))
        return Progress(**restored.progress)

    def latest(self) -> int | None:
        """Return the newest published step; None if there is none."""
        return self._manager.newest()

    def clear(self) -> None:
        """Remove every checkpoint of this namespace."""
        self._manager.clear()


def manager_of(settings: TierSettings, run_dir: Path | None) -> CheckpointManager:
    """Return the manager of the tiers that `settings` names. Collective.

    Args:
        run_dir: Receives the log and the records; None for none.

    Raises:
        ModuleNotFoundError: A tier's client is not installed: boto3 for S3, the vendor's for the memory service.
    """
    memory, stores, node = None, [], os.uname().nodename
    log = CheckpointLog(settings.namespace, rank(), run_dir)
    if settings.memory and (address := service_address()):
        _require(PACKAGE, address)
        service: Store = MemoryService(settings.namespace, rank(), world_size(), settings.memory.retention, address)
        stores.append(StoreTier(service, settings.memory.frequency, settings.memory.retention))
    elif settings.memory:
        if POD in os.environ:
            log.warn_once(
                0, f"{PACKAGE} is not in this image: the memory tier is the pods' own memory and vanishes with them"
            )
        replicas, folder = min(settings.replicas, num_nodes() - 1), node_folder(settings.namespace)
        node = f"{node}:{folder}"
        held = NodeMemory(folder, rank(), settings.memory.retention, replicas)
        memory = MemoryTier(held, settings.memory.frequency, world_size() // num_nodes(), replicas)
    if settings.persistent:
        stores.append(StoreTier(_store(settings), settings.persistent.frequency, settings.persistent.retention))
    return CheckpointManager(memory, stores, log, node, settings.patience_s)


def _require(module: str, what: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"{what} needs {module}: pip install {module.replace('_', '-')}", name=module)


def _store(settings: TierSettings) -> Store:
    if not settings.path.startswith(S3):
        return Folder(Path(settings.path) / settings.namespace)
    _require("boto3", settings.path)
    bucket, prefix = bucket_and_key(settings.path)
    return Bucket(
        bucket,
        f"{prefix.strip('/')}/{settings.namespace}/".lstrip("/"),
        settings.s3_endpoint,
        min(settings.patience_s, REQUEST_PATIENCE_S),
        kms_key=settings.kms_key,
        has_checksums=settings.s3_checksums,
    )
