# SPDX-License-Identifier: Apache-2.0
"""What programs ask of Triton's runtime: compiled kernels, sources, tables, knobs, and the device library."""

import math

import numpy as np
import pytest
import triton
import triton.language as tl
from kiln.errors import NoEffectWarning
from triton.compiler import ASTSource
from triton.language.extra import libdevice

rng = np.random.default_rng()


@triton.jit
def scaled(X, Z, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Z + at, tl.load(X + at, at < n) * factor, at < n)


def test_a_compiled_kernel_is_launched_again():
    x, z = rng.normal(size=100).astype(np.float32), np.zeros(100, np.float32)
    kernel = scaled.warmup(x, z, 100, 2.0, BLOCK=32, num_warps=2, grid=(1,))
    kernel._init_handles()
    assert kernel.metadata.num_warps == 2 and kernel.metadata.name == "scaled" and len(kernel.hash) == 64 and not z.any()
    kernel[(4, 1, 1)](x, z, 100, 2.0, 32)
    np.testing.assert_array_equal(z, x * 2)
    with pytest.raises(KeyError, match="tile program"):
        kernel.asm["ttgir"]
    z[:] = 0
    kernel[(4, 1, 1)](x, z, 100, 2.0)  # BLOCK is the kernel's own
    np.testing.assert_array_equal(z, x * 2)


def test_a_source_is_compiled_without_arguments():
    source = ASTSource(scaled, {"X": "*fp32", "Z": "*fp32", "n": "i32", "factor": "fp32", "BLOCK": "constexpr"}, {(4,): 64},
                       {(2,): [["tt.divisibility", 16]]})
    kernel = triton.compile(source, options={"num_warps": 2})
    assert kernel.metadata.num_warps == 2 and kernel.src.fn is scaled


def test_parameters_and_the_text_of_a_function():
    names = [(p.name, p.is_constexpr, p.has_default, p.num) for p in scaled.params]
    assert names[3:] == [("factor", False, False, 3), ("BLOCK", True, False, 4)] and scaled.src.startswith("def scaled(X, Z")
    other = triton.JITFunction(scaled.fn)
    other._unsafe_update_src(scaled.src.replace("* factor", "+ factor"))
    x, z = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    other[(1,)](x, z, 32, 3.0, BLOCK=32)
    np.testing.assert_array_equal(z, x + 3)


def test_a_table_is_measured(tmp_path, capsys):
    bench = triton.testing.Benchmark(["n"], [1, 2, 3], "how", ["a", "b"], ["first", "second"], "times", {"k": 10})
    mark = triton.testing.perf_report(bench)(lambda n, how, k: n * k if how == "a" else (n + k, 0, 0))
    mark.run(print_data=True, save_path=str(tmp_path))
    assert (tmp_path / "times.csv").read_text().splitlines() == ["n,first,second", "1,10,11", "2,20,12", "3,30,13"]
    assert "second" in capsys.readouterr().out
    with pytest.warns(NoEffectWarning, match="no plots"):
        mark.run(show_plots=True)


def test_settings_read_as_not_set_and_are_warned_of():
    with triton.knobs.cache.scope():
        with pytest.warns(NoEffectWarning, match=r"knobs.cache.dir"):
            triton.knobs.cache.dir = "/tmp"
    assert triton.knobs.cache.dir is None and triton.knobs.nvidia.ptxas.version


@triton.jit
def elementwise(X, Z, N: tl.constexpr, FN: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(Z + at, getattr(libdevice, FN)(tl.load(X + at)))


@pytest.mark.parametrize("name, reference, low, high", [
    ("asin", np.arcsin, -1, 1), ("acos", np.arccos, -1, 1), ("atan", np.arctan, -1e4, 1e4), ("sinh", np.sinh, -9, 9), ("cosh", np.cosh, -9, 9),
    ("asinh", np.arcsinh, -1e5, 1e5), ("acosh", np.arccosh, 1, 1e5), ("atanh", np.arctanh, -0.99, 0.99), ("tan", np.tan, -1.5, 1.5),
    ("log1p", np.log1p, -0.9, 50), ("expm1", np.expm1, -5, 5), ("log10", np.log10, 1e-3, 1e3), ("exp10", lambda x: 10.0**x, -5, 5),
    ("cbrt", np.cbrt, -1e4, 1e4), ("round", lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), -20, 20), ("rint", np.rint, -20, 20),
    ("saturatef", lambda x: np.clip(x, 0, 1), -2, 2), ("erfc", np.vectorize(math.erfc), -3, 5), ("lgamma", np.vectorize(math.lgamma), -3.4, 40),
    ("erfinv", lambda x: np.vectorize(lambda y: bisected(math.erf, y))(x), -0.999, 0.999),
    ("erfcx", np.vectorize(lambda x: math.erfc(x) * math.exp(x * x)), -2, 5), ("ilogb", lambda x: np.floor(np.log2(np.abs(x))), 1e-3, 1e3),
    ("cyl_bessel_i0", lambda x: bessel(x, 0), -9, 9), ("cyl_bessel_i1", lambda x: bessel(x, 1), -9, 9)])
def test_the_device_library(name, reference, low, high):
    x = rng.uniform(low, high, 256).astype(np.float32)
    x[:4] = low, high, (low + high) / 2, low + 1e-3 * (high - low)
    z = np.zeros(256, np.float32)
    elementwise[(1,)](x, z, 256, name)
    np.testing.assert_allclose(z, reference(x.astype(np.float64)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name, wanted", [("cyl_bessel_i0", [np.inf, np.inf, 5.1392383e37, 1]),
                                          ("cyl_bessel_i1", [np.inf, -np.inf, 5.1106083e37, 0])])
def test_bessel_functions_of_large_numbers(name, wanted):
    x, z = np.array([np.inf, -np.inf, 90, 0], np.float32), np.zeros(4, np.float32)
    elementwise[(1,)](x, z, 4, name)
    np.testing.assert_allclose(z, wanted, rtol=1e-5)


def bisected(function, y):
    """The x for which a rising function gives y."""
    low, high = -6.0, 6.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < y else (low, middle)
    return low


def bessel(x, order):
    return sum((x / 2) ** (2 * k + order) / float(math.factorial(k) * math.factorial(k + order)) for k in range(40))


@triton.jit
def steps(X, Y, A, B, C, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(X + at), tl.load(Y + at)
    tl.store(A + at, libdevice.nextafter(x, y))
    tl.store(B + at, libdevice.ldexp(x, at - 200))
    tl.store(C + at, libdevice.ilogb(x))


def test_parts_of_floats():
    x, y = (rng.standard_normal(512).astype(np.float32) for _ in range(2))
    x[:6], y[:6] = [0, 0, 1, -1, np.inf, 1e-42], [1, -1, 1, 1, 0, 0]
    a, b, c = np.zeros_like(x), np.zeros_like(x), np.zeros(512, np.int32)
    steps[(1,)](x, y, a, b, c, 512)
    np.testing.assert_array_equal(a, np.nextafter(x, y))
    normal = np.abs(np.ldexp(x.astype(np.float64), np.arange(512) - 200)) > 1e-37
    np.testing.assert_array_equal(b[normal], np.ldexp(x, np.arange(512) - 200)[normal])
    assert c[:2].tolist() == [-2147483648] * 2 and c[4] == 2147483647 and c[5] == -140
    np.testing.assert_array_equal(c[6:], np.frexp(x[6:])[1] - 1)


@triton.jit
def bits(X, A, B, C, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(X + at)
    tl.store(A + at, libdevice.popc(x))
    tl.store(B + at, libdevice.clz(x))
    tl.store(C + at, libdevice.ffs(x))


def test_bits():
    x = rng.integers(-(1 << 31), 1 << 31, 128).astype(np.int32)
    x[:4] = 0, 1, -1, -(1 << 31)
    a, b, c = (np.zeros(128, np.int32) for _ in range(3))
    bits[(1,)](x, a, b, c, 128)
    words = [int(v) & 0xFFFFFFFF for v in x]
    assert a.tolist() == [v.bit_count() for v in words] and b.tolist() == [32 - v.bit_length() for v in words]
    assert c.tolist() == [(v & -v).bit_length() for v in words]


@triton.jit
def batched(A, B, C, Z, B_: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, m, n, k = tl.arange(0, B_)[:, None, None], tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(A + i * M * K + m[None, :, None] * K + k[None, None, :])
    b = tl.load(B + i * K * N + k[None, :, None] * N + n[None, None, :])
    at = i * M * N + m[None, :, None] * N + n[None, None, :]
    tl.store(Z + at, tl.dot(a, b, tl.load(C + at), input_precision="ieee"))


def test_products_of_three_dimensions():
    a, b, c = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 16, 32), (3, 32, 16), (3, 16, 16)))
    z = np.zeros_like(c)
    batched[(1,)](a, b, c, z, 3, 16, 16, 32)
    np.testing.assert_allclose(z, a @ b + c, atol=1e-4)


@triton.jit
def seen_as(X, Z, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(X + at)
    tl.static_assert(x.dtype == tl.uint32 and x.shape == [N])
    tl.store(Z + at, x // 2)


def test_a_tensor_is_seen_with_another_type():
    x, z = rng.integers(-(1 << 31), 0, 64).astype(np.int32), np.zeros(64, np.int32)
    seen_as[(1,)](triton.reinterpret(x, tl.uint32), triton.reinterpret(z, tl.uint32), 64)
    np.testing.assert_array_equal(z.view(np.uint32), x.view(np.uint32) // 2)


@triton.jit
def together(parts, Z):
    tl.static_assert(parts[1] == 3)
    tl.store(Z, parts[0](parts[2], parts[1]))


@triton.jit
def added(a, b):
    return a + b


def test_constants_and_functions_in_a_tuple():
    z = np.zeros(1, np.int32)
    together[(1,)]((added, tl.constexpr(3), 40), z)
    assert z[0] == 43


@triton.jit
def asks(Z):
    tl.store(Z, tl.target_info.is_cuda())
    tl.store(Z + 1, tl.target_info.cuda_capability_geq(9, 0))
    tl.store(Z + 2, tl.target_info.is_hip_cdna3())
    tl.store(Z + 3, tl.target_info.current_target().warp_size)


@pytest.mark.parametrize("target, wanted", [("emu:sm_90a", [1, 1, 0, 32]), ("emu:sm_80", [1, 0, 0, 32]), ("emu:gfx942", [0, 0, 1, 64])])
def test_a_kernel_knows_its_target(target, wanted, monkeypatch):
    from triton.language.target_info import is_hip

    monkeypatch.setenv("KILN_TARGET", target)
    z = np.zeros(4, np.int32)
    asks[(1,)](z)
    assert z.tolist() == wanted and is_hip() == (not wanted[0])


@triton.jit
def words(X, Y, Z, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(X + at)
    tl.store(Z + at, libdevice.popc(x))
    tl.store(Z + N + at, libdevice.clz(x))
    tl.store(Z + 2 * N + at, libdevice.ffs(x))
    tl.store(Z + 3 * N + at, libdevice.mulhi(x, tl.load(Y + at)))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_bits_and_products_of_words(dtype):
    count, least = np.iinfo(dtype).bits, np.iinfo(dtype).min
    x, y = (rng.integers(least, np.iinfo(dtype).max, 32, dtype) for _ in range(2))
    x[:6], y[0], z = (0, 1, -1, least, least // 2, 1 << (count // 2)), -1, np.zeros((4, 32), np.int64)
    words[(1,)](x, y, z, 32)
    bits = [int(v) % 2**count for v in x]
    assert z[0].tolist() == [v.bit_count() for v in bits] and z[1].tolist() == [count - v.bit_length() for v in bits]
    assert z[2].tolist() == [(v & -v).bit_length() for v in bits] and z[3].tolist() == [int(a) * int(b) >> count for a, b in zip(x, y)]


@triton.jit
def ends(X, Y, Z, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(X + at), tl.load(Y + at)
    tl.store(Z + at, libdevice.signbit(x) + libdevice.signbit(y))
    tl.store(Z + N + at, libdevice.fdim(x, y))
    tl.store(Z + 2 * N + at, libdevice.hypot(x, y))
    tl.store(Z + 3 * N + at, libdevice.cbrt(x))


def test_infinities_zeros_and_what_is_no_number():
    values = np.array([-np.inf, np.inf, -0.0, 0.0, -8.0, 27.0, np.nan, 3.0], np.float32)
    x, y = (v.ravel() for v in np.meshgrid(values, values))
    z = np.zeros((4, 64), np.float32)
    ends[(1,)](x, y, z, 64)
    with np.errstate(invalid="ignore"):
        number = ~np.isnan(x) & ~np.isnan(y)
        assert np.array_equal(z[0][number], (np.signbit(x) + 0 + np.signbit(y))[number])
        np.testing.assert_array_equal(z[1], np.where(x <= y, 0, x - y))
        np.testing.assert_allclose(z[2][number], np.hypot(x, y)[number], rtol=1e-6)
        np.testing.assert_allclose(z[3], np.cbrt(x), rtol=1e-6)
    assert np.array_equal(np.signbit(z[3][~np.isnan(x)]), np.signbit(x[~np.isnan(x)]))
