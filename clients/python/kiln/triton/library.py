# SPDX-License-Identifier: Apache-2.0
"""Functions of ``tl`` that are written in Triton's language: random numbers, sorting, waiting, the order of programs."""

from __future__ import annotations

from . import language as tl
from .builtin import constexpr
from .runtime import constexpr_function, jit

# Philox 4x32-10 and 4x64-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 4.3.
_KEY_A, _KEY_B, _ROUND_A, _ROUND_B = constexpr(0x9E3779B9), constexpr(0xBB67AE85), constexpr(0xD2511F53), constexpr(0xCD9E8D57)
_WIDE_KEY_A, _WIDE_KEY_B = constexpr(0x9E3779B97F4A7C15), constexpr(0xBB67AE8584CAA73B)
_WIDE_ROUND_A, _WIDE_ROUND_B = constexpr(0xD2E7470EE14C6C93), constexpr(0xCA5A826395121157)
N_ROUNDS_DEFAULT = constexpr(10)


@jit
def philox_impl(c0, c1, c2, c3, k0, k1, n_rounds: tl.constexpr = N_ROUNDS_DEFAULT):
    for _ in tl.static_range(n_rounds):
        if c0.dtype == tl.uint32:
            a: tl.constexpr = _ROUND_A
            b: tl.constexpr = _ROUND_B
            key_a: tl.constexpr = _KEY_A
            key_b: tl.constexpr = _KEY_B
        else:
            a: tl.constexpr = _WIDE_ROUND_A
            b: tl.constexpr = _WIDE_ROUND_B
            key_a: tl.constexpr = _WIDE_KEY_A
            key_b: tl.constexpr = _WIDE_KEY_B
        old0, old2 = c0, c2
        c0 = tl.umulhi(old2, tl.cast(b, old2.dtype)) ^ c1 ^ k0
        c2 = tl.umulhi(old0, tl.cast(a, old0.dtype)) ^ c3 ^ k1
        c1 = old2 * tl.cast(b, old2.dtype)
        c3 = old0 * tl.cast(a, old0.dtype)
        k0 = k0 + tl.cast(key_a, k0.dtype)
        k1 = k1 + tl.cast(key_b, k1.dtype)
    return c0, c1, c2, c3


@jit
def philox(seed, c0, c1, c2, c3, n_rounds: tl.constexpr = N_ROUNDS_DEFAULT):
    """``seed``: an integer of up to 64 bits. Counters of 32 or 64 bits, which the results have as well."""
    tl.static_assert(seed.dtype.is_int(), "the seed of random numbers must be an integer; a tensor's is loaded first")
    key = tl.cast(seed, tl.uint64)
    if c0.dtype.primitive_bitwidth == 32:
        word: tl.constexpr = tl.uint32
        low = (key & 0xFFFFFFFF).to(word)
        high = (key >> 32).to(word)
    else:
        word: tl.constexpr = tl.uint64
        low = key
        high = key * 0
    return philox_impl(c0.to(word), c1.to(word), c2.to(word), c3.to(word), low, high, n_rounds)


@jit
def randint4x(seed, offset, n_rounds: tl.constexpr = N_ROUNDS_DEFAULT):
    """Integers of 32 bits; an offset of 64 has both halves in the counter."""
    low = tl.cast(offset, tl.uint32)
    zero = low * 0
    high = (offset >> 32).to(tl.uint32) if offset.dtype.primitive_bitwidth > 32 else zero
    return philox(seed, low, high, zero, zero, n_rounds)


@jit
def randint(seed, offset, n_rounds: tl.constexpr = N_ROUNDS_DEFAULT):
    first, _, _, _ = randint4x(seed, offset, n_rounds)
    return first


@jit
def uint_to_uniform_float(x):
    """From [0, 1): the distance of a random integer from 0 or -1, scaled."""
    if x.dtype.primitive_bitwidth == 32:
        whole = x.to(tl.int32, bitcast=True)
        scale: tl.constexpr = 4.6566127342e-10  # a little below 2^-31, so that the largest is less than 1
    else:
        whole = x.to(tl.int64, bitcast=True)
        scale: tl.constexpr = 1.0842020432385337e-19
    return tl.where(whole < 0, -whole - 1, whole) * scale


@jit
def rand4x(seed, offset, n_rounds: tl.constexpr = N_ROUNDS_DEFAULT):
    a, b, c, d = randint4x(seed, offset, n_rounds)
    return uint_to_uniform_float(a), uint_to_uniform_float(b), uint_to_uniform_float(c), uint_to_uniform_float(d)


@jit
def rand(seed, offset, n_rounds: tl.constexpr = N_ROUNDS_DEFAULT):
    return uint_to_uniform_float(randint(seed, offset, n_rounds))


@jit
def pair_uniform_to_normal(u1, u2):
    """Box and Muller's."""
    radius = tl.sqrt(-2.0 * tl.log(tl.maximum(1.0e-7, u1)))
    angle = 6.283185307179586 * u2
    return radius * tl.cos(angle), radius * tl.sin(angle)


@jit
def randn4x(seed, offset, n_rounds: tl.constexpr = N_ROUNDS_DEFAULT):
    a, b, c, d = rand4x(seed, offset, n_rounds)
    w, x = pair_uniform_to_normal(a, b)
    y, z = pair_uniform_to_normal(c, d)
    return w, x, y, z


@jit
def randn(seed, offset, n_rounds: tl.constexpr = N_ROUNDS_DEFAULT):
    a, b, _, _ = rand4x(seed, offset, n_rounds)
    first, _ = pair_uniform_to_normal(a, b)
    return first


# Sorting along the last dimension by Batcher's bitonic network: step ``j`` of stage ``i`` exchanges elements that are 2^j apart.


@constexpr_function
def _log2(n):
    return n.bit_length() - 1


@jit
def _exchanged(x, stage: tl.constexpr, step: tl.constexpr, extent: tl.constexpr, descending: tl.constexpr):
    place = tl.broadcast_to(tl.arange(0, extent), x.shape)
    other = tl.gather(x, place ^ (1 << step), len(x.shape) - 1)
    above = ((place >> step) & 1) == 1
    falls = (((place >> stage) & 1) == 1) ^ descending
    low, high = tl.where(above, other, x), tl.where(above, x, other)
    return tl.where((low > high) ^ falls & (low != high), other, x)


@jit
def sort(x, dim: tl.constexpr = None, descending: tl.constexpr = False):
    tl.static_assert(dim is None or dim == len(x.shape) - 1 or dim == -1, "tl.sort sorts along the last dimension; permute the block before")
    extent: tl.constexpr = x.shape[len(x.shape) - 1]
    tl.static_assert((extent & (extent - 1)) == 0, "tl.sort takes a power of two; pad the block by the largest value")
    stages: tl.constexpr = _log2(extent)
    for stage in tl.static_range(1, stages + 1):
        for down in tl.static_range(stage):
            x = _exchanged(x, stage, stage - 1 - down, extent, descending)
    return x


@jit
def topk(x, k: tl.constexpr, dim: tl.constexpr = None, descending: tl.constexpr = True):
    axis: tl.constexpr = len(x.shape) - 1
    ordered = sort(x, dim, descending)
    return tl.gather(ordered, tl.broadcast_to(tl.arange(0, k), x.shape[:axis] + (k,)), axis)


@jit
def bitonic_merge(x, dim: tl.constexpr = None, descending: tl.constexpr = False):
    tl.static_assert(dim is None or dim == len(x.shape) - 1 or dim == -1, "tl.bitonic_merge merges along the last dimension")
    extent: tl.constexpr = x.shape[len(x.shape) - 1]
    stages: tl.constexpr = _log2(extent)
    for down in tl.static_range(stages):
        x = _exchanged(x, stages, stages - 1 - down, extent, descending)
    return x


@jit
def atomic_poll(pointer, expected_value, sem: tl.constexpr = "acquire", scope: tl.constexpr = "gpu", timeout_ns=None):
    """Waits until the integer there is the expected one. Exchanging that for itself reads it and changes nothing."""
    tl.static_assert(timeout_ns is None, "tl.atomic_poll(timeout_ns=…): kernels have no clock; leave it out, or count the turns of a while loop")
    tl.static_assert(sem == "acquire" or sem == "relaxed" or sem is None, "tl.atomic_poll takes sem=\"acquire\" or \"relaxed\"")
    expected = tl.cast(expected_value, pointer.dtype.element_ty)
    order: tl.constexpr = "acquire" if sem is None else sem
    while tl.atomic_cas(pointer, expected, expected, sem=order, scope=scope) != expected:
        pass
    return expected == expected


@jit
def swizzle2d(i, j, size_i, size_j, size_g):
    """The place in a column-major walk over groups of ``size_g`` rows of the program that a row-major walk has at (i, j)."""
    place = i * size_j + j
    group = place // (size_g * size_j)
    first = group * size_g
    rows = tl.minimum(size_i - first, size_g)
    rest = place % (size_g * size_j)
    return first + rest % rows, rest // rows
