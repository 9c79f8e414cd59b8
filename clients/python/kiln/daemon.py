# SPDX-License-Identifier: Apache-2.0
"""Where the daemon is, and how one is started.

The address is ``$KILN_ADDRESS`` (``unix:PATH`` or ``HOST:PORT``), else the socket on which kilnd listens by default. When nothing listens
on a Unix socket and a ``kilnd`` is found (``$KILN_KILND``, the wheel's in this package, the bundle's bin folder beside it, the build folder's,
PATH), it is started on that socket and stays after this process ends; its log is kilnd.log in its state folder. KILN_AUTOSTART=0 turns this off."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import socket
import stat
import subprocess
import time

from .errors import ServiceUnavailable


_LONGEST_PATH = 107  # sizeof sockaddr_un.sun_path, less the NUL


def default_address() -> str:
    """The same choice as the daemon's DefaultListen."""
    named = os.environ.get("KILN_ADDRESS")
    if named:
        return named if named.startswith("unix:") or not named.startswith("/") else f"unix:{named}"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return f"unix:{runtime}/kiln.sock"
    return "unix:/run/kiln/kiln.sock" if os.getuid() == 0 else f"unix:/tmp/kiln-{os.getuid()}/kiln.sock"


def socket_path(address: str) -> str | None:
    if not address.startswith("unix:"):
        return None
    path = address.removeprefix("unix:")
    return path[2:] if path.startswith("///") else path


def listening(path: str) -> bool:
    size = len(os.fsencode(path))
    if size > _LONGEST_PATH:
        raise ServiceUnavailable(f"the socket path {path} has {size} bytes and Unix sockets take at most {_LONGEST_PATH}; choose a shorter one: "
                                 "KILN_ADDRESS=unix:PATH here, kilnd --listen=unix:PATH there")
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(path)
        return True
    except OSError:
        return False
    finally:
        probe.close()


def find_kilnd() -> str | None:
    named = os.environ.get("KILN_KILND")
    if named:
        return named
    package = pathlib.Path(__file__).resolve().parent
    for folder in (package, *package.parents[1:3]):
        candidate = folder / "bin" / "kilnd"
        if os.access(candidate, os.X_OK):
            return str(candidate)
    return shutil.which("kilnd")


def _log_file() -> pathlib.Path:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    folder = pathlib.Path(cache if cache.startswith("/") else pathlib.Path.home() / ".cache") / "kiln"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "kilnd.log"


def ensure(address: str, wait: float = 15.0) -> None:
    """Starts a daemon where none listens and one may be started. Two processes that do so at once end with one daemon: the second finds
    the socket claimed and ends."""
    path = socket_path(address)
    if path is not None and os.path.dirname(path) == f"/tmp/kiln-{os.getuid()}":
        _check_folder(os.path.dirname(path))
    if path is None or listening(path) or os.environ.get("KILN_AUTOSTART", "1") == "0":
        return
    kilnd = find_kilnd()
    if kilnd is None:
        return
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = _log_file()
    with open(log, "ab") as output:
        process = subprocess.Popen([kilnd, "--listen", f"unix:{path}"], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                   start_new_session=True, cwd="/")
    _await(process, path, log, wait)


def _check_folder(folder: str) -> None:
    """That nobody else made the folder of the default socket, to be sent programs and tokens there. One that is missing is made."""
    with contextlib.suppress(OSError):
        os.mkdir(folder, 0o700)
    try:
        status = os.lstat(folder)
    except OSError as error:
        raise ServiceUnavailable(f"{folder} cannot be made: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        why = "is no folder"
    elif status.st_uid != os.getuid():
        why = "belongs to another user"
    elif status.st_mode & 0o022:
        why = "can be written by others"
    else:
        return
    raise ServiceUnavailable(f"{folder} {why}: the process that listens there may not be your kilnd. Remove the folder, or name a socket with "
                             "KILN_ADDRESS")


def _await(process, path: str, log: pathlib.Path, wait: float) -> None:
    end = time.monotonic() + wait
    while not listening(path):
        if process.poll() is not None and not listening(path):
            time.sleep(0.2)  # another process's daemon may be about to listen
            if not listening(path):
                raise ServiceUnavailable(f"kilnd ended with status {process.returncode} before it served; its log is {log}:\n{_tail(log)}")
        if time.monotonic() > end:
            raise ServiceUnavailable(f"kilnd was started and does not listen on {path} after {wait:.0f} s; its log is {log}")
        time.sleep(0.01)


def _tail(log: pathlib.Path, lines: int = 5) -> str:
    try:
        return "\n".join("  " + line for line in log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
