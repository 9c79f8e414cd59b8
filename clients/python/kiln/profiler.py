# SPDX-License-Identifier: Apache-2.0
"""Inputs for a kernel, comparison with a reference, timing. Needs torch."""

from __future__ import annotations

import enum

from . import _proto
from .bench import do_bench
from .language.dtypes import DType


class TensorSupplyType(enum.Enum):
    """How inputs are made up."""

    Integer = 1
    Uniform = 2
    Normal = 3
    Randn = 4
    Zero = 5
    One = 6
    Auto = 7


def _names() -> dict:
    return {dtype.wire: dtype for dtype in DType._known.values() if dtype.wire}


def supply(shape, dtype: DType, kind: TensorSupplyType = TensorSupplyType.Auto, device="cuda"):
    """A tensor of this shape and type. Auto: small integers for integers and eight-bit floats, uniform in (-1, 1) for other floats."""
    try:
        import torch
    except ImportError as absent:
        raise RuntimeError("making up inputs needs torch; pass tensors (input_tensors, set_autotune_inputs or supply_prog)") from absent

    storage = dtype.as_torch()
    if kind in (TensorSupplyType.Zero, TensorSupplyType.One):
        return torch.full(shape, float(kind is TensorSupplyType.One), device=device).to(storage)
    narrow = dtype.is_float and dtype.bits == 8
    if dtype.kind == "b":
        return torch.randint(0, 2, shape, device=device).to(torch.bool)
    if dtype.kind == "u":
        return torch.randint(0, 3, shape, device=device).to(storage)
    if dtype.kind == "i" or narrow or kind is TensorSupplyType.Integer:
        return torch.randint(-2, 3, shape, device=device).to(storage)
    if kind in (TensorSupplyType.Normal, TensorSupplyType.Randn):
        return torch.randn(shape, device=device).to(storage)
    return torch.empty(shape, device=device, dtype=torch.float32).uniform_(-1.0, 1.0).to(storage)


def cloned(tensor):
    """A copy of a tensor, with its strides."""
    if hasattr(tensor, "new_empty_strided"):
        return tensor.new_empty_strided(tuple(tensor.shape), tensor.stride()).copy_(tensor.detach())
    if hasattr(tensor, "__array_interface__"):
        return _cloned_array(tensor)
    if hasattr(tensor, "copy_from"):  # kiln._runtime.Array
        return type(tensor)(tensor.shape, tensor.dtype, tensor.device).copy_from(tensor.numpy())
    if hasattr(tensor, "copy"):
        return tensor.copy()
    raise TypeError(f"a {type(tensor).__name__} that the kernel writes cannot be copied, so that measuring would change it: call tune() with tensors "
                    "of torch or numpy first")


def _cloned_array(array):
    import numpy

    array = numpy.asarray(array)
    reach = [max(extent - 1, 0) * stride for extent, stride in zip(array.shape, array.strides)]
    memory = numpy.empty(sum(map(abs, reach)) + array.itemsize, "uint8")
    copy = numpy.ndarray(array.shape, array.dtype, memory, -sum(r for r in reach if r < 0), array.strides)
    copy[...] = array
    return copy


def evaluate(expr, symbols: dict, names) -> int:
    """A kiln.v1.HostExpr over run-time dimensions."""
    values: list[int] = []
    for node in expr.nodes:
        kind = node.DESCRIPTOR.fields_by_name["op"].enum_type.values_by_number[node.op].name
        if kind == "CONST":
            values.append(node.value)
        elif kind == "SYMBOL":
            name = names[node.value]
            if name not in symbols:
                raise ValueError(f"{name} is known at launch only; pass dynamic_symbolic_constraints={{{name!r}: …}} or input_tensors")
            values.append(symbols[name])
        else:
            values.append(_OPERATIONS[kind](values[node.a], values[node.b]))
    return values[-1]


_OPERATIONS = {"ADD": lambda a, b: a + b, "SUB": lambda a, b: a - b, "MUL": lambda a, b: a * b, "FLOOR_DIV": lambda a, b: a // b,
               "FLOOR_MOD": lambda a, b: a % b, "MIN": min, "MAX": max}


class Profiler:
    """Makes up inputs for one kernel, compares it with a reference, measures it. Called, it is the kernel."""

    def __init__(self, kernel, supply_type: TensorSupplyType = TensorSupplyType.Auto):
        self.kernel, self.supply_type = kernel, supply_type

    def with_default_adapter(self, _adapter):
        """The profiler itself: accepted, without effect."""
        return self

    def inputs(self, constraints=None) -> list:
        """A tensor for each parameter that is not an output."""
        pb, launch = _proto.messages(), self.kernel.artifact.launch
        symbols = [s.name for s in launch.symbols]
        tensors = []
        for param in launch.params:
            if param.output:
                continue
            dtype = _names()[pb.enum_name("DType", param.dtype)]
            if not param.tensor:
                raise ValueError(f"{self.kernel.name} takes the scalar {param.name}; pass input_tensors")
            shape = [evaluate(e, constraints or {}, symbols) for e in param.shape]
            tensors.append(supply(shape, dtype, self.supply_type))
        return tensors

    _get_inputs = inputs

    def assert_allclose(self, reference_program, input_tensors=None, atol: float = 1e-2, rtol: float = 1e-2,
                        max_mismatched_ratio: float = 0.01):
        """The kernel and a reference agree but for this share of the elements."""
        inputs = input_tensors or self.inputs()
        for ours, theirs in zip(_as_list(self._outputs(inputs)), _as_list(reference_program(*inputs))):
            if theirs is not None:
                assert_close(ours, theirs, rtol, atol, max_mismatched_ratio)

    def manual_assert_close(self, reference_program, input_tensors=None, manual_check_prog=None):
        """``manual_check_prog(outputs, outputs of the reference)``, lists both, on the same inputs; it raises where they differ."""
        inputs = input_tensors or self.inputs()
        manual_check_prog(_as_list(self._outputs(inputs)), _as_list(reference_program(*inputs)))

    def _outputs(self, inputs):
        """What the kernel returns; for one that returns nothing, the tensors it was given."""
        result = self.kernel(*inputs)
        return inputs if result is None else result

    def assert_consistent(self, repeat: int = 10):
        """Calls on the same made-up inputs give the same bits; else AssertionError."""
        inputs = self.inputs()
        first = _as_list(self.kernel(*inputs))
        for _ in range(repeat):
            for a, b in zip(first, _as_list(self.kernel(*inputs))):
                assert_close(b, a, 0.0, 0.0, 0.0)

    def run_once(self, func=None):
        """What one call of the kernel, or of ``func``, gives on made-up inputs."""
        return (func or self.kernel)(*self.inputs())

    def do_bench(self, func=None, warmup=25, rep=100, n_warmup=0, n_repeat=0, input_tensors=None, backend="event", quantiles=None,
                 return_mode="mean", dynamic_symbolic_constraints=None, device=None, early_stop_baseline=None, **_):
        """Milliseconds of ``func`` (default: the kernel) on made-up or given inputs, as kiln.do_bench measures. ``warmup`` and ``rep``:
        milliseconds; ``n_warmup`` and ``n_repeat``: calls instead. ``dynamic_symbolic_constraints``: run-time dimensions by name.
        ``device`` and ``early_stop_baseline`` are accepted, without effect."""
        inputs = input_tensors or self.inputs(dynamic_symbolic_constraints)
        call = func or self.kernel
        return do_bench(lambda: call(*inputs), warmup, rep, n_warmup, n_repeat, quantiles, backend, return_mode)

    @property
    def func(self):
        """The kernel."""
        return self.kernel

    def __call__(self, *args, **kwargs):
        return self.kernel(*args, **kwargs)


def _as_list(value) -> list:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def assert_close(actual, expected, rtol=1e-2, atol=1e-2, max_mismatched_ratio=0.01, verbose=False, equal_nan=True, check_device=True,
                 check_dtype=True, check_stride=False, check_layout=True, msg=None, base_name="actual", ref_name="expected"):
    """|actual - expected| ≤ atol + rtol · |expected| but for this share of the elements."""
    import torch

    if tuple(actual.shape) != tuple(expected.shape):
        raise AssertionError(f"the shapes differ: {tuple(actual.shape)} and {tuple(expected.shape)}")
    if check_dtype and actual.dtype != expected.dtype:
        raise AssertionError(f"the dtypes differ: {actual.dtype} and {expected.dtype}")
    a, b = actual.double(), expected.double()
    wrong = ~torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)
    count, total = int(wrong.sum()), max(wrong.numel(), 1)
    if count > max_mismatched_ratio * total:
        worst = (a - b).abs().nan_to_num(float("inf")).max().item()
        first = [int(i) for i in wrong.nonzero()[0]]
        raise AssertionError(
            f"{msg or ''}{count} of {total} elements ({100 * count / total:.3f} %) differ by more than atol={atol} + "
            f"rtol={rtol}·|expected|; the largest difference is {worst:.6g}; the first at {first}: {a[tuple(first)].item():.6g}, "
            f"expected {b[tuple(first)].item():.6g}"
        )
    return True
