# SPDX-License-Identifier: Apache-2.0
"""A GPU in the place of the emulator's process: tests/emulator/emulated.py has the other."""

import itertools

import numpy as np
from emulated import Stopped
from kiln import CompileError, CompileOptions, _runtime
from kiln.client import default_client

PLAIN = {2: np.int16, 4: np.int32, 8: np.int64}  # what torch takes for numbers of so many bytes that it may not know


class Gpu:
    """Compiles through the daemon of ``KILN_ADDRESS`` for the first GPU of this host, and runs there on numpy arrays; tensors that lie in
    one another are torch's."""

    def __init__(self):
        devices = _runtime.devices()
        if not devices:
            raise RuntimeError(f"no GPU: {_runtime.driver_problem('cuda')}")
        self.target, self.client, self.numbers = devices[0]["arch"], default_client(), itertools.count(1)

    def close(self):
        """As the emulator's process is closed."""

    def module(self, serialized):
        return serialized

    def call(self, module, target, tensors, places=None, seed=0, check=0, wgmma=1, alignment=0, stream_k=0, fast=0):
        """Every parameter as it is after the run, and the answer. The GPU chooses its own order, checks nothing, and is its own target."""
        options = CompileOptions(disable_wgmma=wgmma == 0, pointer_alignment=alignment, stream_k=stream_k, fast_math=fast == 1)
        try:
            reply = self.client.compile(module, self.target, options, timeout=120)
        except CompileError as refusal:
            return [], {"error": str(refusal)}
        kernel = _runtime.load(reply.artifact.SerializeToString(), 0)
        try:
            after = self._within(kernel, tensors, places) if places else self._apart(kernel, tensors)
        except _runtime.AlignmentError as refusal:
            return [], {"error": str(refusal)}
        except RuntimeError as failure:
            raise Stopped(f"{type(failure).__name__}: {failure}") from failure
        return after, {"findings": [], "finished": True}

    @staticmethod
    def _apart(kernel, tensors):
        arrays = [np.array(array) for array, _ in tensors]  # also where numpy gives a tensor without dimensions as a scalar
        kernel(*arrays)
        return arrays

    @staticmethod
    def _within(kernel, tensors, places):
        """Of each tensor that lies in another's memory ``places`` says in which one's, and which element there is its first."""
        import torch

        held = {i: _to_torch(torch, array, dtype) for i, (array, dtype) in enumerate(tensors) if i not in places}
        for i, (base, first) in places.items():
            shape = tensors[i][0].shape
            held[i] = held[base].reshape(-1)[first : first + tensors[i][0].size].view(shape)
        kernel(*[held[i] for i in range(len(tensors))])
        return [_to_numpy(torch, held[i], array) for i, (array, _) in enumerate(tensors)]


def _to_torch(torch, array, dtype):
    """On the device, in the type that torch has for these bits."""
    known = array.dtype.kind != "u" or array.itemsize == 1
    plain = torch.from_numpy(np.array(array if known else array.view(PLAIN[array.itemsize]))).cuda()
    wanted = getattr(torch, dtype)
    return plain if plain.dtype == wanted else plain.view(wanted)


def _to_numpy(torch, tensor, like):
    bits = PLAIN.get(like.itemsize, np.uint8)
    plain = tensor.contiguous().view(getattr(torch, np.dtype(bits).name)) if like.itemsize > 1 else tensor.contiguous().view(torch.uint8)
    return plain.cpu().numpy().view(like.dtype).reshape(like.shape)
