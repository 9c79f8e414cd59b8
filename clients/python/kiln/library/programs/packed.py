# SPDX-License-Identifier: Apache-2.0
"""Products with weights of 4 bits."""

import kiln.language as T


def _check_groups(K, group, block_k):
    if K % group:
        raise ValueError(f"{K} elements along k are not whole groups of {group}: the last ones would have no scale; pad K to a multiple of {group}")
    if block_k % group and group % block_k:
        raise ValueError(f"blocks of {block_k} along k cut groups of {group}: choose a `block_k` that divides the group, or a multiple of it")


def interleave(packed, e2m1=False):
    """The words of interleaved weights (N, K/8) from bytes of two (N, K/2), NumPy's or torch's, widened to 64 bits. Of each 32 weights along k,
    word q holds weights 8c + 2q in its lower and 8c + 2q + 1 in its upper half, for c of 0 … 3: one load brings the eight that a thread of the
    tensor cores takes, and one shift separates two. Integers lie at bit 4c of a half; of numbers of ``e2m1``, the sign lies nine bits above the
    lowest bit, as in bfloat16: at bit 6 − 3c of a half the first three, the fourth in the bits that they leave."""
    groups = packed.reshape(packed.shape[0], -1, 4, 4)
    words = 0
    for c in range(4):
        for half, weight in enumerate((groups[:, :, c] & 15, groups[:, :, c] >> 4)):
            if not e2m1:
                bits = weight << 4 * c
            elif c < 3:
                bits = (weight & 7) << (6 - 3 * c) | (weight >> 3) << (15 - 3 * c)
            else:
                bits = (weight & 3) << 10 | (weight >> 3) << 13 | (weight >> 2 & 1) << 14
            words = words | bits << 16 * half
    return words.reshape(packed.shape[0], -1)


def _packed(K, interleaved):
    """What holds K packed weights: how many of which type."""
    if interleaved and K % 32:
        raise ValueError(f"{K} elements along k are not whole groups of 32, which interleaved weights come in; pad K to a multiple of 32")
    return (K // 8, "uint32") if interleaved else (K // 2, "uint8")


def _word(words, i, j):
    """The interleaved word that holds weight j of a row i."""
    return words[i, j // 32 * 4 + j % 8 // 2]


def _nibble(words, i, j, interleaved):
    """Weight j of a row i."""
    if interleaved:
        return (_word(words, i, j) >> T.cast(j % 32 // 8 * 4 + j % 2 * 16, "uint32")) & T.cast(15, "uint32")
    return (words[i, j // 2] >> T.cast((j % 2) * 4, "uint8")) & T.cast(15, "uint8")


def _e2m1_bits(words, i, j, interleaved):
    """Weight j of a row i, sign and magnitude in the places of bfloat16's bits."""

    def u16(value):
        return T.cast(value, "uint16")

    if not interleaved:
        nibble = u16(_nibble(words, i, j, False))
        return ((nibble & u16(8)) << u16(12)) | ((nibble & u16(7)) << u16(6))
    half, c = u16(_word(words, i, j) >> T.cast(j % 2 * 16, "uint32")), j % 32 // 8
    first = (half << u16(c * 3)) & u16(0x81C0)
    fourth = ((half << u16(2)) & u16(0x8000)) | ((half >> u16(4)) & u16(0x00C0)) | ((half >> u16(6)) & u16(0x0100))
    return T.if_then_else(c < 3, first, fourth)


def packed_weights(M, N, K, dtype="bfloat16", group=128, interleaved=False, block_m=64, block_n=128, block_k=64, stages=4, threads=128):
    """C = A · (scale · (W − 8))ᵀ: A is (M, K), W (N, K/2) with two 4-bit weights in each byte, the earlier one low, or words that
    ``interleave`` makes of them; scale (K/group, N)."""
    _check_groups(K, group, block_k)
    groups = max(1, block_k // group)  # of a block
    (row, packed), (block_row, _) = _packed(K, interleaved), _packed(block_k, interleaved)

    @T.prim_func
    def packed_weights(A: T.Tensor((M, K), dtype), W: T.Tensor((N, row), packed), scale: T.Tensor((K // group, N), dtype),
                       C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=threads) as (bx, by):
            a_shared = T.alloc_shared((block_m, block_k), dtype)
            w_shared = T.alloc_shared((block_n, block_row), packed)
            s_shared = T.alloc_shared((groups, block_n), dtype)
            weights = T.alloc_fragment((block_n, block_k), dtype)
            accum = T.alloc_fragment((block_m, block_n), "float32")
            T.clear(accum)
            for ko in T.Pipelined(T.ceildiv(K, block_k), num_stages=stages):
                T.copy(A[by * block_m, ko * block_k], a_shared)
                T.copy(W[bx * block_n, ko * block_row], w_shared)
                T.copy(scale[ko * block_k // group, bx * block_n], s_shared)
                for i, j in T.Parallel(block_n, block_k):
                    nibble = _nibble(w_shared, i, j, interleaved)
                    weights[i, j] = (T.cast(nibble, dtype) - T.cast(8, dtype)) * s_shared[j // group, i]
                T.gemm(a_shared, weights, accum, transpose_B=True)
            T.copy(accum, C[by * block_m, bx * block_n])

    return packed_weights.with_outputs(-1)


def packed_mxfp4(M, N, K, dtype="bfloat16", interleaved=False, block_m=64, block_n=128, block_k=64, stages=4, threads=128):
    """C = A · Wᵀ with W of mxfp4: A is (M, K), W (N, K/2) with two e2m1 numbers in each byte, the earlier one low, or words that
    ``interleave`` makes of numbers of e2m1; each 32 of them along k share a power of two: scale is (K/128, N), four exponents of e8m0 in a
    word, the earliest one low, 1 … 254 each."""
    _check_groups(K, 128, block_k)
    words = max(1, block_k // 128)  # of a block
    (row, packed), (block_row, _) = _packed(K, interleaved), _packed(block_k, interleaved)

    @T.prim_func
    def packed_mxfp4(A: T.Tensor((M, K), dtype), W: T.Tensor((N, row), packed), scale: T.Tensor((K // 128, N), "uint32"),
                     C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=threads) as (bx, by):
            a_shared = T.alloc_shared((block_m, block_k), dtype)
            w_shared = T.alloc_shared((block_n, block_row), packed)
            s_shared = T.alloc_shared((words, block_n), "uint32")
            weights = T.alloc_fragment((block_n, block_k), dtype)
            accum = T.alloc_fragment((block_m, block_n), "float32")
            T.clear(accum)
            for ko in T.Pipelined(T.ceildiv(K, block_k), num_stages=stages):
                T.copy(A[by * block_m, ko * block_k], a_shared)
                T.copy(W[bx * block_n, ko * block_row], w_shared)
                T.copy(scale[ko * block_k // 128, bx * block_n], s_shared)
                for i, j in T.Parallel(block_n, block_k):
                    shift = T.cast((ko * block_k + j) % 128 // 32 * 8, "uint32")
                    exponent = T.cast((s_shared[j // 128, i] >> shift) & T.cast(255, "uint32"), "uint16")
                    # The number's bits in the places of bf16's have an exponent that is 126 too small.
                    number = T.reinterpret("bfloat16", _e2m1_bits(w_shared, i, j, interleaved)) * T.cast(2.0**126, "bfloat16")
                    weights[i, j] = number * T.reinterpret("bfloat16", exponent << T.cast(7, "uint16"))
                T.gemm(a_shared, weights, accum, transpose_B=True)
            T.copy(accum, C[by * block_m, bx * block_n])

    return packed_mxfp4.with_outputs(-1)
