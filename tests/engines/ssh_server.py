"""A real sshd on a loopback port: a login node with a home folder, keys and host key of its own."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import ports
import psutil
from background import await_true

NAME, STRANGER, REFUSED, NOBODY = "cluster", "stranger", "refused", "nobody"
"""Names in the client's configuration: the server, also with an unknown host key and with a wrong key; no server."""
_SYSTEM = "/usr/sbin:/sbin"
_SERVER = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
PermitRootLogin yes
SetEnv HOME={home} SLURM_CONF={conf}
"""
_CLIENT = """\
Host *
    HostName 127.0.0.1
    Port {port}
    IdentitiesOnly yes
    GlobalKnownHostsFile /dev/null
    UserKnownHostsFile {folder}/known_hosts
Host * !{refused}
    IdentityFile {folder}/key
"""
_OTHERS = f"""\
Host {STRANGER}
    UserKnownHostsFile /dev/null
    StrictHostKeyChecking yes
Host {REFUSED}
    IdentityFile {{folder}}/wrong_key
Host {NOBODY}
    Port {{closed}}
Host bad-host
    HostName no-such-host.invalid
"""
_PROFILE = """\
printf 'Welcome to the cluster'
echo 'a warning' >&2
[[ ! -e $HOME/path ]] || PATH=$(< "$HOME/path")
"""


def absent() -> list[str]:
    """Return the programs that are not installed."""
    return [name for name in ("sshd", "ssh", "ssh-keygen") if shutil.which(name, path=_path()) is None]


@dataclass
class Server:
    """A running server.

    Args:
        folder: Of its keys and configurations.
        port: Its port.
        processes: The server, while it runs.
    """

    folder: Path
    port: int
    processes: list[subprocess.Popen] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def config(self) -> Path:
        """Configuration of the client."""
        return self.folder / "ssh_config"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        program = shutil.which("sshd", path=_path())
        with (self.folder / "sshd.log").open("ab") as log:
            words = [program, "-D", "-e", "-f", str(self.folder / "sshd_config")]
            self.processes.append(
                subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)
            )
        words = ["ssh", "-F", str(self.config), "-o", "BatchMode=yes", "-o", "ControlPath=none", NAME, "true"]
        await_true(lambda: subprocess.run(words, capture_output=True).returncode == 0)

    def stop(self) -> None:
        """Stop the server, and cut every connection."""
        server = self.processes.pop()
        children = psutil.Process(server.pid).children()
        server.send_signal(signal.SIGKILL)
        server.wait()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


@contextlib.contextmanager
def running(folder: Path, slurm_conf: Path) -> Iterator[Server]:
    """Run a server, on whose side Slurm's commands use a configuration, until the block ends."""
    os.makedirs("/run/sshd", exist_ok=True)  # sshd separates its privileges there
    (port,) = ports.free_ports(1)
    server = Server(folder, port)
    server.home.mkdir()
    (server.home / ".bash_profile").write_text(_PROFILE)
    for name in ("host_key", "key", "wrong_key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    known = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {known}")
    values = {"folder": folder, "port": port, "home": server.home, "conf": slurm_conf}
    (folder / "sshd_config").write_text(_SERVER.format(**values))
    with ports.closed() as closed:
        others = _OTHERS.format(folder=folder, closed=closed)
        server.config.write_text(others + _CLIENT.format(refused=REFUSED, **values))
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _path() -> str:
    return f"{os.environ['PATH']}:{_SYSTEM}"
