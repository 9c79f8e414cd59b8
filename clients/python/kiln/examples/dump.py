# SPDX-License-Identifier: Apache-2.0
"""Writes each program of ``programs.py`` as a serialized kiln.v1.Module: ``python -m kiln.examples.dump FOLDER [NAME …]``."""

import pathlib
import sys

from .programs import PROGRAMS


def main(arguments) -> int:
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    folder = pathlib.Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments[1:] or PROGRAMS:
        data = PROGRAMS[name]().serialized
        (folder / f"{name}.pb").write_bytes(data)
        print(f"{name:32} {len(data):6} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
