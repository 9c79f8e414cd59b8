# SPDX-License-Identifier: Apache-2.0
"""``triton.testing``: timing and comparison."""

from __future__ import annotations

from ..bench import do_bench as _do_bench


def do_bench(fn, warmup=25, rep=100, grad_to_none=None, quantiles=None, return_mode="mean"):
    """Milliseconds of a call of ``fn``, as kiln.do_bench measures them; ``return_mode="all"`` is not kept. ``grad_to_none``: tensors whose
    gradients are dropped before each call."""
    if return_mode == "all":
        raise ValueError("do_bench(return_mode=\"all\"): use quantiles=")
    if grad_to_none is None:
        return _do_bench(fn, warmup, rep, quantiles=quantiles, return_mode=return_mode)

    def call():
        for tensor in grad_to_none:
            tensor.grad = None
        fn()

    return _do_bench(call, warmup, rep, quantiles=quantiles, return_mode=return_mode)


def assert_close(x, y, atol=None, rtol=None, err_msg=""):
    """AssertionError where two tensors or arrays differ: by more than 1e-2, unless ``atol`` and ``rtol`` say else."""
    import numpy

    x, y = (numpy.asarray(v.detach().float().cpu() if hasattr(v, "detach") else v) for v in (x, y))
    numpy.testing.assert_allclose(x, y, atol=1e-2 if atol is None else atol, rtol=0.0 if rtol is None else rtol, err_msg=err_msg)
