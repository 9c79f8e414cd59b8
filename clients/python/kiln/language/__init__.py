# SPDX-License-Identifier: Apache-2.0
"""The tile language: ``import kiln.language as T``. Names and meaning are TileLang's."""

from ..names import unknown as _unknown
from . import dtypes as _dtypes
from .atomics import *  # noqa: F403
from .awaited import *  # noqa: F403
from .buffer import LocalVar
from .dtypes import DType, as_dtype
from .dtypes import DType as dtype
from .bits import *  # noqa: F403
from .clusters import *  # noqa: F403
from .expr import Expr, as_expr, floordiv, floormod, truncdiv, truncmod
from .elsewhere import INSTEAD as _INSTEAD
from .function import (
    FragmentBuffer, LocalBuffer, Ref, SharedBuffer, StridedTensor, Tensor, const, dynamic, empty, macro, prim_func, symbolic,
)
from .fp8 import determine_fp8_type, determine_torch_fp8_type
from .functions import *  # noqa: F403
from .gathers import c2d_im2col, im2col, transpose
from .kinds import PrimExpr, Var
from .lanes import *  # noqa: F403
from .launch import *  # noqa: F403
from .launch import Kernel
from .layout import Fragment, Layout
from .loops import Parallel, Persistent, Pipelined, grid, serial, unroll, vectorized
from .math import *  # noqa: F403
from .pointers import *  # noqa: F403
from .program import PrimFunc
from .roles import *  # noqa: F403
from .rng import *  # noqa: F403
from .rounding import *  # noqa: F403
from .reducers import alloc_reducer, finalize_reducer, reducer_init, reducer_update
from .thread_reductions import attr, comm_reducer, evaluate, tvm_thread_allreduce
from .scripted import *  # noqa: F403
from .sparse import gemm_sp
from .tile_ops import *  # noqa: F403
from .trace import TraceError
from .views import reshape, view
from .votes import *  # noqa: F403
from .warp_products import ptx_mma

globals().update(_dtypes.NAMES)
Serial, Unroll, Vectorized, parallel = serial, unroll, vectorized, Parallel
inline = macro
Buffer = Tensor  # the older name of the annotation


def __getattr__(name):
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(name)
    message = f"T.{name} is not part of Kiln's tile language in this version"
    if name in _INSTEAD:
        raise AttributeError(f"{message}: {_INSTEAD[name]}", name=name, obj=None)
    raise _unknown(message, name, _names(), "T.")


def _names() -> list[str]:
    """What programs may use: all but the modules that define it."""
    return [name for name, value in globals().items() if not name.startswith("_") and not isinstance(value, type(_dtypes))]
