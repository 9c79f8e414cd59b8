# SPDX-License-Identifier: Apache-2.0
"""Folders that scripts ask of TileLang's environment, to put there what they build themselves. Kiln keeps no files in them: its results are in
the daemon's store."""

import os

from kiln import notices

from . import _absent


class _Folder:
    """A folder named by an environment variable: the value that a script assigned, else the variable's, else the default."""

    def __init__(self, default):
        self.default = default

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner):
        if instance is None:
            return self
        assigned = instance.__dict__.get(self.name)
        return os.environ.get(self.name) or self.default(instance) if assigned is None else assigned

    def __set__(self, instance, value):
        notices.no_effect(f"tilelang.env.{self.name}", "results are in the store of kilnd, whose configuration says where; scripts that ask "
                                                       "for the folder are given this one")
        instance.__dict__[self.name] = value


class Environment:
    TILELANG_CACHE_DIR = _Folder(lambda env: os.path.expanduser("~/.tilelang/cache"))
    TILELANG_TMP_DIR = _Folder(lambda env: os.path.join(env.TILELANG_CACHE_DIR, "tmp"))

    def __getattr__(self, name):
        return _absent.getter("tilelang.env")(name)


env = Environment()

__getattr__ = _absent.getter(__name__)
