# SPDX-License-Identifier: Apache-2.0
"""A kernel's launch in a file: kernels_plugin.py writes it where a test makes it with one package called ``triton``, and kernels_worker.py makes the
same launch with each. What belongs to a package (kernels, types) is in the file by name, tensors with their strides and what they share."""

import importlib
import marshal
import statistics
import sys
import types

_LAUNCHES = 7
_QUEUE_CYCLES = 8_000_000  # the card waits until all launches are in its queue, so that the host's part counts for nobody


def name_of(kernel) -> str:
    """"module:function" of what was decorated with triton.jit."""
    while not hasattr(kernel, "__code__"):
        kernel = kernel.fn
    return f"{kernel.__module__}:{kernel.__qualname__}"


def few(configs: list, most: int) -> list:
    """Some of them, from the first to the last; 0: all."""
    return configs if not 0 < most < len(configs) else [configs[i * (len(configs) - 1) // max(most - 1, 1)] for i in range(most)]


def try_few(most: int) -> None:
    """From now on kernels are tuned over at most so many configurations, the same ones by every package."""
    from triton.runtime import autotuner

    begin = autotuner.Autotuner.__init__

    def fewer(self, fn, arg_names, configs, *args, **kwargs):
        begin(self, fn, arg_names, few(list(configs), most), *args, **kwargs)

    autotuner.Autotuner.__init__ = fewer


def write(path, kernel, grid, args, kwargs) -> None:
    """Raises TypeError where something cannot be told to another process."""
    import torch

    torch.save({"kernel": _kernel(kernel), "grid": _told(grid), "args": _told(list(args)), "kwargs": _told(kwargs)}, path)


def read(path):
    """``(launch, tensors)``: the first makes the launch, the second are those that it has."""
    import torch

    found = torch.load(path, weights_only=False)
    tensors: list = []
    kernel, grid = _of_module(found["kernel"]), _heard(found["grid"], tensors)
    args, kwargs = _heard(found["args"], tensors), _heard(found["kwargs"], tensors)
    return lambda: kernel[grid](*args, **kwargs), tensors


def timed(launch, tensors) -> float:
    """Milliseconds of a launch, the median. Before each one its tensors are what they were at first."""
    import torch

    kept = [(tensor, tensor.clone()) for tensor in tensors]

    def restore():
        for tensor, value in kept:
            tensor.copy_(value)

    launch()  # tuned, compiled and loaded
    restore()
    torch.cuda.synchronize()
    torch.cuda._sleep(_QUEUE_CYCLES)
    events = []
    for _ in range(_LAUNCHES):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        launch()
        end.record()
        restore()
        events.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def _kernel(kernel) -> str:
    """Where its module has it: decorators may be around what name_of() names, and the launch may be of what is within them."""
    module, name = name_of(kernel).split(":")
    for found in (name, *vars(sys.modules[module])):
        outer, path = vars(sys.modules[module]).get(found), found
        while outer is not None and not isinstance(outer, types.FunctionType):
            if outer is kernel:
                return f"{module}:{path}"
            outer, path = getattr(outer, "fn", None), f"{path}.fn"
    return f"{module}:{name}"


def _of_module(name: str):
    module, _, path = name.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _told(x):
    import torch
    import triton.language as tl

    if isinstance(x, torch.Tensor):
        return ("value", x.detach())
    if x is None or isinstance(x, (bool, int, float, str, torch.dtype)):
        return ("value", x)
    if isinstance(x, (list, tuple)):
        return ("sequence", isinstance(x, tuple), [_told(part) for part in x])
    if isinstance(x, dict):
        return ("mapping", {name: _told(value) for name, value in x.items()})
    if isinstance(x, tl.constexpr):
        return _told(x.value)
    for name, value in vars(tl).items():
        if value is x:
            return ("named", f"triton.language:{name}")
    if hasattr(x, "block_shape") and hasattr(x, "base"):
        return ("descriptor", [_told(getattr(x, part)) for part in ("base", "shape", "strides", "block_shape")])
    if isinstance(x, types.ModuleType):
        return ("module", x.__name__)
    if isinstance(x, types.FunctionType) and not x.__kwdefaults__:
        cells = [_told(cell.cell_contents) for cell in x.__closure__ or ()]
        return ("function", x.__module__, marshal.dumps(x.__code__), x.__name__, _told(x.__defaults__), cells)
    if hasattr(x, "fn"):
        return ("named", _kernel(x))
    raise TypeError(f"a {type(x).__name__} among the arguments of a kernel")


def _heard(told, tensors: list):
    """``tensors`` gathers those that are met."""
    kind, *rest = told
    if kind == "value":
        if hasattr(rest[0], "clone"):
            tensors.append(rest[0])
        return rest[0]
    if kind == "sequence":
        return (tuple if rest[0] else list)(_heard(part, tensors) for part in rest[1])
    if kind == "mapping":
        return {name: _heard(value, tensors) for name, value in rest[0].items()}
    if kind == "named":
        return _of_module(rest[0])
    if kind == "descriptor":
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor(*(_heard(part, tensors) for part in rest[0]))
    if kind == "module":
        return importlib.import_module(rest[0])
    module, code, name, defaults, cells = rest
    cells = tuple(types.CellType(_heard(cell, tensors)) for cell in cells)
    return types.FunctionType(marshal.loads(code), vars(importlib.import_module(module)), name, _heard(defaults, tensors), cells or None)
