# SPDX-License-Identifier: Apache-2.0
"""Makes tests that were written for a GPU run on the CPU's tensors, whose kernels the emulator runs. Of an older torch, what the tests ask of a
newer one."""

import torch
from torch.overrides import TorchFunctionMode

_NARROW = (torch.float16, torch.bfloat16)


def _wide(x):
    return x.float() if isinstance(x, torch.Tensor) and x.dtype in _NARROW else x


class _OnCpu(TorchFunctionMode):
    """Tensors that a test wants on the GPU are made on ``device``. Operations that the CPU has for wide floats alone are computed in those."""

    def __init__(self, device: str):
        super().__init__()
        self.device = device

    def _here(self, x):
        return self.device if isinstance(x, (str, torch.device)) and str(x).split(":")[0] == "cuda" else x

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = {name: self._here(x) if name == "device" else x for name, x in (kwargs or {}).items()}
        name = getattr(function, "__name__", "")
        if name == "cuda":
            return args[0]
        if name == "to":
            args = tuple(map(self._here, args))
        try:
            return function(*args, **kwargs)
        except RuntimeError as problem:
            narrow = next((x.dtype for x in args if isinstance(x, torch.Tensor) and x.dtype in _NARROW), None)
            if "not implemented for" not in str(problem) or narrow is None:
                raise
            result = function(*map(_wide, args), **{name: _wide(x) for name, x in kwargs.items()})
            return result.to(narrow) if isinstance(result, torch.Tensor) and result.dtype == torch.float32 else result


def install(device: str) -> None:
    if not hasattr(torch.Tensor, "untyped_storage"):
        torch.Tensor.untyped_storage = lambda self: self.storage().untyped()
    _OnCpu(device).__enter__()
