# SPDX-License-Identifier: Apache-2.0
"""The library's functions as operators of torch, ``torch.ops.kiln.NAME``: what torch.compile, graphs and autograd see of them."""

from __future__ import annotations

import concurrent.futures

from ..language.dtypes import DType
from .operation import OPERATIONS, Operation

NAMESPACE = "kiln"
_libraries: list = []  # torch forgets the operators of a Library that nobody holds


def register(torch) -> None:
    """Defines every operation, with kernels for tensors of the CPU (emulated) and of GPUs, a fake one, and its gradient or the refusal of
    one. ImportError where torch is too old for that."""
    if not hasattr(torch.library, "register_autograd"):
        raise ImportError(f"kiln.library needs torch 2.4 or newer, whose torch.library has register_autograd; this is {torch.__version__}")
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    _libraries.append(library)
    dtypes = {name: getattr(torch, name) for name in DType._known if hasattr(torch, name)}
    calls = _calls(torch)
    for operation in OPERATIONS.values():
        library.define(operation.schema, tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            library.impl(operation.name, operation.run, key)
        qualified = f"{NAMESPACE}::{operation.name}"
        torch.library.register_fake(qualified, _fake(operation, torch), lib=library)
        backward = operation.backward or _refusal(operation)
        torch.library.register_autograd(qualified, backward, setup_context=_saving(operation), lib=library)
        operation.tensor_type, operation.torch_dtypes, operation.torch = torch.Tensor, dtypes, torch
        operation.registered = getattr(getattr(torch.ops, NAMESPACE), operation.name).default
        operation.calls = calls()


def _calls(torch):
    """What makes a kiln._runtime.Calls for an operator, or None, where this torch does not say what is in the way of a call that it does not
    see."""
    try:
        from .._runtime import Calls

        keys, modes, profiler = (torch._C._dispatch_tls_local_include_set, torch._C._is_torch_function_mode_enabled,
                                 torch.autograd._profiler_enabled)
        usual = _on_a_new_thread(lambda: _usual_keys(torch, keys))
        tensors = (torch.Tensor, torch.nn.Parameter)
    except (ImportError, AttributeError):
        return lambda: None
    watched = ((keys, "raw_repr", usual), (modes, None, (0,)), (profiler, None, (0,)))
    return lambda: Calls(tensors=tensors, constants=(torch.dtype,), empty=torch.empty, grad_enabled=torch.is_grad_enabled, watched=watched)


def _usual_keys(torch, keys) -> tuple:
    """The keys that torch's dispatcher adds to every operator's while no mode, no transformation and no tracer is at work."""
    found = []
    for inference in (False, True):
        with torch.inference_mode(inference):
            found.append(keys().raw_repr())
    return tuple(found)


def _on_a_new_thread(function):
    """Its result where nothing of this thread's state is."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def _saving(operation: Operation):
    """What torch calls with these three keywords; nothing where there is no gradient."""
    if operation.save is None:
        return None

    def setup_context(ctx, inputs, output):
        operation.save(ctx, inputs, output)

    return setup_context


def _fake(operation: Operation, torch):
    """Empty results of the right shapes and dtypes, of the first argument's device."""

    def fake(*arguments):
        results = operation.check(*operation.specs(arguments))
        made = [arguments[0].new_empty(result.shape, dtype=getattr(torch, result.dtype)) for result in results]
        return made[0] if len(made) == 1 else tuple(made)

    return fake


def _refusal(operation: Operation):
    def backward(context, *gradients):
        raise NotImplementedError(f"kiln.library.{operation.name} has no gradient: {operation.instead}")

    return backward
