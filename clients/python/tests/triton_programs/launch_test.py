# SPDX-License-Identifier: Apache-2.0
"""Launches: classes of arguments, options, autotune, heuristics, and the package itself."""

import os
import pathlib
import re
import subprocess
import sys
import types

import kiln
import numpy as np
import pytest
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def scaled(x, out, n, factor, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at * stride, tl.load(x + at * stride, at < n) * factor, at < n)


@triton.jit(do_not_specialize=["n", "stride"])
def unspecialised(x, out, n, factor, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at * stride, tl.load(x + at * stride, at < n) * factor, at < n)


X = np.arange(64, dtype=np.float32)


def launched(kernel, n=48, factor=2.0, stride=1, **options):
    out = np.zeros(64, np.float32)
    made = kernel[(triton.cdiv(n, 16),)](X, out, n, factor, stride, BLOCK=16, **options)
    expected = np.where(np.arange(64) < n * stride, np.where(np.arange(64) % stride == 0, X * factor, 0), 0)
    assert np.array_equal(out, expected)
    return made


def text(kernel, *values):
    return kernel.program(X, X.copy(), *values, BLOCK=16).script()


def test_one_is_compiled_in_and_multiples_of_16_are_promised():
    assert "stride: int32" not in text(scaled, 48, 2.0, 1) and "assume mod(n, 16) == 0" in text(scaled, 48, 2.0, 1)
    assert "stride: int32" in text(scaled, 47, 2.0, 2) and "assume mod(n" not in text(scaled, 47, 2.0, 2)
    assert "stride: int32" in text(unspecialised, 48, 2.0, 1) and "assume mod(n" not in text(unspecialised, 48, 2.0, 1)
    assert "n: int64" in text(scaled, 1 << 40, 2.0, 1) and "factor: float32" in text(scaled, 5, 1.0, 1)
    assert "factor: int32" in text(scaled, 5, 3, 1) and "factor" not in text(scaled, 5, 1, 1)


def test_that_a_pointer_leads_to_a_multiple_of_16_elements_is_promised():
    """Counted from the element that it points to, to the end of its storage."""
    programs = [scaled.program(x, X.copy(), 20, 2.0, 2, BLOCK=16).script() for x in (X, X[16:], X[:5], X[1:])]
    promised = ["assume (x_size % 16) == 0" in program for program in programs]
    assert promised == [True, True, True, False]


def test_a_kernel_refuses_a_pointer_that_breaks_the_promise_it_was_compiled_for():
    made = launched(scaled)
    with pytest.raises((kiln.KilnError, ValueError), match="x_size"):
        made(np.ones(20, np.float32), np.zeros(64, np.float32), 48, 2.0, 3)


@triton.jit
def doubled(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * 2, at < n)


@triton.jit
def doubled_rows(x, out, stride, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(out + row * stride + at, tl.load(x + row * stride + at, at < columns) * 2, at < columns)


@pytest.mark.parametrize("size, wide", [(1024, True), (1040, True), (1023, False)])
def test_masked_vectors_and_rows_move_16_bytes_at_a_time(size, wide, emulated):
    x = np.ones((2, size), np.float32)
    for kernel, values in ((doubled, (2 * size,)), (doubled_rows, (size, size))):
        source = kiln.compile(kernel.program(x, x.copy(), *values, BLOCK=2048), target="cuda:sm_90a").get_kernel_source()
        full = wide or kernel is doubled  # at either end of which elements go one by one
        assert all((re.search(access, source) is not None) == full for access in (r"ld\.global[.:\w]*\.v4\.b32", r"st\.global[.:\w]*\.v4\.b32"))


@pytest.mark.parametrize("first, size, n", [(0, 1024, 1024), (0, 1024, 1008), (16, 1024, 1008), (0, 1024, 1001), (0, 1008, 1024), (1, 1024, 960),
                                            (0, 16, 0)])
def test_wide_accesses_end_where_the_mask_or_the_storage_ends(first, size, n):
    x, out = np.arange(size, dtype=np.float32), np.full(size, -1, np.float32)
    doubled[(triton.cdiv(max(n, 1), 256),)](x[first:], out[first:], n, BLOCK=256)
    last = min(first + n, size)
    assert (out[first:last] == 2 * x[first:last]).all() and (out[:first] == -1).all() and (out[last:] == -1).all()


def test_kernels_are_kept_by_the_classes_of_their_arguments():
    first = launched(scaled)
    assert launched(scaled, n=32, factor=5.0) is first and launched(scaled, n=np.int64(16)) is first
    others = [launched(scaled, n=30, stride=2), launched(scaled, n=33), launched(scaled, num_warps=2), launched(scaled, factor=2)]
    assert len({id(k) for k in (first, *others)}) == 5
    assert launched(unspecialised) is launched(unspecialised, n=33) is launched(unspecialised, n=20, stride=3)


def test_a_warm_up_compiles_and_does_not_run():
    out = np.zeros(64, np.float32)
    kernel = scaled.warmup(X, out, 64, 2.0, 1, BLOCK=16, grid=(4,))
    assert kernel.target == "emu:sm_90a" and not out.any()
    assert scaled[(0,)](X, out, 64, 2.0, 1, BLOCK=16) is kernel and not out.any()


FACTOR = tl.constexpr(3)


@triton.jit
def of_a_global(out):
    tl.store(out, FACTOR)


def test_a_constant_that_changed_is_compiled_anew(monkeypatch):
    out = np.zeros(1, np.int32)
    of_a_global[(1,)](out)
    assert out[0] == 3
    monkeypatch.setitem(globals(), "FACTOR", tl.constexpr(4))
    of_a_global[(1,)](out)
    assert out[0] == 4


@triton.jit
def in_a_grid(out, W: tl.constexpr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(out + at, at * W)


@pytest.mark.parametrize("grid", [(5,), (3, 4), (2, 3, 4), 6, lambda meta: (meta["W"],)])
def test_grids(grid):
    out = np.zeros(24, np.int32)
    in_a_grid[grid](out, W=7)
    count = 6 if grid == 6 else 7 if callable(grid) else int(np.prod(grid))
    assert np.array_equal(out, np.where(np.arange(24) < count, np.arange(24) * 7, 0))


def tuned(configs, **more):
    @triton.autotune(configs=configs, key=["n"], **more)
    @triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
    @triton.jit
    def kernel(x, out, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x + at, at < n)
        if EVEN:
            v *= 2
        tl.store(out + at, v, at < n)

    return kernel


def test_autotune_takes_the_first_that_compiles_where_nothing_can_be_timed():
    kernel = tuned([triton.Config({"BLOCK": 0}), triton.Config({"BLOCK": 32, "num_warps": 8}, num_warps=2), triton.Config({"BLOCK": 64})])
    for n in (40, 41):
        out = np.zeros(64, np.float32)
        with pytest.warns(UserWarning, match="the first configuration that compiles is taken: num_warps: 8, .*BLOCK: 32"):
            made = kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](X, out, n)
        assert np.array_equal(out, np.where(np.arange(64) < n, X * (2 if n % 2 == 0 else 1), 0))
        assert kernel.best_config.kwargs["BLOCK"] == 32 and made.prim_func.kernels[0].threads == 256


def test_configurations_are_pruned_and_hooks_are_called():
    hooked = []
    configs = [triton.Config({"BLOCK": b}, pre_hook=lambda args: hooked.append(args["BLOCK"])) for b in (16, 32, 64)]
    kernel = tuned(configs, prune_configs_by={"early_config_prune": lambda configs, args: [c for c in configs if c.kwargs["BLOCK"] > 16],
                                              "perf_model": lambda BLOCK, **_: -BLOCK, "top_k": 1})
    out = np.zeros(64, np.float32)
    with pytest.warns(UserWarning, match="BLOCK: 64"):
        kernel[lambda meta: (triton.cdiv(40, meta["BLOCK"]),)](X, out, 40)
    assert hooked == [64]


def test_hooks_give_descriptors_their_blocks():
    def block(args):
        args["desc"].block_shape = [args["BLOCK"]]

    @triton.autotune([triton.Config({"BLOCK": b}, pre_hook=block) for b in (16, 32)], key=[])
    @triton.jit
    def doubled(desc, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK
        desc.store([at], desc.load([at]) * 2)

    x = np.arange(64, dtype=np.float32)
    desc = TensorDescriptor(x, [64], [1], [1])
    with pytest.warns(UserWarning, match="BLOCK: 16"):
        doubled[lambda meta: (triton.cdiv(64, meta["BLOCK"]),)](desc)
    assert np.array_equal(x, 2 * np.arange(64)) and desc.block_shape == [16]
    doubled.configs = doubled.configs[1:]
    fresh = TensorDescriptor(x, [64], [1], [1])
    doubled.warmup(fresh, grid=(2,))
    assert fresh.block_shape == [1]


def test_programs_derive_from_the_autotuner():
    class Counted(triton.runtime.autotuner.Autotuner):
        def __init__(self, fn, arg_names, configs, key, reset_to_zero, restore_value, **more):
            super().__init__(fn, arg_names, configs, key, reset_to_zero, restore_value, **more)
            self.launches = 0

        def run(self, *args, **more):
            self.launches += 1
            return super().run(*args, **more)

    out = np.zeros(64, np.float32)
    fn = tuned([]).fn
    kernel = Counted(fn, fn.arg_names, [triton.Config({"BLOCK": 64})], ["n"], None, None, do_bench=None)
    kernel[(1,)](X, out, 40)
    assert kernel.launches == 1 and (out[:40] == 2 * X[:40]).all() and not kernel.user_defined_pre_hook
    with pytest.raises(ValueError, match="is given the parameters a; the kernel has x, out, n"):
        Counted(fn, ["a"], [], [], None, None)
    with pytest.warns(kiln.NoEffectWarning, match="cache_results=True"):
        triton.autotune([], key=[], cache_results=True)(fn.fn)


def test_configurations_are_timed_where_there_is_a_gpu(monkeypatch):
    """The kernels are emulated and say otherwise; the times are made up."""
    monkeypatch.setattr("kiln.triton.autotuner._is_emulated", lambda kernel: False)
    out, seen = np.full(64, 5, np.float32), []

    def bench(call, quantiles):
        call()
        seen.append(out.copy())
        return [{16: 3.0, 32: 1.0, 64: 2.0}[kernel.fn.seen[-1]]]

    kernel = tuned([triton.Config({"BLOCK": b}) for b in (16, 32, 64)], do_bench=bench, restore_value=["out"])
    kernel.fn.seen, run = [], kernel.fn.run
    monkeypatch.setattr(kernel.fn, "run", lambda *args, **more: (kernel.fn.seen.append(more["BLOCK"]), run(*args, **more))[1])
    kernel[lambda meta: (triton.cdiv(40, meta["BLOCK"]),)](X, out, 40)
    assert kernel.best_config.kwargs["BLOCK"] == 32 and len(seen) == 3 and all((s == 5).all() for s in seen)
    assert np.array_equal(out, np.where(np.arange(64) < 40, X * 2, 5))


def test_what_measurements_left_is_reset_before_the_launch(monkeypatch):
    monkeypatch.setattr("kiln.triton.autotuner._is_emulated", lambda kernel: False)
    hooked = []

    @triton.autotune([triton.Config({"BLOCK": b}) for b in (16, 32)], key=["n"], reset_to_zero=["out"],
                     pre_hook=lambda args, reset_only=False: hooked.append((reset_only, args["BLOCK"])),
                     do_bench=lambda call, quantiles: [call(), call(), 1.0][2:])
    @triton.jit
    def counted(out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.atomic_add(out + at, 1, at < n)

    out = np.zeros(64, np.int32)
    counted[lambda meta: (triton.cdiv(40, meta["BLOCK"]),)](out, 40)
    assert np.array_equal(out, np.arange(64) < 40)
    assert hooked == [(False, 16)] * 2 + [(False, 32)] * 2 + [(True, 16)]


@triton.jit
def annotated(out, a: tl.int64, b: tl.uint8, c: tl.float64, d: "tl.int16", e: float, f: tl.float16):
    tl.static_assert(a.dtype == tl.int64 and b.dtype == tl.uint8 and c.dtype == tl.float64)
    tl.static_assert(d.dtype == tl.int16 and e.dtype == tl.float32 and f.dtype == tl.float16)
    tl.store(out, a * 2000000000)
    tl.store(out + 1, b + 255)
    tl.store(out + 2, c)
    tl.store(out + 3, d * 2000)
    tl.store(out + 4, e + f)


@pytest.mark.parametrize("a, b, c, d, e, f", [(3, 5, 1 / 3, 17, 2, 0.5), (1, 16, 1e300, 1, 2.5, 1)])
def test_an_annotation_gives_a_number_its_type(a, b, c, d, e, f):
    out = np.zeros(5)
    annotated[(1,)](out, a, b, c, d, e, f)
    assert out.tolist() == [a * 2e9, (b + 255) % 256, c, int(np.int32(d * 2000).astype(np.int16)), e + f]


@pytest.mark.parametrize("values, problem, words", [((1, 256), OverflowError, "argument b is 256, and the parameter is annotated uint8, which has 0"),
                                                    ((1.5, 1), TypeError, "argument a is 1.5, and the parameter is annotated int64")])
def test_a_number_that_its_annotation_has_no_place_for_is_refused(values, problem, words):
    with pytest.raises(problem, match=words):
        annotated[(1,)](np.zeros(5), *values, 1.0, 1, 1.0, 1.0)


@triton.jit
def of_a_pair(out, pair):
    tl.store(out, tl.full((), 7, tl.int32) * pair[0] / 4)
    for i in tl.static_range(len(pair)):
        tl.store(out + 1 + i, pair[i])


def test_constants_in_tuples_that_are_equal_and_of_other_types_are_other_kernels():
    made = [of_a_pair[(1,)](np.zeros(3, np.float32), (tl.constexpr(x), 5)) for x in (1, 1.0, True, 0.0, -0.0)]
    assert len({id(kernel) for kernel in made}) == 5
    out = np.zeros(3, np.float32)
    of_a_pair[(1,)](out, (tl.constexpr(-0.0), 5))
    assert np.signbit(out[1]) and out[2] == 5


@triton.jit
def of_any_number(out, *values):
    for i in tl.static_range(len(values)):
        tl.store(out + i, values[i])


def test_a_parameter_may_take_all_that_are_left():
    out = np.zeros(4, np.int32)
    of_any_number[(1,)](out, 4, 5, 6)
    of_any_number[(1,)](out)
    assert out.tolist() == [4, 5, 6, 0]


def test_constants_compute_with_numbers_of_any_kind():
    two = tl.constexpr(2)
    assert [(two * 0.5).value, (two + 2.5).value, (3.5 - two).value, (-two).value, (7 // two).value, (~two).value] == [1.0, 4.5, 1.5, -2, 3, -3]
    assert not two > 2.5 and two < 2.5 and (1 << two).value == 4
    assert triton.cdiv(7, 2) == 4 and triton.cdiv(7, -2) == -2 and [triton.next_power_of_2(n) for n in (0, 1, 5)] == [0, 1, 8]


def test_a_static_function_computes_with_constants():
    @triton.constexpr_function
    def half(x):
        return x // 2

    @triton.jit
    def kernel(out, N: tl.constexpr):
        at = tl.arange(0, half(N))
        tl.store(out + at, triton.cdiv(at + 1, 2) + triton.next_power_of_2(5))

    out = np.zeros(8, np.int32)
    kernel[(1,)](out, N=16)
    assert np.array_equal(out, (np.arange(8) + 2) // 2 + 8)


PROGRAM = """
import triton, triton.language as tl, triton.testing
from triton.language import math
from triton.runtime.autotuner import Config
from triton.runtime.jit import JITFunction
from triton.compiler.errors import CompilationError
assert tl is triton.language and math.exp is tl.exp and triton.testing.do_bench and Config is triton.Config
from triton.language.extra import libdevice
from triton.language.extra.libdevice import fast_dividef
from triton.tools.tensor_descriptor import TensorDescriptor
from triton.runtime import driver
from triton.backends.compiler import GPUTarget
assert isinstance(driver.active.get_current_target(), GPUTarget) and libdevice.asin and triton.knobs.runtime.interpret is False
for line in ("import triton.profiler", "from triton.language.extra import hip", "import triton.tools.mxfp"):
    try:
        exec(line)
    except ModuleNotFoundError as problem:
        assert "is not part of Kiln's compatibility package" in str(problem), problem
    except ImportError as problem:
        assert "cannot import name" in str(problem), problem
    else:
        raise SystemExit(line)
"""


def test_the_package_has_the_names_that_programs_import():
    homes = [str(pathlib.Path(package.__file__).parents[1]) for package in (kiln, triton)]
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join([*homes, *filter(None, sys.path)])})


class TorchLike:
    """What launches ask a torch tensor of the host."""

    def __init__(self, storage, offset, shape, steps):
        self.storage, self.offset, self.shape, self.steps = storage, offset, tuple(shape), tuple(steps)
        self.dtype, self.device = "torch.float32", type("Device", (), {"type": "cpu", "index": None})()

    def data_ptr(self):
        return self.storage.__array_interface__["data"][0] + 4 * self.offset

    def stride(self, dim=None):
        return self.steps if dim is None else self.steps[dim]

    def dim(self):
        return len(self.shape)

    def element_size(self):
        return 4

    def storage_offset(self):
        return self.offset

    def untyped_storage(self):
        return type("Storage", (), {"nbytes": lambda _: self.storage.nbytes})()

    def as_strided(self, shape, steps):
        return TorchLike(self.storage, self.offset, shape, steps)


@triton.jit
def turned(x, out, rows, columns, stride_r, stride_c, BLOCK: tl.constexpr):
    r, c = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    inside = (r < rows) & (c < columns)
    tl.store(out + r * columns + c, tl.load(x + r * stride_r + c * stride_c, inside), inside)


def test_tensors_of_torch_are_their_storage_from_their_first_element_on():
    memory, out = np.arange(200, dtype=np.float32), np.zeros((6, 9), np.float32)
    view = TorchLike(memory, 5, (6, 9), (3, 20))  # the last element is memory[5 + 15 + 160]
    turned[(1,)](view, TorchLike(out, 0, (6, 9), (9, 1)), 6, 9, 3, 20, BLOCK=16)
    assert np.array_equal(out, 5 + 3 * np.arange(6)[:, None] + 20 * np.arange(9))
    turned[(1,)](TorchLike(memory, 5, (3, 3), (1, 3)), TorchLike(memory, 0, (3, 3), (3, 1)), 3, 3, 1, 3, BLOCK=4)
    assert np.array_equal(memory[:9], (5 + np.arange(3)[:, None] + 3 * np.arange(3)).reshape(-1))


def test_what_prunes_is_given_the_keywords_of_the_launch():
    seen = {}

    def prune(configs, named_args, **kwargs):
        seen.update(kwargs)
        return [c for c in configs if c.kwargs["BLOCK"] == kwargs["n"]]

    kernel, out = tuned([triton.Config({"BLOCK": b}) for b in (16, 64)], prune_configs_by={"early_config_prune": prune}), np.zeros(64, np.float32)
    with pytest.warns(UserWarning):
        kernel[(1,)](X, out, n=64)
    assert seen["n"] == 64 and kernel.best_config.kwargs["BLOCK"] == 64 and np.array_equal(out, X * 2)


@triton.jit
def in_stages(x, out, n, BLOCK: tl.constexpr, num_stages: tl.constexpr):
    for first in tl.range(0, n, BLOCK, num_stages=num_stages):
        at = first + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, at < n) + num_stages, at < n)


def test_a_parameter_may_have_the_name_of_an_option():
    out = np.zeros(64, np.float32)
    made = in_stages.warmup(X, out, 50, BLOCK=16, num_stages=3, num_warps=2, grid=(1,))
    made[(1, 1, 1)](X, out, 50, 16, 2)
    assert np.array_equal(out[:50], X[:50] + 2) and not out[50:].any()


def test_a_key_that_is_no_parameter_and_libraries_of_a_launch_have_no_effect():
    with pytest.warns(kiln.NoEffectWarning, match="key has 'no_such'"):
        triton.autotune([triton.Config({"BLOCK": 64})], key=["no_such"])(scaled)
    out = np.zeros(64, np.float32)
    with pytest.warns(kiln.NoEffectWarning, match="extern_libs"):
        scaled[(1,)](X, out, 64, 2.0, 1, BLOCK=64, extern_libs={"libdevice": "libdevice.bc"})
    assert np.array_equal(out, X * 2)


def test_a_kernel_has_the_name_that_its_repr_makes():
    def named(specialization):
        ones = "_".join(name for name, value in specialization.constants.items() if value == 1)
        return f"kernel_{specialization.signature['value']}_{specialization.signature['x'].strip('*')}_{ones}"

    @triton.jit(repr=named)
    def kernel(value, one, x, BLOCK: tl.constexpr):
        pass

    assert kernel.warmup(1 << 40, 1, X, BLOCK=4, grid=(1,)).name == "kernel_i64_fp32_one"
    assert kernel.warmup(7, 3, X, BLOCK=1, grid=(1,)).name == "kernel_i32_fp32_BLOCK"
    with pytest.raises(ValueError, match="its repr gives 'a b'"):
        triton.jit(repr=lambda specialization: "a b")(kernel.fn).warmup(7, 3, X, BLOCK=1, grid=(1,))


@triton.jit
def with_all_threads(out, COUNT: tl.constexpr):
    count: tl.constexpr = COUNT()
    tl.store(out + tl.arange(0, count), tl.extra.cuda.num_warps())


@pytest.mark.parametrize("warps", [1, 4])
def test_the_number_of_threads_is_known(warps):
    out = np.zeros(256, np.int32)
    with_all_threads[(1,)](out, tl.extra.cuda.num_threads, num_warps=warps)
    assert np.array_equal(out, np.where(np.arange(256) < 32 * warps, warps, 0))


@triton.jit
def kept(out, value, wanted: tl.constexpr):
    tl.store(out, value)
    if value > 5 and wanted:
        tl.static_assert(False, "what is known to be false is not read")


def test_a_number_without_a_sign_and_a_condition_that_a_constant_decides():
    out = np.zeros(1, np.uint64)
    kept[(1,)](out, (1 << 64) - 3, False)
    assert out[0] == (1 << 64) - 3


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1])
def test_a_number_that_has_more_than_64_bits_is_refused(value):
    with pytest.raises(OverflowError, match="needs more than 64 bits"):
        kept[(1,)](np.zeros(1, np.uint64), value, False)


settings = types.SimpleNamespace(FACTOR=3)


@triton.jit
def of_an_attribute(out):
    tl.store(out, settings.FACTOR)


def test_an_attribute_that_changed_is_compiled_anew(monkeypatch):
    out = np.zeros(1, np.int32)
    for factor in (3, 4):
        monkeypatch.setattr(settings, "FACTOR", factor)
        of_an_attribute[(1,)](out)
        assert out[0] == factor


@triton.jit
def of_halves(x: "*fp16", y: tl.pointer_type(tl.int32), out: "*fp32", N: tl.constexpr):
    at = tl.arange(0, N)
    tl.static_assert(x.dtype.element_ty == tl.float16 and y.dtype.element_ty == tl.int32)
    tl.store(out + at, tl.load(x + at) + tl.load(y + at))


def test_an_annotation_gives_a_pointer_its_elements():
    x, y, out = np.arange(16, dtype=np.float16), np.arange(16, dtype=np.uint32), np.zeros(16, np.float32)
    for given in (x, x.view(np.int16)):
        of_halves[(1,)](given, y, out, 16)
        assert np.array_equal(out, 2 * np.arange(16))
    with pytest.raises(TypeError, match="the tensor's elements have 4 bytes, and those of fp16 have 2"):
        of_halves[(1,)](x.astype(np.float32), y, out, 16)


@triton.jit
def numbered(y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, at, mask=at < 100)


def test_a_grid_whose_indices_have_more_than_32_bits_is_refused():
    y = np.zeros(100, np.int32)
    numbered[(3,)](y, 64)
    np.testing.assert_array_equal(y, np.arange(100))
    with pytest.raises(ValueError, match="programs_0"):
        numbered[((1 << 25) + 1,)](y, 64)
