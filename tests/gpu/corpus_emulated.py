# SPDX-License-Identifier: Apache-2.0
"""Makes tests that were written for a GPU run on the CPU's tensors, whose kernels the emulator runs: torch says that there is a GPU, and its tensors
are the CPU's. Of an older torch, what the tests ask of a newer one."""

import contextlib
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode

_NARROW = (torch.float16, torch.bfloat16)
_SUMMED_NARROWLY = ("cross_entropy", "nll_loss", "log_softmax")  # the CPU adds narrow numbers of these as narrow ones, the GPU as float32


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
        narrow = next((x.dtype for x in args if isinstance(x, torch.Tensor) and x.dtype in _NARROW), None)
        if narrow is None or name not in _SUMMED_NARROWLY:
            try:
                return function(*args, **kwargs)
            except RuntimeError as problem:
                if "not implemented for" not in str(problem) or narrow is None:
                    raise
        result = function(*map(_wide, args), **{name: _wide(x) for name, x in kwargs.items()})
        return result.to(narrow) if isinstance(result, torch.Tensor) and result.dtype == torch.float32 else result


class _Event:
    def __init__(self, **options):
        pass

    def record(self, stream=None):
        pass

    def elapsed_time(self, other) -> float:
        return 1.0

    def synchronize(self):
        pass


def _a_gpu() -> None:
    """What is asked of torch.cuda."""
    cuda, facts = torch.cuda, SimpleNamespace(name="emulated", major=9, minor=0, multi_processor_count=4, total_memory=1 << 34, warp_size=32,
                                              max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
                                              shared_memory_per_block_optin=232448, L2_cache_size=1 << 20)
    cuda.is_available, cuda.device_count, cuda.current_device, cuda.is_initialized = lambda: True, lambda: 1, lambda: 0, lambda: False
    cuda.get_device_capability, cuda.get_device_name = lambda device=None: (9, 0), lambda device=None: facts.name
    cuda.get_device_properties = lambda device=None: facts
    cuda.synchronize, cuda.empty_cache, cuda.set_device = lambda device=None: None, lambda: None, lambda device: None
    cuda.manual_seed = cuda.manual_seed_all = lambda seed: None
    cuda.current_stream = lambda device=None: SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
    cuda.Event, cuda.is_current_stream_capturing = _Event, lambda: False
    cuda.device = type("device", (contextlib.nullcontext,), {})


def install(device: str) -> None:
    if not hasattr(torch.Tensor, "untyped_storage"):
        torch.Tensor.untyped_storage = lambda self: self.storage().untyped()
    if not hasattr(torch.cpu, "synchronize"):
        torch.cpu.synchronize = lambda: None
    _a_gpu()
    _OnCpu(device).__enter__()
