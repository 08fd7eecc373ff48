"""A login node that is reached by ssh: bundles are copied there, and what their jobs write is copied back."""

import functools
import hashlib
import json
import os
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from launcher.backends.slurm import mirror, programs
from launcher.backends.slurm.code import CODE_DIR
from launcher.backends.slurm.place import HERE, PACKAGE, Place
from launcher.backends.slurm.programs import Answer
from launcher.backends.slurm.run_files import Wanted
from launcher.backends.slurm.ssh import ENV_CONFIG, Connection, Session
from launcher.bundle.render import MANIFEST
from launcher.common.names import RUN_DIR
from launcher.common.problems import fail
from launcher.common.templating import render_template
from launcher.model.job_spec import Bundle

_KEY = "cluster.ssh_folder"
_DIGITS = 12
_EXISTS = 'for path; do [[ -d $path ]]; printf "%d" "$?"; done'
_REPLACE = 'cd -- "$1" && printf %s "$3" > ".$2.$$" && mv -T -- ".$2.$$" "$2"'


class Host:
    """A login node and a folder there, in the file system that its cluster's nodes share.

    Args:
        name: `user@host`, or a name from the configuration of OpenSSH.
        folder: The folder; relative to the user's home there.
    """

    poll_s = 1.0

    def __init__(self, name: str, folder: str):
        self._connection = Connection(name)
        self._folder = folder

    @property
    def name(self) -> str:
        """The login node as the user named it."""
        return self._connection.name

    @property
    def user(self) -> str:
        """Name of the user there."""
        return self._connection.login.user

    def run(
        self, *words: str, folder: str | None = None, env: Mapping[str, str] | None = None, text: str = ""
    ) -> Answer:
        """Run a command of Slurm there and return its answer.

        Raises:
            ProblemsFound: The node is not reached, or the connection was lost (E455), or it refuses the login (E456).
        """
        done = self._connection.run(
            words, folder=folder or "", env=env, data=text.encode(), timeout_s=programs.PATIENCE_S
        )
        if done.code == programs.NOT_FOUND:
            return Answer(done.code, "", f"{words[0]} is not installed on {self.name}")
        if done.code == programs.NOT_EXECUTABLE:
            return Answer(done.code, "", f"{words[0]} may not be executed by you on {self.name}")
        return programs.answer(words[0], done.code, done.out.decode(errors="replace"), done.error)

    def folder_of(self, bundle_dir: Path) -> str:
        """Return the folder there of a bundle's copy.

        Raises:
            ProblemsFound: The bundle is damaged (E703), or the node is not reached.
        """
        return f"{self._root}/{_name(bundle_dir)}"

    @property
    def _root(self) -> str:
        return self._folder if self._folder.startswith("/") else f"{self._connection.login.home}/{self._folder}"

    @property
    def _package(self) -> str:
        """Folder there of this launcher, which has the digest of its files."""
        return f"{self._root}/.launcher/{_package_digest()}"

    def send(self, bundle: Bundle, *, has_code: bool) -> str:
        """Copy a bundle, its code, and this launcher there, unless they exist; return the bundle's folder there.

        Raises:
            ProblemsFound: The folder cannot be written (E457), or the node is not reached.
        """
        source, target, package = bundle.directory.resolve(), self.folder_of(bundle.directory), self._package
        HERE.send(bundle, has_code=has_code)  # what the job writes is copied to that folder
        found = self._connection.run(("bash", "-c", _EXISTS, "bash", target, package)).out.decode()
        if found[1:] != "0":
            self._unpack(package, ((PACKAGE, PACKAGE.name),), is_new=False)
        if found[:1] != "0":
            files = [(source / name, name) for name in bundle.files]
            self._unpack(target, (*files, (source / RUN_DIR, RUN_DIR)), is_new=False)
        if has_code:
            self._unpack(f"{target}/{CODE_DIR}", ((source / CODE_DIR, "."),), is_new=True)
        return target

    def send_array(self, folder: Path, bundles: Sequence[Bundle]) -> str:
        """Copy the folder of an array there, beside the bundles; its links lead to their copies.

        Raises:
            ProblemsFound: The folder cannot be written (E457), or the node is not reached.
        """
        target = f"{self._root}/{folder.parent.name}/{folder.name}"
        files = [(path, path.name) for path in folder.iterdir() if not path.is_symlink()]
        links = {str(task): f"../../{_name(bundle.directory)}" for task, bundle in enumerate(bundles)}
        self._unpack(target, files, links, is_new=True)
        return target

    def replace(self, bundle_dir: Path, name: str, text: str) -> None:
        """Replace a file in the job's run folder there atomically.

        Raises:
            ProblemsFound: It cannot be written (E457), or the node is not reached.
        """
        folder = f"{self.folder_of(bundle_dir)}/{RUN_DIR}"
        self._refuse_failed(self._connection.run(("bash", "-c", _REPLACE, "bash", folder, name, text)))

    def remove(self, bundle_dir: Path, names: Sequence[str]) -> None:
        """Remove files of an earlier job from the run folder, there and here.

        Raises:
            ProblemsFound: They cannot be removed (E457), or the node is not reached.
        """
        HERE.remove(bundle_dir, names)
        folder = f"{self.folder_of(bundle_dir)}/{RUN_DIR}"
        self._refuse_failed(self._connection.run(("rm", "-f", "--", *(f"{folder}/{name}" for name in names))))

    def _unpack(
        self, target: str, parts: Iterable[tuple[Path, str]], links: Mapping[str, str] | None = None, *, is_new: bool
    ) -> None:
        """Copy files and folders, and make links, in a folder there, which appears complete or not at all."""
        with tempfile.TemporaryFile() as archive:
            _pack(archive, parts, links or {})
            words = ("bash", "-c", render_template("slurm/ssh_send.sh.j2"), "bash", target)
            self._refuse_failed(self._connection.run((*words, "again" if is_new else "once"), data=archive))

    def _refuse_failed(self, done: Session) -> None:
        """Raise a Problem if files could not be written there.

        Raises:
            ProblemsFound: They could not (E457).
        """
        if done.code:
            said = "; ".join(done.error.strip().splitlines()[-2:]) or f"exit code {done.code}"
            remedy = "a folder that you may write, in the file system that the cluster's nodes share"
            raise fail("E457", _KEY, f"cannot be written on {self.name}: {said}", value=self._folder, remedy=remedy)

    def environment(self) -> dict[str, str]:
        """Return the variable with which the nodes find the copy of this launcher."""
        return {"RECIPES_PYTHONPATH": self._package}

    def fetch(self, bundle_dir: Path, files: Wanted) -> None:
        """Copy what files of a job have gained into the bundle's run folder.

        Raises:
            ProblemsFound: The node is not reached, or the connection was lost (E455).
        """
        folder = f"{self.folder_of(bundle_dir)}/{RUN_DIR}"
        mirror.refresh(self._connection, folder, bundle_dir / RUN_DIR, files)


@functools.cache
def _host(name: str, folder: str, _: str | None) -> Host:
    return Host(name, folder)


def place_of(cluster: Mapping[str, Any]) -> Place:
    """Return where the jobs of a `cluster` section are submitted and followed."""
    # A name means another node in another configuration of OpenSSH.
    config = os.environ.get(ENV_CONFIG)
    return _host(cluster["ssh"], cluster["ssh_folder"], config) if cluster.get("ssh") else HERE


def _name(bundle_dir: Path) -> str:
    """Return the name of the folder of a bundle's copy.

    Raises:
        ProblemsFound: The bundle is damaged (E703).
    """
    try:
        manifest = json.loads((bundle_dir / MANIFEST).read_text(encoding="utf-8"))
        return f"{manifest['job_name']}-{manifest['digest'][:_DIGITS]}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise fail("E703", str(bundle_dir), f"is not a bundle directory: {error}") from error


def _pack(archive: IO[bytes], parts: Iterable[tuple[Path, str]], links: Mapping[str, str]) -> None:
    """Write a compressed archive of links, files and folders, without what Python compiled and what jobs write."""
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=3) as packed:
        for path, name in parts:
            packed.add(path, arcname=name, recursive=name != RUN_DIR, filter=_anonymous)
        for name, target in links.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            packed.addfile(link)
    archive.seek(0)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if "__pycache__" in entry.name.split("/"):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


@functools.cache
def _package_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(each for each in PACKAGE.rglob("*") if each.is_file() and "__pycache__" not in each.parts):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(PACKAGE)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:_DIGITS]
