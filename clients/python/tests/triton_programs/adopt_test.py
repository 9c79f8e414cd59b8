# SPDX-License-Identifier: Apache-2.0
"""Kernels of an installed Triton. What is installed here has the names and the attributes of Triton's own and computes nothing."""

import os
import pathlib
import subprocess
import sys
import textwrap

FILES = {
    "triton/__init__.py": """
        from .runtime.jit import JITFunction, jit, constexpr_function
        from .runtime.autotuner import Autotuner, Config, Heuristics, autotune, heuristics
        from ._utils import cdiv
        from . import language
    """,
    "triton/_utils.py": "from .runtime.jit import constexpr_function\n@constexpr_function\ndef cdiv(x, y): return None\n",
    "triton/runtime/__init__.py": "",
    "triton/runtime/jit.py": """
        import inspect
        class Param:
            def __init__(self, name, fixed): self.name, self.do_not_specialize, self.do_not_specialize_on_alignment = name, fixed, False
        class JITFunction:
            def __init__(self, fn, fixed=(), debug=None):
                self.fn, self._repr, self.debug = fn, None, debug
                self.params = [Param(name, name in fixed) for name in inspect.signature(fn).parameters]
        class ConstexprFunction:
            def __init__(self, fn): self.fn = fn
        constexpr_function = ConstexprFunction
        def jit(fn=None, do_not_specialize=(), debug=None):
            return JITFunction(fn, do_not_specialize, debug) if fn else lambda fn: JITFunction(fn, do_not_specialize, debug)
    """,
    "triton/runtime/autotuner.py": """
        class Config:
            def __init__(self, kwargs, num_warps=4, num_stages=3, num_ctas=1, pre_hook=None):
                self.kwargs, self.num_warps, self.num_stages, self.num_ctas = kwargs, num_warps, num_stages, num_ctas
                self.maxnreg, self.pre_hook = None, pre_hook
        class Autotuner:
            def __init__(self, fn, configs, key, do_bench):
                self.fn, self.configs, self.keys, self.reset_to_zero, self.restore_value = fn, configs, key, [], []
                self._do_bench, self.num_warmups, self.num_reps, self.use_cuda_graph = do_bench, None, None, False
                self.pre_hook = self.post_hook = lambda *a, **k: 0
                self.user_defined_pre_hook = self.user_defined_post_hook = False
                self.perf_model = self.early_config_prune = None
        class Heuristics:
            def __init__(self, fn, values): self.fn, self.values = fn, values
        def autotune(configs, key, do_bench=None): return lambda fn: Autotuner(fn, configs, key, do_bench)
        def heuristics(values): return lambda fn: Heuristics(fn, values)
    """,
    "triton/tools/__init__.py": "",
    "triton/tools/tensor_descriptor.py": """
        class TensorDescriptor:
            def __init__(self, base, shape, strides, block_shape):
                self.base, self.shape, self.strides, self.block_shape, self.padding = base, shape, strides, block_shape, "zero"
    """,
    "triton/language/__init__.py": """
        from .core import *
        from .standard import sum
        from . import core as math
    """,
    "triton/language/core.py": """
        class constexpr:
            def __init__(self, value): self.value = value
        class dtype:
            def __init__(self, name): self.name = name
        float32, float16, int64 = dtype("fp32"), dtype("fp16"), dtype("int64")
        class range: pass
        def program_id(axis, _semantic=None): raise AssertionError
        def arange(start, end, _semantic=None): raise AssertionError
        def load(*a, _semantic=None): raise AssertionError
        def store(*a, _semantic=None): raise AssertionError
        def exp(x, _semantic=None): raise AssertionError
        def device_assert(cond, msg="", mask=None, _semantic=None): raise AssertionError
        def zeros(shape, dtype): raise AssertionError
        def of_tomorrow(x): raise AssertionError
        __all__ = [name for name in dir() if name[0] != "_"]
    """,
    "triton/language/standard.py": "from ..runtime.jit import jit\n@jit\ndef sum(x, axis=None): raise AssertionError\n",
    "triton/experimental/__init__.py": "",
    "triton/experimental/tle/__init__.py": "",
    "triton/experimental/tle/language/__init__.py": "from . import gpu\ndef cumsum(input, axis=0, _semantic=None): raise AssertionError\n",
    "triton/experimental/tle/language/gpu/__init__.py": """
        class scope:
            def __init__(self, name): self.name = name
        smem = scope("smem")
        def alloc(*a, _semantic=None): raise AssertionError
        def local_ptr(*a, _semantic=None): raise AssertionError
    """,
    "program.py": """
        import warnings
        import numpy as np
        import triton
        import triton.language as tl
        from triton.language import exp as e
        import helpers
        import kiln, kiln.triton
        from triton.tools.tensor_descriptor import TensorDescriptor

        FACTOR = tl.constexpr(3)

        @triton.jit
        def doubled(x):
            return x * 2

        @triton.constexpr_function
        def half(n):
            return n // 2

        @triton.autotune([triton.Config({"BLOCK": 64}, num_warps=2)], key=["n"])
        @triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
        @triton.jit(do_not_specialize=["n"])
        def kernel(X, OUT, TOTAL, n, shift: tl.int64, ELEMENT: tl.constexpr, EVEN: tl.constexpr, BLOCK: tl.constexpr,
                   POWER: tl.constexpr = tl.constexpr(2)):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            mask = at < n
            x = doubled(tl.load(X + at, mask=mask, other=0.0)) * FACTOR + e(tl.zeros((BLOCK,), dtype=ELEMENT)) * half(BLOCK)
            for i in tl.range(POWER):
                x = helpers.raised(x)
            tl.store(OUT + at, x + shift + (1 if EVEN else 0) + triton.cdiv(BLOCK, 60) + tl.math.exp(x * 0), mask=mask)
            tl.store(TOTAL + tl.program_id(0), tl.sum(tl.load(X + at, mask=mask, other=0.0), 0))

        def block(args):
            args["desc"].block_shape = [args["SIZE"]]

        def timed(call, quantiles):
            raise AssertionError

        @triton.autotune([triton.Config({"SIZE": size}, num_ctas=2, pre_hook=block) for size in (16, 32)], key=[], do_bench=timed)
        @triton.jit
        def through(desc, SIZE: tl.constexpr):
            at = tl.program_id(0) * SIZE
            desc.store([at], desc.load([at]) * 2)

        import triton.experimental.tle.language as tle
        from triton.experimental.tle.language import cumsum

        @triton.jit
        def extended(X):
            buffer = tle.gpu.alloc([8], tl.float32, scope=tle.gpu.smem)
            buffer.store(tl.load(X + tl.arange(0, 8)))
            before, total = cumsum(tl.load(tle.gpu.local_ptr(buffer)))
            tl.store(X + tl.arange(0, 8), before + total)

        @triton.jit
        def newer(X):
            tl.of_tomorrow(tl.load(X))

        @triton.jit(debug=True)
        def checks(X):
            tl.device_assert(tl.load(X) > 0, "not above 0")

        x = np.arange(100, dtype=np.float32)
        out, total = np.zeros_like(x), np.zeros(2, np.float32)
        mine = kiln.triton.adopt(kernel)
        assert mine is kiln.triton.adopt(kernel) and mine.arg_names == ["X", "OUT", "TOTAL", "n", "shift", "ELEMENT", "EVEN", "BLOCK", "POWER"]
        program = kiln.triton.adopt(kernel.fn.fn).program(x, out, total, 100, 5, tl.float32, True, 64).script()
        assert "int64" in program, program
        mine[lambda meta: (kiln.triton.cdiv(100, meta["BLOCK"]),)](x, out, total, 100, 5, tl.float32)
        assert (out == 6 * x + 32 + 2 + 5 + 1 + 2 + 1).all(), out
        assert total.tolist() == [x[:64].sum(), x[64:].sum()]
        tuned = kiln.triton.adopt(through)
        assert [config.num_ctas for config in tuned.configs] == [2, 2] and tuned.bench is timed
        y = np.arange(64, dtype=np.float32)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            tuned[lambda meta: (64 // meta["SIZE"],)](TensorDescriptor(y, [64], [1], [1]))
        assert (y == 2 * np.arange(64)).all(), y
        assert any("num_ctas" in str(warning.message) for warning in said), said
        z = np.arange(8, dtype=np.float32)
        kiln.triton.adopt(extended)[(1,)](z)
        assert z.tolist() == [28 + n * (n - 1) // 2 for n in range(8)], z
        for function, words in ((newer, "triton.language.of_tomorrow is not part"), (len, "not builtin_function"),
                                (checks, "device-side assert in program (0, 0, 0): not above 0")):
            try:
                kiln.triton.adopt(function)[(1,)](x)
            except (kiln.triton.CompilationError, TypeError, RuntimeError) as problem:
                assert words in str(problem), problem
            else:
                raise AssertionError(words)
        print("adopted")
    """,
    "helpers.py": "import triton\n@triton.jit\ndef raised(x):\n    return x + 1\n",
}


def test_a_kernel_of_an_installed_triton(tmp_path, address):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    ours = [folder for folder in sys.path if folder and not (pathlib.Path(folder) / "triton" / "_modules.py").exists()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *ours]), "KILN_ADDRESS": address, "KILN_AUTOSTART": "0"}
    done = subprocess.run([sys.executable, str(tmp_path / "program.py")], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.endswith("adopted\n"), done.stderr + done.stdout
