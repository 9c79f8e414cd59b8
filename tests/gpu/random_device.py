# SPDX-License-Identifier: Apache-2.0
"""A GPU in the place of the emulator's process: tests/emulator/emulated.py has the other."""

import itertools

from emulated import Stopped
from kiln import CompileError, CompileOptions, _runtime
from kiln.client import default_client


class Gpu:
    """Compiles through the daemon of ``KILN_ADDRESS`` for the first GPU of this host, and runs there on numpy arrays."""

    def __init__(self):
        devices = _runtime.devices()
        if not devices:
            raise RuntimeError(f"no GPU: {_runtime.driver_problem('cuda')}")
        self.target, self.client, self.numbers = devices[0]["arch"], default_client(), itertools.count(1)

    def close(self):
        """As the emulator's process is closed."""

    def module(self, serialized):
        return serialized

    def call(self, module, target, tensors, seed=0, check=0, wgmma=1, alignment=0, stream_k=0, fast=0):
        """Every parameter as it is after the run, and the answer. The GPU chooses its own order, checks nothing, and is its own target."""
        options = CompileOptions(disable_wgmma=wgmma == 0, pointer_alignment=alignment, stream_k=stream_k, fast_math=fast == 1)
        try:
            reply = self.client.compile(module, self.target, options, timeout=120)
        except CompileError as refusal:
            return [], {"error": str(refusal)}
        arrays = [array.copy() for array, _ in tensors]
        try:
            _runtime.load(reply.artifact.SerializeToString(), 0)(*arrays)
        except _runtime.AlignmentError as refusal:
            return [], {"error": str(refusal)}
        except RuntimeError as failure:
            raise Stopped(f"{type(failure).__name__}: {failure}") from failure
        return arrays, {"findings": [], "finished": True}
