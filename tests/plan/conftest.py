# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
