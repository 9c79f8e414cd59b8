# SPDX-License-Identifier: Apache-2.0
"""Kernels to call: tensors in, tensors out.

    import kiln.library as library
    y = library.rms_norm(x, weight)

Tensors of torch on a GPU run there, on torch's current stream; where torch is installed, every function is an operator of it
(``torch.ops.kiln.rms_norm``), which torch.compile and CUDA graphs take, and those with a gradient take part in autograd. numpy arrays, and
tensors of torch on the CPU, run in the emulator where no GPU is found and inside ``kiln.emulation()``; numpy arrays else travel to the GPU
and back. ``Bits`` stands for arrays of the types that numpy lacks.

A kernel is compiled at the first call that needs it and serves many sizes: of the first dimension of what varies from call to call (the
tokens of a batch) all in a range, so that no new batch size compiles anew for long. Arguments that do not fit are refused before anything
runs: TypeError for a wrong type or dtype, ValueError for a wrong shape, device or number; the message names the argument and what to pass.
Tensors need not be contiguous; those that are not are copied first, except that a matrix product takes a transposed matrix as it is.

``plan`` tells which program serves a call. The sizes of tiles of matrix products and of attention are the daemon's planner's choice, which it keeps;
a process asks once for each program and range of lengths."""

from . import operation as _operation
from .attention import attention, attention_backward, attention_with_lse
from .bits import Bits
from .block_sparse import block_sparse_attention
from .checks import Spec
from .decode import attention_decode, latent_attention, sparse_latent_attention
from .elementwise import rope, swiglu, transpose
from .norms import layer_norm, layer_norm_backward, norm_weight_backward, rms_norm, rms_norm_backward
from .operation import plan
from .products import gemv, matmul
from .quantized import GROUP_ROWS, grouped_matmul, interleave, quantize_rows, quantized_matmul, scaled_matmul
from .recurrent import linear_attention
from .reductions import amax, amin, mean, sum
from .scaled_attention import scaled_attention
from .softmax import cross_entropy, softmax

__all__ = ["Bits", "GROUP_ROWS", "Spec", "amax", "amin", "attention", "attention_backward", "attention_decode", "attention_with_lse",
           "block_sparse_attention", "cross_entropy", "gemv", "grouped_matmul", "interleave", "latent_attention", "layer_norm",
           "layer_norm_backward", "linear_attention", "matmul", "mean", "norm_weight_backward", "plan", "quantize_rows", "quantized_matmul",
           "rms_norm", "rms_norm_backward", "rope", "scaled_attention", "scaled_matmul", "softmax", "sparse_latent_attention", "sum", "swiglu",
           "transpose"]

try:
    import torch as _torch
except ImportError:
    pass
else:
    from .torch_operators import register as _register

    _register(_torch)
