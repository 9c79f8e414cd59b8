# SPDX-License-Identifier: Apache-2.0
"""T.gemm_sp of what kiln.sparse.compress makes: the product with the matrix that it was made of."""

import kiln.language as T
import numpy as np
import pytest
from data import STORED, decode, fp8_values
from kiln import sparse
from kiln.language.sparse import elements_of

TARGETS = ["emu:sm_75", "emu:sm_80", "emu:sm_90a", "emu:gfx90a", "emu:gfx942", "emu:gfx950", "emu:gfx1100"]


def encode(values, dtype):
    """Small integers as memory holds them."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype.startswith("float8"):
        codes = fp8_values(dtype)
        return np.array([[np.flatnonzero(codes == v)[0] for v in row] for row in values], np.uint8)
    return values.astype(STORED[dtype])


def sparse_matrix(rng, m, k, dtype):
    """Small integers, of which at most two of four are not zero, one of two of 32 bits; every pattern occurs."""
    keeps, group = (1, 2) if T.dtype(dtype).bits == 32 else (2, 4)
    matrix = rng.integers(-3, 4, (m, k // group, group))
    drop = np.argsort(rng.random(matrix.shape), -1)[..., : group - keeps]
    np.put_along_axis(matrix, drop, 0, -1)
    return matrix.reshape(m, k).astype(np.float64)


def program_of(m, n, k, dtype, accum, meta, transposes, spaces, k_step, threads=128):
    ta, te, tb = transposes
    each, kept = elements_of(T.dtype(dtype), T.dtype(meta)), 2
    flip = lambda shape, flipped: shape[::-1] if flipped else shape  # noqa: E731
    a_shape, e_shape, b_shape = (flip(s, t) for s, t in (((m, k_step // kept), ta), ((m, k_step // each), te), ((n, k_step), not tb)))

    @T.prim_func
    def program(A: T.Tensor(flip((m, k // kept), ta), dtype), E: T.Tensor(flip((m, k // each), te), meta),
                B: T.Tensor(flip((n, k), not tb), dtype), C: T.Tensor((m, n), accum)):
        with T.Kernel(1, threads=threads):
            a, e, b = T.alloc_shared(a_shape, dtype), T.alloc_shared(e_shape, meta), T.alloc_shared(b_shape, dtype)
            own_a, own_b = T.alloc_fragment(a_shape, dtype), T.alloc_fragment(b_shape, dtype)
            c = T.alloc_fragment((m, n), accum)
            T.clear(c)
            for i in T.Pipelined(k // k_step, num_stages=2):
                T.copy(A[i * k_step // kept, 0] if ta else A[0, i * k_step // kept], a)
                T.copy(E[i * k_step // each, 0] if te else E[0, i * k_step // each], e)
                T.copy(B[0, i * k_step] if tb else B[i * k_step, 0], b)
                if spaces[0] == "r":
                    T.copy(a, own_a)
                if spaces[1] == "r":
                    T.copy(b, own_b)
                T.gemm_sp(own_a if spaces[0] == "r" else a, e, own_b if spaces[1] == "r" else b, c, ta, te, tb)
            T.copy(c, C)

    return program


def check(call, target, m, n, k, dtype, accum, meta, transposes=(False, False, True), spaces="ss", k_step=32):
    rng = np.random.default_rng(7)
    dense, b = sparse_matrix(rng, m, k, dtype), rng.integers(-3, 4, (n, k)).astype(np.float64)
    values, places = sparse.compress(encode(dense, dtype).view(f"int{T.dtype(dtype).bits}"), meta)
    ta, te, tb = transposes
    flip = lambda array, flipped: np.ascontiguousarray(array.T if flipped else array)  # noqa: E731
    stored = encode(b, dtype)
    arrays = [(flip(values, ta).view(stored.dtype), dtype), (flip(places, te), meta), (flip(stored, not tb), dtype),
              (encode(np.zeros((m, n)), accum), accum)]
    program = program_of(m, n, k, dtype, accum, meta, transposes, spaces, k_step)
    (_, _, _, c), answer = call.emulator.call(call.emulator.module(program.serialized), target, arrays, check=1)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    assert (decode(c.reshape(m, n), accum) == dense @ b.T).all()


@pytest.fixture
def emulated(emulator):
    class Call:
        pass

    call = Call()
    call.emulator = emulator
    return call


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype, accum, meta", [
    ("float16", "float32", "int16"), ("bfloat16", "float32", "int8"), ("float16", "float16", "uint32"), ("int8", "int32", "int32"),
    ("float32", "float32", "int16"), ("tfloat32", "float32", "int32"), ("float8_e5m2", "float32", "int16"), ("float8_e4m3fn", "float32", "uint8")])
def test_dtypes(emulated, target, dtype, accum, meta):
    check(emulated, target, 64, 32, 128, dtype, accum, meta, k_step=64)


@pytest.mark.parametrize("target", ["emu:sm_75", "emu:sm_80", "emu:sm_90a", "emu:gfx942"])
@pytest.mark.parametrize("transposes", [(a, e, b) for a in (False, True) for e in (False, True) for b in (False, True)])
@pytest.mark.parametrize("spaces", ["ss", "rs", "sr", "rr"])
def test_transposed_and_in_registers(emulated, target, transposes, spaces):
    check(emulated, target, 64, 64, 64, "float16", "float32", "int16", transposes, spaces)


def test_shapes_that_do_not_fit():
    from kiln.language.trace import TraceError

    with pytest.raises(TraceError, match="with metadata 64×4: an element of int16 is for 16 of float16, so 64×2"):
        @T.prim_func
        def program():
            with T.Kernel(1, threads=128):
                a, e, b = T.alloc_shared((64, 16), "float16"), T.alloc_shared((64, 4), "int16"), T.alloc_shared((64, 32), "float16")
                T.gemm_sp(a, e, b, T.alloc_fragment((64, 64), "float32"), transpose_B=True)
