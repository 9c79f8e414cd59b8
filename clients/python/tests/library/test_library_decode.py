# SPDX-License-Identifier: Apache-2.0
"""Attention over caches on the emulator, checked for races: in one piece, in pages, by chosen rows, against float64. What a cache holds beyond a
sequence is NaN, and what a table says there is no page."""

import numpy as np
import pytest
from library_testing import RNG, TARGETS, near, needs_kilnd, normal, typed, wide

import kiln
from kiln import library

pytestmark = needs_kilnd
HOPPER = "emu:sm_90a"


def mixed(scores, values):
    """softmax(scores) · values"""
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ values


def expected(q, keys, values, lengths, scale, sinks=None):
    """keys, values: (batch, capacity, kv_heads, …) of float64. A sink is a key whose values are zeros."""
    batch, tokens, heads, _ = q.shape
    group = heads // keys.shape[2]
    result = np.zeros((batch, tokens, heads, values.shape[-1]))
    for b, i, h in np.ndindex(batch, tokens, heads):
        seen = min(lengths[b], keys.shape[1]) - tokens + i + 1
        if seen > 0:
            scores, rows = keys[b, :seen, h // group] @ wide(q)[b, i, h] * scale, values[b, :seen, h // group]
            if sinks is not None:
                scores, rows = np.append(scores, sinks[h]), np.concatenate([rows, 0 * rows[:1]])
            result[b, i, h] = mixed(scores, rows)
    return result


def ended(cache, lengths, dtype):
    """The cache with NaN beyond each sequence."""
    values = wide(cache)
    for b, length in enumerate(lengths):
        values[b, length:] = np.nan
    return typed(values, dtype)


def paged(caches, lengths, page, dtype):
    """(caches in pages of any order, the table)"""
    batch, capacity = caches[0].shape[:2]
    columns = -(-capacity // page)
    table = RNG.permutation(batch * columns + 3)[:batch * columns].reshape(batch, columns).astype(np.int32)
    made = []
    for cache in caches:
        pages = np.full((batch * columns + 3, page, *cache.shape[2:]), np.nan)
        for b, c in np.ndindex(table.shape):
            part = wide(cache)[b, c * page:(c + 1) * page]
            pages[table[b, c], :len(part)] = part
        made.append(typed(pages, dtype))
    for b, length in enumerate(lengths):
        table[b, -(-length // page):] = -9
    return made, table


def decoded(lengths, capacity, tokens=1, heads=8, kv_heads=2, dim=64, page=0, dtype="float16", scale=None, sinks=None):
    """Calls the function, checked, and compares."""
    lengths = np.array(lengths, np.int32)
    batch = len(lengths)
    q, k, v = normal(batch, tokens, heads, dim, dtype=dtype), *(normal(batch, capacity, kv_heads, dim, dtype=dtype) for _ in range(2))
    caches, table = [ended(cache, lengths, dtype) for cache in (k, v)], None
    if page:
        caches, table = paged(caches, lengths, page, dtype)
    with kiln.emulation(check=True):
        given = library.attention_decode(q, *caches, lengths, table, sinks, scale)
    near(given, expected(q, wide(k), wide(v), lengths, dim**-0.5 if scale is None else scale, sinks), dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("page", [0, 16, 64, 256])
def test_lengths_of_all_kinds(emulated, target, page):
    emulated(target)
    decoded([0, 1, 63, 64, 65, 200, 211], 211, page=page)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("page", [0, 16])
def test_a_length_above_the_capacity_counts_as_that(emulated, target, page):
    emulated(target)
    decoded([97, 128, 1000], 96, page=page)
    latent([97, 1000], 96, page=page)


@pytest.mark.parametrize("target", ["emu:sm_80", HOPPER])
@pytest.mark.parametrize("page", [0, 16, 64])
@pytest.mark.parametrize("dim, dtype", [(16, "bfloat16"), (80, "float16"), (128, "bfloat16"), (256, "float16")])
def test_heads_of_all_widths(emulated, target, page, dim, dtype):
    emulated(target)
    decoded([70, 131], 140, heads=6, kv_heads=2, dim=dim, page=page, dtype=dtype)


@pytest.mark.parametrize("target", ["emu:sm_80", HOPPER])
@pytest.mark.parametrize("tokens, heads, kv_heads", [(1, 1, 1), (1, 20, 1), (3, 8, 4), (5, 32, 2)])
@pytest.mark.parametrize("page", [0, 16])
def test_tokens_and_heads_are_rows(emulated, target, tokens, heads, kv_heads, page):
    """Also of several tiles, and of sequences that are shorter than the tokens."""
    emulated(target)
    decoded([2, 65, 130], 130, tokens, heads, kv_heads, dim=32, page=page)


@pytest.mark.parametrize("page", [0, 16, 64])
def test_blocks_share_long_sequences(emulated, page):
    emulated(HOPPER)
    decoded([2999], 3000, heads=4, kv_heads=1, page=page)
    decoded([3, 700], 1024, heads=2, kv_heads=2, page=page, scale=0.7)
    decoded([60, 0], 64, heads=2, kv_heads=2, page=page)  # one step: nothing to share


@pytest.mark.parametrize("target", TARGETS)
def test_sinks(emulated, target):
    """Also larger than every score by far, and smaller; beside one block, and beside several of which the first alone counts them."""
    emulated(target)
    sinks = np.array([0, 3, -100, 1000, -1e30, 1, 2, 5], np.float32)
    decoded([1, 0, 64], 64, sinks=sinks)
    decoded([2, 70, 300], 300, tokens=3, page=16, sinks=sinks)


def test_one_kernel_serves_batches_and_capacities(emulated):
    from kiln.library import plans

    emulated(HOPPER)
    decoded([5, 60], 64, page=16)
    decoded([33, 1, 0], 48, page=16)
    assert len(plans._kernels) == 1
    empty = library.attention_decode(normal(0, 1, 2, 16, dtype="float16"), *[normal(0, 8, 2, 16, dtype="float16")] * 2, np.zeros(0, np.int32))
    assert empty.shape == (0, 1, 2, 16)


def test_strided_and_offset_caches(emulated):
    emulated(HOPPER)
    lengths = np.array([37, 70], np.int32)
    q, both = normal(2, 4, 1, 32, dtype="float16").swapaxes(1, 2), normal(2, 2, 80, 2, 32, dtype="float16")[:, :, 3:77]
    given = library.attention_decode(q, both[:, 0], both[:, 1], lengths)
    near(given, expected(q, wide(both[:, 0]), wide(both[:, 1]), lengths, 32**-0.5), "float16")


def latent(lengths, capacity, tokens=1, heads=16, width=576, page=0, dtype="float16"):
    lengths = np.array(lengths, np.int32)
    q, kv = normal(len(lengths), tokens, heads, width, dtype=dtype), normal(len(lengths), capacity, width, dtype=dtype)
    cache, table = ended(kv, lengths, dtype), None
    if page:
        (cache,), table = paged([cache], lengths, page, dtype)
    with kiln.emulation(check=True):
        given = library.latent_attention(q, cache, lengths, table)
    keys = wide(kv)[:, :, None]
    near(given, expected(q, keys, keys[..., :-64], lengths, width**-0.5), dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("page", [0, 16])
def test_latent_rows(emulated, target, page):
    emulated(target)
    latent([0, 1, 130], 150, page=page)
    latent([77], 96, tokens=2, heads=20, width=192, page=page, dtype="bfloat16")


@pytest.mark.parametrize("page", [0, 64])
def test_latent_rows_of_many_heads(emulated, page):
    emulated(HOPPER)
    latent([129], 140, heads=128, page=page, dtype="bfloat16")


def sparse(batch, tokens, heads, keys, chosen, causal, width=192, dtype="float16"):
    q, kv = normal(batch, tokens, heads, width, dtype=dtype), normal(batch, keys, width, dtype=dtype)
    rows = np.stack([RNG.permutation(keys + 20)[:chosen] - 10 for _ in range(batch * tokens)]).reshape(batch, tokens, chosen).astype(np.int32)
    rows[0, 0] = -1  # a token that sees nothing
    with kiln.emulation(check=True):
        given = library.sparse_latent_attention(q, kv, rows, causal)
    result = np.zeros((batch, tokens, heads, width - 64))
    for b, i, h in np.ndindex(batch, tokens, heads):
        seen = [row for row in rows[b, i] if 0 <= row < keys and (not causal or row <= i + keys - tokens)]
        if seen:
            result[b, i, h] = mixed(wide(kv)[b, seen] @ wide(q)[b, i, h] * width**-0.5, wide(kv)[b, seen, :-64])
    near(given, result, dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("causal", [False, True])
def test_chosen_rows(emulated, target, causal):
    emulated(target)
    sparse(2, 3, 16, 60, 45, causal)
    sparse(1, 40, 3, 70, 64, causal)


def test_chosen_rows_of_many_heads(emulated):
    emulated(HOPPER)
    sparse(1, 2, 128, 300, 200, True, width=576, dtype="bfloat16")


def block_sparse(tokens, keys, block, causal, heads=2, kv_heads=1, dim=64, dtype="float16", most=3):
    q, k, v = normal(2, tokens, heads, dim, dtype=dtype), *(normal(2, keys, kv_heads, dim, dtype=dtype) for _ in range(2))
    lists, blocks = -(-tokens // block), -(-keys // block)
    chosen = np.stack([RNG.permutation(blocks + 1)[:most] for _ in range(2 * heads * lists)]).reshape(2, heads, lists, -1).astype(np.int32)
    counts = RNG.integers(0, chosen.shape[-1] + 1, (2, heads, lists)).astype(np.int32)
    chosen[:, 0, 0, 0], counts[:, 0, 0] = (-2**31, 2**32 // block), 1  # no blocks, though as many bits as numbers of keys are 0
    with kiln.emulation(check=True):
        given = library.block_sparse_attention(q, k, v, chosen, counts, block, causal)
    result = np.zeros((2, tokens, heads, dim))
    for b, i, h in np.ndindex(2, tokens, heads):
        at = np.arange(keys)
        seen = np.isin(at // block, chosen[b, h, i // block, :counts[b, h, i // block]]) & (not causal or at <= i + keys - tokens)
        if seen.any():
            keys_of, values_of = (wide(t)[b, seen, h // (heads // kv_heads)] for t in (k, v))
            result[b, i, h] = mixed(keys_of @ wide(q)[b, i, h] * dim**-0.5, values_of)
    near(given, result, dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("block", [64, 128])
def test_blocks_of_keys(emulated, target, block):
    emulated(target)
    block_sparse(150, 300, block, False)
    block_sparse(100, 200, block, True, dim=80, kv_heads=2, dtype="bfloat16")


@pytest.mark.parametrize("target", ["emu:sm_80", HOPPER])
def test_blocks_of_keys_of_wide_heads(emulated, target):
    emulated(target)
    block_sparse(130, 260, 128, True, heads=1, dim=256)
    block_sparse(130, 130, 128, False, heads=1, dim=128)


def recurrent(tokens, keys, values, decays, groups=2, heads=4, dtype="float16"):
    q, k = (normal(2, tokens, groups, keys, dtype=dtype, scale=0.3) for _ in range(2))
    v, decay = normal(2, tokens, heads, values, dtype=dtype), (-0.2 * RNG.random((2, tokens, heads))).astype(np.float32) if decays else None
    with kiln.emulation(check=True):
        given = library.linear_attention(q, k, v, decay)
    result = np.zeros((2, tokens, heads, values))
    for b, h in np.ndindex(2, heads):
        state = np.zeros((keys, values))
        for t in range(tokens):
            kept = np.exp(float(decay[b, t, h])) if decays else 1.0
            state = kept * state + np.outer(wide(k)[b, t, h * groups // heads], wide(v)[b, t, h])
            result[b, t, h] = wide(q)[b, t, h * groups // heads] @ state
    near(given, result, dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("decays", [False, True])
def test_linear_attention(emulated, target, decays):
    emulated(target)
    recurrent(150, 64, 48, decays)
    recurrent(1, 16, 16, decays, groups=1)
    recurrent(70, 128, 80, decays, groups=4, dtype="bfloat16")
