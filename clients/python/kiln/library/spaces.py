# SPDX-License-Identifier: Apache-2.0
"""Sizes that the program of a matrix product or of attention may have: a space, of which the daemon's planner says what is expected to be the
fastest (``plans.chosen``). What a target's instructions and memory ask for is decided here; what is faster is not."""

from __future__ import annotations

from ..language.dtypes import as_dtype
from . import sizes
from .sizes import MULTIPROCESSORS, PLAIN, for_registers, has_wgmma

NAMES = tuple(PLAIN)
# What serves on every target where operands are floats of 32 bits that no matrix unit multiplies, and for few rows whose elements are loaded one by
# one, because each has an address to keep.
SCALAR = {"block_m": 64, "block_n": 64, "block_k": 16, "stages": 3, "threads": 128}
UNALIGNED = {"block_m": 64, "block_n": 64, "block_k": 32, "stages": 3, "threads": 128}

LINE = 128  # bytes: steps along k are whole ones
SHARED = 232448  # bytes of a block with wgmma, of which barriers take some
BARRIERS = 1024
MOST_STAGES = 16
NARROW = 64  # rows or columns of a result
FEW = 384  # rows: up to here, all of them or half of them may lie in one block


def _up(extent: int, unit: int) -> int:
    return -(-extent // unit) * unit


def _space(tiles) -> tuple:
    """As plans.chosen takes it."""
    return tuple(tuple(zip(NAMES, tile)) for tile in tiles)


def one(tile: dict) -> tuple:
    """A space of one."""
    return (tuple(tile.items()),)


def product(m: int, n: int, k: int, dtype: str, out: str, trans_a: bool, trans_b: bool, target: str, followed: bool = False,
            copies: bool = False, promoted: bool = False, aligned: bool | None = None) -> tuple:
    """Of C (m × n) = op(A) · op(B). ``trans_a``: A is K × M; ``trans_b``: B is N × K; ``followed``: more is done with the sums; ``copies``: the
    program can lay out operands anew (``copied``); ``promoted``: each step's sums go on in float32 (8-bit floats, without fast accumulation);
    ``aligned``: whether rows of both begin at multiples of 16 bytes, where these extents do not say it."""
    if dtype == "float32":
        return one(SCALAR)
    element = as_dtype(dtype).bytes
    if aligned is None:
        aligned = all(extent * element % 16 == 0 for extent in (m if trans_a else k, k if trans_b else n))
    # Rows of one byte must run along k.
    if not has_wgmma(target) or element not in (1, 2) or (element == 1 and (trans_a or not trans_b)):
        return one(for_registers(UNALIGNED if not aligned and m <= 128 else PLAIN, target, followed))
    tiles = _space(_hopper(m, n, k, element, as_dtype(out).bytes, promoted))
    if aligned:
        return tiles
    direct = _space(tile for tile in _direct(m, n) if not followed or tile[4] > 128)
    if min(m, n) <= NARROW:
        direct += tiles  # to lay out the other operand may take longer than the product
    return direct + (tuple((*tile, ("copied", True)) for tile in tiles) if copies else ())


def _direct(m: int, n: int):
    """Elements are loaded one by one: many threads, each with few of them under way, and no copies that run beside the products."""
    for block_m, block_n, block_k, threads in ((64, 64, 32, 256), (64, 64, 64, 256), (128, 64, 64, 256), (32, 64, 64, 256), (16, 64, 64, 128),
                                               (64, 32, 32, 128)):
        if block_m <= max(16, _up(m, 16)) and block_n <= max(32, _up(n, 32)):
            yield block_m, block_n, block_k, 1, threads


def batched(m: int, n: int, k: int, dtype: str, out: str, trans_a: bool, trans_b: bool, target: str) -> tuple:
    """Of each product of a batch: all blocks are busy with others' parts, so the largest serve."""
    element = as_dtype(dtype).bytes
    small = m <= 64 or n <= 64 or (element == 1 and (trans_a or not trans_b))
    if element > 2 or not has_wgmma(target) or small:
        return product(m, n, k, dtype, out, trans_a, trans_b, target)
    tile = {"block_m": 128, "block_n": 256 if n > 128 else 128, "block_k": LINE // element, "stages": 4, "threads": 256}
    return one(for_registers(tile, target))


def _hopper(m: int, n: int, k: int, element: int, out: int, promoted: bool):
    """Large blocks, whose rows may be any multiple of eight, as the columns of the product of the transposes: some that leave a turn of blocks less,
    or make the last one a full one. Of few rows all or half of them in a block, with long steps. Blocks of one group of warps hold half of the
    sums."""
    deep = LINE // element
    # Beside sums of 256 columns registers hold a step's of 128 only, and each step waits twice.
    shapes = [(128, 192, deep, 256)] * promoted + [(128, 256, deep, 256)]
    if m > 128:
        shapes += [(256, 128, deep, 256)]
        if element == 2:
            shapes += [(rows, 256, deep, 256) for rows in (192, *range(136, 184, 8))] + list(_full_turns(m, n, deep))
    shapes += [(128, columns, deep, 256) for columns in (192, 128, 64)]
    shapes += [(64, columns, 2 * deep, 128) for columns in (64, 128)] + [(64, 128, deep, 256)]
    if m <= FEW:
        shapes = list(_few_rows(m, deep)) + shapes
    for block_m, block_n, block_k, threads in dict.fromkeys(shapes):
        if block_n > max(64, _up(n, 64)) or block_m > max(64, _up(m, 64)) or block_k > max(deep, _up(k, deep)):
            continue  # most of it would lie outside
        # The least that results leave through: 32 rows of products of the transposes, else columns of a line.
        piece = min(block_m, 32) * block_n * out if block_m % 64 else block_m * min(block_n * out, LINE)
        stages = min(MOST_STAGES, (SHARED - BARRIERS - piece) // ((block_m + block_n) * block_k * element))
        if block_m % 64 and threads == 256 and k <= 32 * block_k and _tiles(m, block_m) * _tiles(n, block_n) > MULTIPROCESSORS["sm_90a"]:
            stages = min(stages, 3)  # results leave often: in larger pieces
        if stages >= 2:
            yield block_m, block_n, block_k, stages, threads


def _full_turns(m: int, n: int, deep: int):
    """As few rows as each of these turns of blocks, one on each multiprocessor, takes: with more, some would have nothing to do in the last one."""
    for turns in (1, 2, 3, 4):
        for columns, threads, most in ((256, 256, 192), (192, 384, 256), (128, 256, 256)):
            down = turns * MULTIPROCESSORS["sm_90a"] // _tiles(n, columns)
            rows = _up(-(-m // down), 8) if down else 0
            if 64 < rows <= most:
                yield rows, columns, deep, threads


def _tiles(extent: int, tile: int) -> int:
    return -(-extent // tile)


def _few_rows(m: int, deep: int):
    for rows in dict.fromkeys((_up(m, 8), _up(-(-m // 2), 8)) if m > 64 else (_up(m, 8),)):
        if rows <= 192:
            enough = lambda steps: SHARED >= 4 * (rows + 64) * steps * LINE  # stages
            longest = sorted((8, 4, 2, 1), key=lambda steps: (not enough(steps), -steps))
            yield from ((rows, 64, steps * deep, 128) for steps in longest if rows <= 64 or steps <= 2)
            yield from ((rows, columns, deep, 256) for columns in (128, 256))
        if rows <= 112:
            yield rows, 128, 2 * deep, 128


REGISTERS = {2: 176, 3: 128, 4: 80}  # of a thread, by groups of warps: what the scores, the weights and the result may take together


def attention(dim: int, target: str, lse: bool = False) -> tuple:
    """Of attention forward. wgmma: each group of four warps has 64 rows. More groups hide each other's waits better, and each has fewer registers,
    which bound the keys of a step: a thread holds half as many scores as a step has keys, half as many registers of weights, and half of a row of
    the result. Steps of heads above 128 elements are short, so that two of them fit in shared memory."""
    plain = sizes.attention(dim, target, lse)
    if not has_wgmma(target):
        return one(plain)
    steps = [(2, keys) for keys in ((128,) if dim <= 128 else (64, 80)) if keys // 2 + keys // 4 + dim // 2 <= REGISTERS[2]]
    for groups in (4, 3):  # of two of which the same is expected, more groups wait less where heads have few keys
        keys = min(128, (REGISTERS[groups] - dim // 2) * 4 // 3 // 16 * 16)
        if keys >= 64:
            steps.append((groups, keys))
    return tuple(tuple({**plain, "block_m": 64 * groups, "block_n": keys, "threads": 128 * groups, "stages": 3 if groups == 4 else 2}.items())
                 for groups, keys in steps)
