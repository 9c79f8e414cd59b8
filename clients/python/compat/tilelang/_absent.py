# SPDX-License-Identifier: Apache-2.0
"""Clear errors for what a compatibility module does not have."""


def getter(module: str):
    def __getattr__(name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"{module}.{name} is not part of Kiln's compatibility package")

    return __getattr__


class _Refused(type):
    """A class that can be imported, named in annotations and asked about, and that says what to use instead where it is called."""

    def __call__(cls, *_, **__):
        raise NotImplementedError(f"{cls.__qualname__} is not part of Kiln: {cls.instead}")

    def __getattr__(cls, name):
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotImplementedError(f"{cls.__qualname__}.{name} is not part of Kiln: {cls.instead}")


def refused(name: str, instead: str):
    """What stands for a function or class that scripts import and that Kiln does not have."""
    return _Refused(name, (), {"instead": instead, "__doc__": f"Not part of Kiln: {instead}."})
