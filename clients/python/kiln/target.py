# SPDX-License-Identifier: Apache-2.0
"""Which target to compile for."""

from __future__ import annotations

import functools
import logging
import os
import sys

from . import recording

_FAMILIES = ("cuda:", "hip:", "emu:")
_WITHOUT_GPU = {"auto": "emu:sm_90a", "cuda": "emu:sm_90a", "hip": "emu:gfx942"}  # what is emulated where no GPU says


def resolve(target=None) -> str:
    """A target as the daemon names it. None and "auto": ``$KILN_TARGET``, else the architecture of the current device. "cuda" and "hip":
    the current device of that kind."""
    name = "auto" if target is None else _name(target)
    if name.startswith(_FAMILIES):
        return name
    if name.startswith("sm_"):
        return f"cuda:{name}"
    if name.startswith("gfx"):
        return f"hip:{name}"
    if name not in ("auto", "cuda", "hip"):
        raise ValueError(f"target {name!r}: use \"auto\", \"cuda\", \"hip\", or a full name such as \"cuda:sm_90a\" or \"hip:gfx942\"")
    named = os.environ.get("KILN_TARGET")
    if named and (name == "auto" or named.startswith(name)):
        return resolve(named) if named != "auto" else _detected(name)
    return _detected(name)


def runnable(target=None, asked: bool = False) -> str:
    """As ``resolve``, for a kernel that is to run on this machine, whose target may be the emulator's although nobody named it: ``asked`` to
    emulate, of each target that names no architecture; else where none is named and no GPU is found. While requests are recorded, a program
    for "cuda" goes on without a GPU as well. One line says so, once."""
    name = "auto" if target is None else _name(target)
    if name not in _WITHOUT_GPU:
        return resolve(target)
    try:
        real = resolve(name)
    except RuntimeError:
        if not asked and (_torch_has_gpu() or not (name == "auto" or recording.active())):
            raise
        emulated = _WITHOUT_GPU[name]
    else:
        if not asked:
            return real
        emulated = f"emu:{real.split(':', 1)[1]}"
    _say_emulated(emulated)
    return emulated


_said = False


def _say_emulated(target: str) -> None:
    global _said
    if not _said:
        _said = True
        why = "" if device_target(current_device()) else "no GPU is found: "
        logging.getLogger("kiln").warning("kiln: %skernels without a named target run in kilnd's emulator, as %s; to compile for a GPU, name it: "
                                          "target=\"cuda:sm_90a\"", why, target)


def canonical(target: str) -> str:
    """A full name in its one spelling: "cuda -arch=sm_90a" as "cuda:sm_90a"."""
    return _name(target) if target.strip() else ""


def _name(target) -> str:
    """From {"kind": "cuda", "arch": "sm_90a"} and "cuda -arch=sm_90a" too."""
    if isinstance(target, dict):
        arch = target.get("arch") or target.get("mcpu")
        return f"{target.get('kind', 'cuda')}:{arch}" if arch else target.get("kind", "auto")
    kind, *flags = str(target).split()
    for flag in flags:
        if flag.startswith(("-arch=", "-mcpu=")):
            return f"{kind}:{flag.split('=', 1)[1]}"
    return kind


def _detected(kind: str) -> str:
    arch = device_target(current_device(), kind)
    if arch is None:
        raise RuntimeError(
            f"target {kind!r} means the current GPU, and none is found{_why()}. To compile without one, name the target "
            "(target=\"cuda:sm_90a\", or KILN_TARGET=cuda:sm_90a in the environment); to run without one, emulate it: target=\"emu:sm_90a\", or call "
            "the kernel with arrays of the host inside `with kiln.emulation():`"
        )
    return arch


def _why() -> str:
    try:
        from . import _runtime
    except ImportError as problem:
        return f" (the runtime extension cannot be imported: {problem})"
    return f" ({_runtime.driver_problem('cuda')})"


def _torch_has_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and getattr(torch, "cuda", None) is not None and torch.cuda.is_available()


def current_device() -> int:
    """The number of the GPU that kernels run on."""
    return sys.modules["torch"].cuda.current_device() if _torch_has_gpu() else 0


@functools.lru_cache(maxsize=None)
def device_target(index: int, kind: str = "auto") -> str | None:
    """The target of a device of this host, None where there is no such device."""
    try:
        from . import _runtime
    except ImportError:
        return None
    for device in _runtime.devices():
        if device["index"] == index and kind in ("auto", device["kind"]):
            return device["arch"]
    return None


@functools.lru_cache(maxsize=None)
def device_name(index: int) -> str | None:
    """What a device of this host is ("NVIDIA H200"), None where there is no such device."""
    try:
        from . import _runtime
    except ImportError:
        return None
    return next((device["name"] for device in _runtime.devices() if device["index"] == index), None)
