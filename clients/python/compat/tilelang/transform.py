# SPDX-License-Identifier: Apache-2.0
from kiln import notices
from kiln.language.program import PrimFunc
from kiln.options import PassConfigKey

from . import _absent

__all__ = ["PassConfigKey", "apply_simplify", "simplify_prim_func"]


def apply_simplify(function, inline_let=False):
    """The function without the tensors that none of its statements names: calls do not give them. ``inline_let``: expressions are simplified
    either way."""
    if not isinstance(function, PrimFunc):
        raise ValueError(f"apply_simplify takes what T.prim_func gives, not {type(function).__name__}")
    named = _named(function.module)
    of_params = [param.tensor if param.HasField("tensor") else None for param in function.module.params]
    kept = [i for i, param in enumerate(function.params)
            if param.buffer is None or of_params[i] in named or any(not isinstance(extent, int) for extent in param.buffer.shape)]
    other = PrimFunc(function.name)
    other.__dict__.update(function.__dict__)
    other.params, other._module = [function.params[i] for i in kept], None
    other.outputs = [kept.index(i) for i in function.outputs if i in kept]
    return other


def _is_repeated(field) -> bool:
    """Protobuf 7 has no labels any more."""
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def _named(module) -> set:
    """The numbers of the buffers that statements and their expressions name."""
    named = {expr.ref for expr in module.exprs if expr.op == type(expr).DESCRIPTOR.fields_by_name["op"].enum_type.values_by_name["LOAD"].number}
    open_ = list(module.kernels)
    while open_:
        message = open_.pop()
        for field in message.DESCRIPTOR.fields:
            if field.name == "buffer":
                named.add(message.buffer)
            elif field.message_type is not None:
                value = getattr(message, field.name)
                if _is_repeated(field):
                    open_.extend(value)
                elif message.HasField(field.name):
                    open_.append(value)
    return named


def simplify_prim_func(function):
    """The function. Without effect, with a warning."""
    notices.no_effect("simplify_prim_func", "every program is simplified; leave it out")
    return function


__path__ = []  # so that "tilelang.transform.simplify" can be imported
__getattr__ = _absent.getter(__name__)
