# SPDX-License-Identifier: Apache-2.0
"""The commands that a wheel puts on PATH: each becomes the program of that name in this package's folder ``bin``."""

import os
import pathlib
import sys

_BIN = pathlib.Path(__file__).resolve().with_name("bin")


def _become(name: str):
    program = _BIN / name
    try:
        os.execv(program, [str(program), *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: cannot run {program}: {error.strerror}; a wheel of deploy/bundle --wheels has it")


def kiln():
    _become("kiln")


def kilnd():
    _become("kilnd")
