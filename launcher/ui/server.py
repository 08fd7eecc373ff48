"""Serves the page on this machine alone: its address, its token, and its end.

The token is kept in a file that only the user can read, so that an open page continues when the server is started
again. Delete the file for another token.
"""

import contextlib
import importlib.util
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launcher.common import os_errors
from launcher.common.problems import fail

HOST = "127.0.0.1"
PORT = 8765
_PLACE = Path("recipes", "ui-token")
_LENGTH = 32
_THREADS = 16
"""Views that are made at the same time, of which eight may wait for clusters. Each thread keeps memory."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the page is.

    Args:
        remote_host: Of this machine if its user came over ssh; None otherwise.
    """

    port: int
    token: str
    remote_host: str | None = None

    @property
    def url(self) -> str:
        """The address with its token, which opens the page."""
        return f"http://{HOST}:{self.port}/jobs?token={self.token}"

    @property
    def tunnel(self) -> str | None:
        """The command that brings the page to the user's own machine; None if the user is at this one."""
        if self.remote_host is None:
            return None
        return f"ssh -N -L {self.port}:{HOST}:{self.port} {self.remote_host}"


def serve(results: Path, *, port: int | None, may_write: bool, say: Callable[[Address], None]) -> None:
    """Serve the page of a results folder until a signal ends this process.

    Args:
        port: The one to use; None for 8765 or, if that is taken, any.
        say: Gets the address once the page can be opened.

    Raises:
        ProblemsFound: The packages of the page are missing (E740), the port is taken (E741), or the token cannot be
            kept (E742).
    """
    if missing := [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]:
        raise fail("E740", "recipes ui", f"needs {' and '.join(missing)}", remedy="pip install '.[ui]'")
    token = kept_token()
    with bound(port) as listener:
        import anyio.to_thread
        import uvicorn

        from launcher.ui.app import app_of
        from launcher.ui.guard import Guard
        from launcher.ui.state import Ui

        chosen = listener.getsockname()[1]
        ui = Ui.of(results, may_write=may_write)
        config = uvicorn.Config(
            Guard(app_of(ui), token, chosen),
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=1,
        )

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
                await super().startup(sockets)

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                ui.hub.close()  # streams have no end of their own, and the server waits for them
                await super().shutdown(sockets)

        say(Address(chosen, token, _remote_host()))
        with contextlib.closing(ui.answers):
            Server(config).run(sockets=[listener])


def bound(port: int | None) -> socket.socket:
    """Return a socket that listens on this machine alone.

    Raises:
        ProblemsFound: The port is taken, or may not be used (E741).
    """
    for each in (PORT, 0) if port is None else (port,):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, each))
            listener.listen(128)
            return listener
        except OSError as error:
            listener.close()
            if port is not None:
                message = f"cannot be used: {error.strerror}"
                raise fail("E741", "--port", message, value=port, remedy="omit --port for a free one") from error
    raise AssertionError("a free port always exists")


def kept_token() -> str:
    """Return the token of this user, made at the first call.

    Raises:
        ProblemsFound: Its file cannot be written or read, or others may read it (E742).
    """
    file = _state_folder() / _PLACE.name
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            partial = file.with_name(f".{file.name}.{os.getpid()}")
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
                made.write(secrets.token_urlsafe(_LENGTH))
            try:
                os.link(partial, file)  # the first process decides
            finally:
                partial.unlink()
        token, mode = file.read_text(encoding="ascii").strip(), file.stat().st_mode
    except OSError as error:
        raise os_errors.refused("E742", str(file), error, file) from error
    except UnicodeDecodeError as error:
        raise fail("E742", str(file), "is damaged", remedy="delete it") from error
    if mode & 0o077:
        raise fail("E742", str(file), "can be read by others", remedy=f"chmod 600 {file}")
    if len(token) < _LENGTH:
        raise fail("E742", str(file), "is damaged", remedy="delete it")
    return token


def door(address: Address) -> str:
    """Return the address of a file that leads to the page, for a browser: others may read its command line.

    Raises:
        OSError: The file cannot be written.
    """
    file = _state_folder() / "open.html"
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as page:
        page.write(f'<!doctype html><meta charset=utf-8><meta http-equiv=refresh content="0;url={address.url}">')
    return file.as_uri()


def _state_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base and os.path.isabs(base) else Path.home() / ".local" / "state") / _PLACE.parent


def _remote_host() -> str | None:
    """Return this machine's name if the user came over ssh. Source: ssh(1), Environment, SSH_CONNECTION."""
    return socket.gethostname() if os.environ.get("SSH_CONNECTION") else None
