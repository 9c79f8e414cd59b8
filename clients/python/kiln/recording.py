# SPDX-License-Identifier: Apache-2.0
"""What clients ask for, noted for `kiln precompile` on another machine.

Each client notes a request before it makes it: as a file in the folders that KILN_RECORD names, with colons between them. `kiln record` sets
the variable for a command and all below it, ``record`` for this process and its children. A file's name is the SHA-256 of its bytes, and a
file takes its name once it is complete; NAME.refused says that the compiler refused the request. C++ clients do the same
(clients/manifest/recorded_folder.h, which says why)."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import stat
import tempfile

from .errors import CompileError, KilnError

VARIABLE = "KILN_RECORD"
FORMAT = "kiln manifest 1"
_REFUSED = ".refused"
_REFUSALS = ("INVALID_ARGUMENT", "UNIMPLEMENTED")  # and 3 and 12, as the wire has them


def _folders() -> list[str]:
    return [folder for folder in os.environ.get(VARIABLE, "").split(":") if folder]


def active() -> bool:
    """Whether this process's requests are recorded."""
    return bool(_folders())


def _bytes(request) -> bytes:
    """What of it decides its result."""
    kept = type(request)(module=request.module, target=request.target)
    if request.options.ByteSize():
        kept.options.CopyFrom(request.options)
    return kept.SerializeToString(deterministic=True)


def _keep(request, suffix: str = "") -> None:
    """An explained result is kept nowhere, so the request for it is not either. Where a folder is gone, its recording has ended."""
    folders = _folders()
    if not folders or request.HasField("explain"):
        return
    data = _bytes(request)
    name = hashlib.sha256(data).hexdigest() + suffix
    for folder in folders:
        if not os.path.exists(os.path.join(folder, name)):
            _write(folder, name, b"" if suffix else data)


def _write(folder: str, name: str, data: bytes) -> None:
    part = os.path.join(folder, f".{os.getpid()}-{os.urandom(8).hex()}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        os.rename(part, os.path.join(folder, name))
    except FileNotFoundError:
        return
    except OSError as problem:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise KilnError(f"cannot record into {folder} ({VARIABLE}): {problem.strerror}") from None


@contextlib.contextmanager
def recorded(request):
    """Notes the request, which is made inside, and afterwards that the compiler refused it, if it did."""
    _keep(request)
    try:
        yield
    except CompileError as refusal:
        if refusal.code in _REFUSALS and refusal.diagnostics:
            _keep(request, _REFUSED)
        raise


def note(requests, targets) -> None:
    """The requests of a manifest, each for its own target or for each of these."""
    for request in requests if active() else ():
        for target in targets or (request.target,):
            _keep(of_target(request, target))


def of_target(request, target: str):
    """The same request for another target."""
    other = type(request)()
    other.CopyFrom(request)
    other.target = target
    return other


def note_failures(requests, kernels) -> None:
    """Those kiln.v1.EnsuredKernels of a manifest that the compiler refused."""
    for kernel in kernels if active() else ():
        if kernel.code in (3, 12) and kernel.failure.diagnostics:
            _keep(of_target(requests[kernel.request], kernel.target), _REFUSED)


@contextlib.contextmanager
def record(file):
    """Inside, what this process and the children that it starts ask for is recorded, and at the end added to the manifest ``file``. It is
    for `kiln precompile`. Requests need not succeed, and no GPU need be there: a kernel for the GPU of this machine is then one for the emulator.
    Kernels that the process has compiled before are not asked for again."""
    path = pathlib.Path(os.path.realpath(file))
    _entries(path)  # a file that cannot be added to is told before anything runs
    folder = tempfile.mkdtemp(prefix="kiln-record-")
    if ":" in folder:
        raise KilnError(f"{folder}: a colon divides the folders of {VARIABLE}; set TMPDIR to another folder")
    os.environ[VARIABLE] = ":".join([*_folders(), folder])
    try:
        yield
    finally:
        rest = [other for other in _folders() if other != folder]
        if rest:
            os.environ[VARIABLE] = ":".join(rest)
        else:
            os.environ.pop(VARIABLE, None)
        try:
            _add(path, folder)
        except OSError as problem:
            raise KilnError(f"cannot write {file}: {problem.strerror}; what was recorded is in {folder}, for "
                            f"`kiln manifest {folder} -o FILE`") from None
        shutil.rmtree(folder, ignore_errors=True)


def _entries(path: pathlib.Path) -> dict[bytes, bool]:
    """The requests of a manifest, as bytes, and whether each was refused; none where there is no file."""
    from ._proto import messages

    if not path.exists():
        return {}
    data = path.read_bytes()
    if data.startswith(FORMAT.encode()):
        raise KilnError(f"{path} is a manifest in the text form; `kiln manifest {path} -o FILE` makes one to add to")
    if not data[2:].startswith(FORMAT.encode()):
        raise KilnError(f"{path} is there and is no manifest; name another file")
    return {entry.request.SerializeToString(deterministic=True): entry.refused for entry in messages().Manifest.FromString(data).entries}


def _add(path: pathlib.Path, folder: str) -> None:
    """Adds what the folder holds to the manifest, which is replaced by a complete one. Two that do so at once wait for each other."""
    from ._proto import messages

    lock = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _entries(path)
        for name in os.listdir(folder):
            if not name.startswith(".") and not name.endswith(_REFUSED):
                data = pathlib.Path(folder, name).read_bytes()
                found[data] = found.get(data, False) or os.path.exists(os.path.join(folder, name + _REFUSED))
        manifest = messages().Manifest(format=FORMAT)
        for data in sorted(found):
            manifest.entries.add(refused=found[data]).request.MergeFromString(data)
        _replace(path, manifest.SerializeToString(deterministic=True))
    finally:
        os.close(lock)


def _replace(path: pathlib.Path, data: bytes) -> None:
    part = path.parent / f".kiln-{os.urandom(8).hex()}.partial"
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(data)
        if path.exists():
            os.chmod(part, stat.S_IMODE(path.stat().st_mode))
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
