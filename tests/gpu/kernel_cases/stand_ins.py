# SPDX-License-Identifier: Apache-2.0
"""Lets modules with kernels be imported out of packages that need much else: a module of the package that has "triton.jit" in its text is the
repository's own, and every other one is a stand-in, whose names are whatever is asked of them."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import types

import torch

ON_GPU = os.environ.get("KILN_CORPUS_DEVICE", "cuda") == "cuda"
CORPORA = pathlib.Path(os.environ.get("KILN_KERNELS_CORPORA", "."))
if ON_GPU:
    torch.set_default_device("cuda")


class Anything:
    """What a stand-in's names are: callable, with any attribute, and false."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *args, **kwargs):
        return Anything()

    def __bool__(self):
        return False

    def __mro_entries__(self, bases):
        return (object,)


def unchanged(function=None, **options):
    """A decorator without effect, with or without arguments."""
    return function if function is not None else (lambda given: given)


def module(name: str, **names):
    """A module that has these names alone."""
    made = types.ModuleType(name)
    made.__path__, made.__spec__ = [], importlib.machinery.ModuleSpec(name, None)
    made.__dict__.update(names)
    sys.modules[name] = made
    return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Of one package in ``folder``. ``given``: {module: its names}. ``real``: modules that are the repository's although they have no kernel."""

    def __init__(self, package: str, folder, given: dict, real=()):
        self.package, self.folder, self.given, self.real = package, pathlib.Path(folder), given, real

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != self.package:
            return None
        file = self.folder.joinpath(*name.split(".")[1:]).with_suffix(".py")
        if name not in self.given and file.is_file() and (name in self.real or "triton.jit" in file.read_text(encoding="utf-8")):
            return importlib.util.spec_from_file_location(name, file)
        return importlib.util.spec_from_loader(name, self)

    def create_module(self, spec):
        made = types.ModuleType(spec.name)
        made.__path__ = []
        made.__dict__.update(self.given.get(spec.name, {}))

        def get(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {}) if name[0].isupper() and not name.isupper() else Anything()

        made.__getattr__ = get
        return made

    def exec_module(self, made):
        pass


def smallest(kernel) -> None:
    """On the emulator one configuration, the one with the smallest blocks."""
    if not ON_GPU and hasattr(kernel, "configs"):
        kernel.configs = sorted(kernel.configs, key=lambda c: sum(v for v in c.kwargs.values() if isinstance(v, int)))[:1]


def close(got, wanted, tolerance=5e-3):
    """By the largest difference, against the largest value."""
    got, wanted = got.float(), wanted.float()
    error, size = (got - wanted).abs().max().item(), max(wanted.abs().max().item(), 1.0)
    assert error <= tolerance * size, f"an error of {error} where values are up to {size}"
