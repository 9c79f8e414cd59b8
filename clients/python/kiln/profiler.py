# SPDX-License-Identifier: Apache-2.0
"""Inputs for a kernel, comparison with a reference, timing. Needs torch."""

from __future__ import annotations

import enum

from . import _proto, notices
from .bench import do_bench, on_device
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


_SMALL = ("float16", "bfloat16", "float32", "tfloat32")


def supply(shape, dtype: DType, kind: TensorSupplyType = TensorSupplyType.Auto, device="cuda"):
    """A tensor of this shape and type, with the values that TileLang gives.

    Auto: uniform in (-1, 1) for floats of 16 and 32 bits (tfloat32 too), as Integer for all else. Integer: from -2 to 2; unsigned from 0 to 2;
    any int8 for eight-bit floats. Uniform: in (-1, 1). Normal: of mean -1 and deviation 1. Both are ones for int8. Randn: of mean 0 and
    deviation 1."""
    try:
        import torch
    except ImportError as absent:
        raise RuntimeError("making up inputs needs torch; pass tensors (input_tensors, set_autotune_inputs or supply_prog)") from absent

    storage = dtype.as_torch()
    if kind is TensorSupplyType.Auto:
        kind = TensorSupplyType.Uniform if dtype in _SMALL else TensorSupplyType.Integer
    elif dtype == "int8" and kind in (TensorSupplyType.Uniform, TensorSupplyType.Normal):
        kind = TensorSupplyType.One
    if kind in (TensorSupplyType.Zero, TensorSupplyType.One):
        return torch.full(shape, float(kind is TensorSupplyType.One), device=device).to(storage)
    if kind is TensorSupplyType.Integer:
        return _integers(torch, shape, dtype, device).to(storage)
    if kind is TensorSupplyType.Randn:
        return torch.randn(shape, device=device).to(storage)
    values = torch.empty(shape, device=device, dtype=torch.float32)
    return (values.uniform_(-1.0, 1.0) if kind is TensorSupplyType.Uniform else values.normal_(-1.0, 1.0)).to(storage)


def _integers(torch, shape, dtype: DType, device):
    if dtype.kind in "ub":
        return torch.randint(0, 3 if dtype.kind == "u" else 2, shape, device=device)
    if dtype.is_float and dtype.bits == 8:
        return torch.randint(-128, 128, shape, device=device, dtype=torch.int8)
    return torch.randint(-2, 3, shape, device=device)


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


class NeedsInputs(ValueError):
    """Inputs that nobody can make up."""


class Profiler:
    """Makes up inputs for one kernel, compares it with a reference, measures it. Called, it is the kernel."""

    def __init__(self, kernel, supply_type: TensorSupplyType = TensorSupplyType.Auto):
        self.kernel, self.supply_type = kernel, supply_type

    def with_default_adapter(self, _adapter):
        """The profiler itself. The adapter has no effect, with a warning."""
        notices.no_effect("Profiler.with_default_adapter", "the profiler calls the kernel itself; leave it out")
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
                raise NeedsInputs(f"{self.kernel.name} takes the scalar {param.name}; pass input_tensors")
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
                 return_mode="mean", dynamic_symbolic_constraints=None, device=None, early_stop_baseline=None):
        """Milliseconds of ``func`` (default: the kernel) on made-up or given inputs, as kiln.do_bench measures. ``warmup`` and ``rep``:
        milliseconds; ``n_warmup`` and ``n_repeat``: calls instead. ``dynamic_symbolic_constraints``: run-time dimensions by name. The other
        arguments are kiln.do_bench's."""
        with on_device(device):
            inputs = input_tensors or self.inputs(dynamic_symbolic_constraints)
        call = func or self.kernel
        return do_bench(lambda: call(*inputs), warmup, rep, n_warmup, n_repeat, quantiles, backend=backend, return_mode=return_mode,
                        device=device, early_stop_baseline=early_stop_baseline)

    @property
    def func(self):
        """The kernel."""
        return self.kernel

    def __call__(self, *args, **kwargs):
        return self.kernel(*args, **kwargs)


def _as_list(value) -> list:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def assert_close(actual, expected, rtol=1e-2, atol=1e-3, max_mismatched_ratio=0.001, verbose=False, equal_nan=True, check_device=True,
                 check_dtype=True, check_layout=True, check_stride=False, msg=None, base_name="actual", ref_name="expected"):
    """|actual - expected| ≤ atol + rtol · |expected| but for this share of the elements. Shapes must agree, and so must devices, dtypes,
    layouts and strides that are to be checked. ``verbose`` prints how many elements differ. True, or AssertionError, in which the tensors
    are called ``base_name`` and ``ref_name``, after ``msg``."""
    import torch

    _same("shape", tuple(actual.shape), tuple(expected.shape))
    if check_layout:
        _same("layout", actual.layout, expected.layout)
    if check_stride and actual.layout == expected.layout == torch.strided:
        _same("stride()", tuple(actual.stride()), tuple(expected.stride()))
    if check_device:
        _same("device", actual.device, expected.device)
    elif actual.device != expected.device:
        actual, expected = actual.cpu(), expected.cpu()
    if check_dtype:
        _same("dtype", actual.dtype, expected.dtype)
    a, b = (t.to_dense().double() if t.layout != torch.strided else t.double() for t in (actual, expected))
    wrong = ~torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)
    count, total = int(wrong.sum()), max(wrong.numel(), 1)
    if verbose:
        print(f"{count} of {wrong.numel()} elements of {base_name} differ from {ref_name}; {int(max_mismatched_ratio * wrong.numel())} may")
    if count > max_mismatched_ratio * total:
        worst = (a - b).abs().nan_to_num(float("inf")).max().item()
        first = [int(i) for i in wrong.nonzero()[0]]
        raise AssertionError(
            f"{msg or ''}{count} of {total} elements ({100 * count / total:.3f} %) of {base_name} differ from {ref_name} by more than "
            f"atol={atol} + rtol={rtol}·|{ref_name}|; the largest difference is {worst:.6g}; the first at {first}: "
            f"{base_name} {a[tuple(first)].item():.6g}, {ref_name} {b[tuple(first)].item():.6g}"
        )
    return True


def _same(what: str, actual, expected) -> None:
    if actual != expected:
        raise AssertionError(f"the {what} differs: {actual} and {expected}")
