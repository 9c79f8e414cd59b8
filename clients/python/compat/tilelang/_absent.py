# SPDX-License-Identifier: Apache-2.0
"""Clear errors for what a compatibility module does not have."""


def getter(module: str):
    def __getattr__(name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"{module}.{name} is not part of Kiln's compatibility package")

    return __getattr__
