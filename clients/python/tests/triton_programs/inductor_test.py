# SPDX-License-Identifier: Apache-2.0
"""What torch.compile's generated kernels and their launchers ask of the package: kernels in the manner of Inductor's, compiled by
triton.compile(ASTSource(…)) and launched by the result itself."""

import inspect
import pickle
import warnings

import numpy as np
import pytest
import triton
import triton.language as tl
from kiln import CompileError, NoEffectWarning
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.language.standard import _log2
from triton.runtime.autotuner import OutOfResources, PTXASError
from triton.runtime.cache import triton_key

rng = np.random.default_rng(11)


# In the manner of torch/_inductor/runtime/triton_helpers.py.


@triton.jit
def as_block(x):
    return x + tl.zeros((1,), tl.int1)


@triton.jit
def is_float(x):
    return as_block(x).dtype.is_floating()


@triton.jit
def greater(a, b):
    mask = a > b
    if is_float(a):
        mask |= a != a
    return tl.where(mask, a, b)


@triton.jit
def first_greatest(a, i, b, j):
    mask, equal = a > b, a == b
    if is_float(a):
        a_nan, b_nan = a != a, b != b
        mask |= a_nan and not b_nan
        equal |= a_nan and b_nan
    mask |= equal & (i < j)
    return tl.where(mask, a, b), tl.where(mask, i, j)


@triton.jit
def welford_step(value, mean, m2, weight, first):
    if first:
        return value, tl.zeros_like(m2), tl.full(weight.shape, 1, weight.dtype)
    else:
        delta = value - mean
        new_weight = weight + 1
        new_mean = mean + delta / new_weight
        return new_mean, m2 + delta * (value - new_mean), new_weight


@triton.jit
def welford_both(mean_a, m2_a, w_a, mean_b, m2_b, w_b):
    delta, weight = mean_b - mean_a, w_a + w_b
    part = tl.where(weight == 0.0, 0.0, w_b / weight)
    return mean_a + delta * part, m2_a + m2_b + delta * delta * w_a * part, weight


@triton.jit
def floored(a, b):
    whole, rest = a // b, a % b
    return tl.where((a < 0) != (b < 0), tl.where(rest != 0, whole - 1, whole), whole)


@triton.jit
def bits_as(value, TYPE):
    TYPE = tl.core._constexpr_to_value(TYPE)
    word = tl.core.get_int_dtype(bitwidth=value.dtype.primitive_bitwidth, signed=False)
    return value.to(word, bitcast=True).to(TYPE)


@triton.jit
def normalized(in_ptr0, out_ptr0, out_ptr1, xnumel, rnumel, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):
    xnumel = 7
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    rbase = tl.arange(0, RBLOCK)[None, :]
    x0 = xindex
    mean, m2, weight = tl.zeros([XBLOCK, RBLOCK], tl.float32), tl.zeros([XBLOCK, RBLOCK], tl.float32), tl.zeros([XBLOCK, RBLOCK], tl.float32)
    for roffset in range(0, rnumel, RBLOCK):
        rindex = roffset + rbase
        rmask = rindex < rnumel
        r1 = rindex
        tmp0 = tl.load(in_ptr0 + (r1 + (rnumel * x0)), rmask & xmask, eviction_policy="evict_last", other=0.0).to(tl.float32)
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, RBLOCK])
        mean_next, m2_next, weight_next = welford_step(tmp1, mean, m2, weight, roffset == 0)
        mean = tl.where(rmask & xmask, mean_next, mean)
        m2 = tl.where(rmask & xmask, m2_next, m2)
        weight = tl.where(rmask & xmask, weight_next, weight)
    tmp2, tmp3, tmp4 = tl.reduce((mean, m2, weight), 1, welford_both)
    tmp2, tmp3 = tmp2[:, None], tmp3[:, None]
    tl.store(out_ptr1 + (x0), tmp2, xmask)
    for roffset in range(0, rnumel, RBLOCK):
        rindex = roffset + rbase
        rmask = rindex < rnumel
        tmp5 = tl.load(in_ptr0 + (rindex + (rnumel * x0)), rmask & xmask, eviction_policy="evict_first", other=0.0).to(tl.float32)
        tl.store(out_ptr0 + (rindex + (rnumel * x0)), (tmp5 - tmp2) * tl.extra.libdevice.rsqrt(tmp3 / rnumel + 1e-05), rmask & xmask)


@triton.jit
def found(in_ptr0, out_ptr0, out_ptr1, out_ptr2, xnumel, r0_numel, XBLOCK: tl.constexpr):
    """A persistent reduction of one row."""
    xnumel = 1
    r0_numel = 100
    R0_BLOCK: tl.constexpr = 128
    xoffset = tl.program_id(0) * XBLOCK
    xindex = tl.full([1], xoffset, tl.int32)
    xmask = tl.full([R0_BLOCK], True, tl.int1)
    r0_index = tl.arange(0, R0_BLOCK)[:]
    r0_mask = r0_index < r0_numel
    r0_0 = r0_index
    tmp0 = tl.load(in_ptr0 + (r0_0), r0_mask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [R0_BLOCK])
    tmp2 = tl.where(r0_mask, tmp1, float("-inf"))
    tmp3, tmp4 = tl.reduce((tmp2, tl.broadcast_to(r0_index, tmp2.shape)), 0, first_greatest)
    tl.store(out_ptr0 + (tl.full([1], 0, tl.int32)), as_block(tmp4).to(tl.int64), None)
    tl.store(out_ptr1 + (r0_0), bits_as(tmp0, tl.uint64), r0_mask)
    tmp5 = floored(r0_0 - 50, tl.full([1], 7, tl.int32))
    tl.store(out_ptr2 + (tl.broadcast_to(r0_0, [R0_BLOCK])), tmp5 + as_block(tl.reduce(tmp2, 0, greater)).to(tl.int32), r0_mask)


def compiled(fn, signature, constants, divisible=()):
    attrs = {(i,): [["tt.divisibility", 16]] for i in divisible}
    names = dict(zip(fn.arg_names, signature))
    source = ASTSource(fn, names, {(fn.arg_names.index(name),): value for name, value in constants.items()}, attrs)
    kernel = triton.compile(source, options={"num_warps": 2, "num_stages": 1, "debug": False, "sanitize_overflow": False})
    kernel._init_handles()
    return kernel


def launched(kernel, grid, *args, stream=0):
    """As TritonCompileResult's launcher does it: constants stand among the arguments."""
    assert isinstance(kernel, CompiledKernel) and kernel.metadata.num_warps == 2 and kernel.metadata.cluster_dims == (1, 1, 1)
    runner, function = kernel.run, kernel.function
    runner(*grid, stream, function, kernel.packed_metadata, kernel.launch_metadata(grid, stream, *args), kernel.launch_enter_hook,
           kernel.launch_exit_hook, *args)


@pytest.mark.parametrize("size", [32, 40])
def test_a_layer_norm(size):
    x = rng.standard_normal((7, size)).astype(np.float32)
    out, mean = np.zeros_like(x), np.zeros(7, np.float32)
    kernel = compiled(normalized, ["*fp32", "*fp32", "*fp32", "i32", "i32", "constexpr", "constexpr"], {"XBLOCK": 4, "RBLOCK": 16}, (0, 1, 2))
    launched(kernel, (2, 1, 1), x, out, mean, 7, size, 4, 16)
    np.testing.assert_allclose(mean, x.mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(out, (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nan", [False, True])
def test_a_persistent_reduction(nan):
    x = rng.integers(-40, 40, 100).astype(np.float32)
    x[[20, 60]] = np.nan if nan else 99
    index, bits, out = np.zeros(1, np.int64), np.zeros(100, np.uint64), np.zeros(100, np.int32)
    kernel = compiled(found, ["*fp32", "*i64", "*u64", "*i32", "i32", "i32", "constexpr"], {"XBLOCK": 1})
    launched(kernel, (1, 1, 1), x, index, bits, out, 1, 100)  # without the constants
    assert index[0] == 20 and np.array_equal(bits, x.view(np.uint32))
    if not nan:
        assert np.array_equal(out, (np.arange(100) - 50) // 7 + 99)


def test_arguments_may_be_parts_of_one_tensor():
    x = rng.standard_normal((7, 40)).astype(np.float32)
    wanted = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    memory = np.concatenate([x.ravel(), np.zeros(7, np.float32)])
    kernel = compiled(normalized, ["*fp32", "*fp32", "*fp32", "i32", "i32", "constexpr", "constexpr"], {"XBLOCK": 4, "RBLOCK": 64}, (0, 1, 2))
    launched(kernel, (2, 1, 1), memory, memory, memory[280:], 7, 40, 4, 64)  # changes its input
    np.testing.assert_allclose(memory[280:], x.mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(memory[:280].reshape(7, 40), wanted, rtol=1e-4, atol=1e-5)


@triton.jit
def turned(in_ptr0, in_ptr1, out_ptr0, ynumel, xnumel, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    """What is read along its columns is written along its rows."""
    ynumel = 128
    xnumel = 48
    yindex = tl.program_id(1) * YBLOCK + tl.arange(0, YBLOCK)[:, None]
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[None, :]
    xmask = xindex < xnumel
    x2 = xindex
    y0 = yindex % 64
    y1 = yindex // 64
    y3 = yindex
    tmp0 = tl.load(in_ptr0 + (y0 + 64 * x2 + 3072 * y1), xmask)
    tmp1 = tl.load(in_ptr1 + (y0), None, eviction_policy="evict_last")
    tl.store(out_ptr0 + (x2 + 48 * y3), tmp0 + tmp1, xmask)


@triton.jit
def summed(in_ptr0, in_ptr1, out_ptr0, xnumel, r0_numel, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    """A reduction over rows, by a quotient and a remainder of the columns' number."""
    xnumel = 128
    r0_numel = 20
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    x0 = xindex % 64
    x1 = xindex // 64
    _tmp3 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        tmp0 = tl.load(in_ptr0 + (x0 + 64 * r0_index + 1280 * x1), r0_mask, eviction_policy="evict_first", other=0.0)
        _tmp3 = tl.where(r0_mask, _tmp3 + tmp0, _tmp3)
    tmp3 = tl.sum(_tmp3, 1)[:, None]
    tl.store(out_ptr0 + (xindex), tmp3 * tl.load(in_ptr1 + (x0), None), None)


def code_of(fn, signature, constants, divisible, warps=2) -> str:
    names = dict(zip(fn.arg_names, signature))
    source = ASTSource(fn, names, {(fn.arg_names.index(name),): value for name, value in constants.items()},
                       {(i,): [["tt.divisibility", 16]] for i in divisible})
    return triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": warps, "num_stages": 1}).asm["ptx"]


_THREE = (["*fp32", "*fp32", "*fp32", "i32", "i32", "constexpr", "constexpr"], (0, 1, 2, 3, 4))


@pytest.mark.parametrize("blocks", [(16, 32), (64, 16), (128, 1)])
def test_what_is_read_along_its_columns(blocks):
    x, y = rng.standard_normal((2, 48, 64)).astype(np.float32), rng.standard_normal(64).astype(np.float32)
    out = np.zeros((128, 48), np.float32)
    constants = {"YBLOCK": blocks[0], "XBLOCK": blocks[1]}
    kernel = compiled(turned, _THREE[0], constants, _THREE[1])
    launched(kernel, (triton.cdiv(48, blocks[1]), 128 // blocks[0], 1), x, y, out, 128, 48, *blocks)
    np.testing.assert_array_equal(out, (x + y).transpose(0, 2, 1).reshape(128, 48))
    loads = [line for line in code_of(turned, _THREE[0], constants, _THREE[1]).splitlines() if "ld.global" in line]
    assert loads and all(".v2." in line or ".v4." in line for line in loads)


@pytest.mark.parametrize("block", [8, 32])
def test_a_reduction_over_rows(block):
    x, y = rng.standard_normal((2, 20, 64)).astype(np.float32), rng.standard_normal(64).astype(np.float32)
    out = np.zeros(128, np.float32)
    constants = {"XBLOCK": 64, "R0_BLOCK": block}
    launched(compiled(summed, _THREE[0], constants, _THREE[1]), (2, 1, 1), x, y, out, 128, 20, 64, block)
    np.testing.assert_allclose(out, (x.sum(1) * y).ravel(), rtol=1e-5, atol=1e-5)
    code = code_of(summed, _THREE[0], constants, _THREE[1])
    assert "ld.global.v4" in code and "ld.global.b32" not in code


@triton.jit
def product(arg_A, arg_B, out_ptr0, BLOCK: tl.constexpr):
    rm = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rn = tl.arange(0, 64)
    acc = tl.zeros((BLOCK, 64), tl.float32)
    for k in range(0, 2):
        rk = k * 32 + tl.arange(0, 32)
        acc += tl.dot(tl.load(arg_A + (rk[None, :] + 64 * (rm % 128)[:, None])), tl.load(arg_B + (rn[None, :] + 64 * rk[:, None])))
    tl.store(out_ptr0 + (rn[None, :] + 64 * rm[:, None]), acc, (rm < 128)[:, None] & (rn < 64)[None, :])


class Counted:
    """A kernel that notes the key of each launch."""

    def __init__(self, kernel, used):
        self.inner, self.used = kernel, used

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __call__(self, *args, **kwargs):
        self.used.append(self.inner.key)
        return self.inner(*args, **kwargs)


def test_the_first_kernel_serves_where_the_second_is_refused(monkeypatch):
    made = type(product)._compiled

    def refused(self, key, may_overlap, *rest):
        if not may_overlap:
            raise CompileError("INTERNAL", "refused")
        return made(self, key, may_overlap, *rest)

    monkeypatch.setattr(type(product), "_compiled", refused)
    kernel = compiled(product, ["*fp16", "*fp16", "*fp16", "constexpr"], {"BLOCK": 64}, (0, 1, 2))
    a, b, out = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((128, 64), (64, 64), (128, 64)))
    launched(kernel, (2, 1, 1), a, b, out, 64)
    np.testing.assert_array_equal(out, a.astype(np.float64) @ b.astype(np.float64))


def test_products_of_arguments_that_overlap_or_do_not(monkeypatch):
    signature, constants = ["*fp16", "*fp16", "*fp16", "constexpr"], {"BLOCK": 64}
    kernel = compiled(product, signature, constants, (0, 1, 2))
    assert kernel._for_shared.key != kernel.key
    a, b, out = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((128, 64), (64, 64), (128, 64)))
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    used = []
    for variant in (kernel, kernel._for_shared):
        monkeypatch.setattr(variant, "kernel", Counted(variant.kernel, used))
    launched(kernel, (2, 1, 1), a, b, out, 64)
    np.testing.assert_array_equal(out, wanted)
    launched(kernel, (2, 1, 1), a, b, out, 64)
    kernel(a.ravel(), b.ravel(), out.ravel(), 2, 1, 1)
    assert used == [kernel.key] * 3
    memory = np.concatenate([a, b])  # each block writes rows that it alone reads
    launched(kernel, (2, 1, 1), memory, memory[128:], memory, 64)
    np.testing.assert_array_equal(memory[:128], wanted)
    flat = memory.ravel()
    kernel(flat, flat[128 * 64 :], flat, 2, 1, 1)
    launched(kernel, (2, 1, 1), a, b, out, 64)
    assert used[3:] == [kernel._for_shared.key] * 2 + [kernel.key]
    code = code_of(product, signature, constants, (0, 1, 2), 4)
    assert "wgmma" in code and "cp.async.bulk.tensor" in code


class Builtins:
    """As torch.compile makes builtins of its own."""

    @staticmethod
    def next_power(n: tl.constexpr, *, _builder: object = None):
        assert isinstance(n, tl.constexpr)
        return tl.constexpr(triton.next_power_of_2(n.value))

    @staticmethod
    def if_mask(mask, value, *, _builder: object = None):
        return tl.constexpr(None) if isinstance(mask, tl.constexpr) and mask.value is None else value


next_power, if_mask = Builtins.next_power, Builtins.if_mask
next_power.__triton_builtin__ = if_mask.__triton_builtin__ = True


@triton.jit
def with_builtins(X, Z, N: tl.constexpr, SPLIT: tl.constexpr):
    at = tl.arange(0, next_power(N))
    mask = None if N == 64 else at < N
    x = tl.load(X + at, mask, other=if_mask(mask, 0.0))
    tl.store(Z + at, x + next_power(SPLIT), mask)


@pytest.mark.parametrize("size", [64, 50])
def test_builtins_of_a_program(size):
    x, z = rng.standard_normal(size).astype(np.float32), np.zeros(size, np.float32)
    with_builtins[(1,)](x, z, size, 5)
    np.testing.assert_array_equal(z, x + 8)


def through_pickle(kernel):
    """As torch.compile's workers hand on what they have compiled: they empty the function, and take the attributes of the kernel apart."""
    fn = kernel.src.fn
    before = fn.fn, fn.__globals__, fn.used_global_vals, fn.repr, fn._hash_lock
    assert fn.repr(fn) == "found"
    fn.fn = fn.__globals__ = fn.used_global_vals = fn._hash_lock = None
    parts = pickle.dumps({**kernel.__dict__, "metadata": kernel.metadata, "module": None, "function": None, "run": None})
    fn.fn, fn.__globals__, fn.used_global_vals, fn.repr, fn._hash_lock = before
    other = CompiledKernel.__new__(CompiledKernel)
    other.__dict__.update(pickle.loads(parts))
    return other


def test_a_kernel_from_another_process():
    kernel = compiled(found, ["*fp32", "*i64", "*u64", "*i32", "i32", "i32", "constexpr"], {"XBLOCK": 1})
    other = through_pickle(kernel)
    other._init_handles()
    assert other.hash == kernel.hash and other.src.fn.fn is None and [p.num for p in other.src.fn.params if p.is_constexpr] == [6]
    x = rng.standard_normal(100).astype(np.float32)
    index, bits, out = np.zeros(1, np.int64), np.zeros(100, np.uint64), np.zeros(100, np.int32)
    launched(other, (1, 1, 1), x, index, bits, out, 1, 100)
    assert index[0] == x.argmax() and np.array_equal(bits, x.view(np.uint32))
    with pytest.raises(ValueError, match="found was unpickled, and its statements stayed behind"):
        other.prim_func.script()
    assert len(pickle.loads(pickle.dumps(kernel.kernel)).prim_func.serialized) == len(kernel.prim_func.serialized)


class OnGpu:
    """In the place of a kernel for a GPU."""

    target, told = "cuda:sm_90a", None

    def __call__(self, *args, stream):
        self.told = args, stream


class Tensor:
    def data_ptr(self):
        return 4096


def test_on_a_gpu_a_launch_passes_addresses():
    signature = ["*fp32", "*i64", "*u64", "*i32", "i32", "i32", "constexpr"]
    source = ASTSource(found, dict(zip(found.arg_names, signature)), {(6,): 1}, {(0,): [["tt.divisibility", 16]]})
    kernel = triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 2})
    kernel.kernel = OnGpu()
    for constants in ((1,), ()):
        kernel.run(3, 2, 1, 77, None, None, None, None, None, *[Tensor()] * 4, 1, 100, *constants)
        assert kernel.kernel.told == ((4096, 4096, 4096, 4096, 1, 100, 3, 2, 1), 77)


@triton.jit
def telling(W, Z, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(Z + at, tl.load(W.to(tl.pointer_type(tl.int32)) + at))
    tl.device_print("done", tl.program_id(0))


def test_on_a_gpu_a_kernel_that_prints_takes_addresses(monkeypatch):
    class Telling(OnGpu):
        def __call__(self, *args):
            self.told = args

    monkeypatch.setattr("kiln.triton.messages._zeros", lambda kernel, arguments, count: np.zeros(count, np.int32))
    kernel = triton.compile(ASTSource(telling, {"W": "*u8", "Z": "*i32", "N": "constexpr"}, {(2,): 16}, {}), GPUTarget("cuda", 90, 32), {})
    kernel.kernel = Telling()
    kernel.run(3, 2, 1, 0, None, None, None, None, None, Tensor(), Tensor(), 16)
    assert kernel.kernel.told[:-1] == (4096, 4096, 4096, 3, 2, 1)


def test_hooks_are_told_of_a_launch():
    x, index, bits, out = np.zeros(100, np.float32), np.zeros(1, np.int64), np.zeros(100, np.uint64), np.zeros(100, np.int32)
    kernel = compiled(found, ["*fp32", "*i64", "*u64", "*i32", "i32", "i32", "constexpr"], {"XBLOCK": 1})
    told = []
    kernel.run(1, 1, 1, 0, kernel.function, kernel.packed_metadata, "facts", lambda x: told.append(("in", x)), lambda x: told.append(("out", x)),
               x, index, bits, out, 1, 100, 1)
    assert told == [("in", "facts"), ("out", "facts")]
    with pytest.raises(TypeError, match="takes 6 or 7 arguments, and 3 are given"):
        kernel.run(1, 1, 1, 0, kernel.function, kernel.packed_metadata, None, None, None, x, index, bits)


def _added(number):
    @triton.jit
    def helper(x):
        return x + NUMBER

    @triton.constexpr_function
    def static(n):
        return n

    NUMBER = tl.constexpr(number)
    return helper, static


def test_keys_have_in_them_what_a_kernel_names():
    def kernel_of(helper, static=None, number=1):
        NUMBER = tl.constexpr(number)

        @triton.jit
        def kernel(X):
            tl.store(X, helper(tl.load(X)) + NUMBER + static(3))

        return kernel

    (one, static), (other, _) = _added(1), _added(2)
    assert kernel_of(one, static).cache_key == kernel_of(one, static).cache_key
    keys = {kernel_of(one, static).cache_key, kernel_of(other, static).cache_key, kernel_of(one, static, 2).cache_key, kernel_of(one).cache_key}
    assert len(keys) == 4


def test_an_allocator_is_told_of_once():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):  # as before each launch
            triton.set_allocator(lambda size, align, stream: None)
    assert [warning.category for warning in told] == [NoEffectWarning] and "set_allocator" in str(told[0].message)


def test_inductor_is_not_told_of_its_allocators():
    line = compile("triton.set_allocator(lambda size, align, stream: None)", "graph.py", "exec")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        exec(line, {"__name__": "torch._inductor.runtime.compile_tasks.c1", "triton": triton})
        assert not told
        for _ in range(2):
            exec(line, {"__name__": "program", "triton": triton})
            exec(compile("triton.set_allocator(None)", "graph.py", "exec"), {"__name__": "program", "triton": triton})
    assert len(told) == 1


def test_names_that_inductor_imports():
    assert issubclass(PTXASError, Exception) and issubclass(OutOfResources, Exception) and isinstance(triton_key(), str) and _log2 is not None
    assert GPUTarget("cuda", 90, 32).arch == 90 and "_semantic" not in inspect.signature(tl.core.view).parameters
    for backend in triton.backends.backends.values():
        triton.runtime.driver.set_active(backend.driver())
    assert normalized.cache_key == normalized.cache_key != found.cache_key and normalized.constexprs == [5, 6]
    assert normalized.fn.__name__ == "normalized" and "xnumel = 7" in normalized.src and normalized.used_global_vals == {}
    with normalized._hash_lock:
        assert normalized.__globals__ is globals()
    assert triton.knobs.runtime.launch_enter_hook is None
    backend = triton.compiler.compiler.make_backend(triton.runtime.driver.driver.active.get_current_target())
    assert backend.hash() and backend.parse_options({"num_warps": 8, "XBLOCK": 1}).__dict__.items() >= {"num_warps": 8, "num_stages": 3}.items()
    assert "XBLOCK" not in backend.parse_options({"XBLOCK": 1}).__dict__
