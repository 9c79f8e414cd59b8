# SPDX-License-Identifier: Apache-2.0
"""Sizes of the library's programs but those of spaces.py: what their rows, heads and targets leave room for. Nothing is compiled or measured."""

from __future__ import annotations

from .. import target as targets
from .programs.kept import vectors_of
from .programs.rows import RUN

# Of a product's tile: what serves on every target.
PLAIN = {"block_m": 128, "block_n": 128, "block_k": 32, "stages": 3, "threads": 128}

def one_row(k: int) -> dict:
    """``rows`` of B, ``columns`` of them in a step along k, and ``threads``, of a block of ``kiln.library.programs.gemm.gemv``, whose N × K
    elements have two bytes. Steps are the longest of which at most a twelfth lies outside of the matrix. A thread has 32 bytes of each row,
    in short steps 16. With more rows A is fetched fewer times, unless few blocks are then left on a multiprocessor."""
    columns = next((c for c in (8192, 4096, 2048, 1024) if 12 * (-k % c) <= k), 512)
    return {"rows": 4 if k <= columns < 8192 else 2, "columns": columns, "threads": columns // (16 if columns >= 4096 else 8)}


def for_registers(tile: dict, target=None, followed=False, known=True) -> dict:
    """The same with 256 threads where 128 would spill: on AMD's waves of 32 lanes, which have 256 registers for each lane and no others for
    sums; where a product of so large a tile is ``followed`` by much; and where sizes are not ``known``, because elements are then loaded one by
    one, and their addresses take registers, too. On waves of 32 lanes such tiles are at most 64 columns wide as well."""
    few = _has_waves_of(32, target)
    if few and not known:
        tile = {**tile, "block_n": min(tile["block_n"], 64)}
    large = tile["threads"] == 128 and tile["block_m"] * tile["block_n"] >= 128 * 128
    return {**tile, "threads": 256} if (few and tile["threads"] == 128) or (large and (followed or not known)) else dict(tile)


def grouped_product(in_dtype="bfloat16", target=None) -> dict:
    """Of ``kiln.library.programs.grouped``."""
    if not has_wgmma(target):
        return {"block_m": 128, "block_n": 128, "block_k": 32 * 2 // _bytes(in_dtype), "stages": 3, "threads": 128}
    return {"block_m": 128, "block_n": 256, "block_k": 128 // _bytes(in_dtype), "stages": 3, "threads": 256}


def scaled_product(m, target=None) -> dict:
    """Of ``kiln.library.programs.scaled``. Few rows: narrow blocks whose steps are long."""
    if not has_wgmma(target):
        return {"block_m": 64, "block_n": 64, "block_k": 128, "stages": 2, "threads": 128, "staged_scales": False}
    if m <= 64:
        return {"block_m": 64, "block_n": 64, "block_k": 256, "stages": 4, "threads": 128, "staged_scales": True}
    return {"block_m": 128, "block_n": 256, "block_k": 128, "stages": 3, "threads": 256, "staged_scales": False}


def packed_product(m, k, target=None) -> dict:
    """Of ``kiln.library.programs.packed``. Few rows: all multiprocessors stream weights, and two groups of
    warps in each share a block along k. More: two blocks do."""
    if not has_wgmma(target):
        return for_registers({"block_m": 64, "block_n": 128, "block_k": 64, "stages": 4, "threads": 128}, target)
    if m <= 16 and k >= 1024:
        return {"block_m": 8 if m <= 8 else 16, "block_n": 64, "block_k": 1024, "stages": 3, "threads": 256}
    if m <= 128:
        return {"block_m": 128, "block_n": 128, "block_k": 128, "stages": 3, "threads": 256}
    return {"block_m": 256, "block_n": 128, "block_k": 64, "stages": 5, "threads": 256}


def attention(dim: int, target=None, lse: bool = False) -> dict:
    """Of ``kiln.library.attention``. ``columns``: of the tiles of V and of the result, ``dim`` or more. ``exchanged``: whether weights lie in
    shared memory.
    ``backwards``: whether the last keys come first, which leaves one loop without masks; on AMD's GPUs that takes more registers than it saves.

    wgmma: each group of four warps has 64 rows; two groups always fit (``spaces.attention`` has more).

    AMD's waves of 32 lanes: eight lie four by two on the result; each has 16 rows and half of the columns. ``columns`` is rounded up so that
    both halves are whole instructions; else no half is, and two waves compute the same, with all columns in the registers of each. Weights
    go through shared memory anyway, because an instruction takes operands from other lanes than it leaves results in; read from there by
    each instruction, they take registers for 16 keys, not for all of a step. Above 64 elements, steps are half as long, and above 128 no
    copy is under way during another step, which leaves the registers to the result (above 96 where ``lse``, the rows' sums, come out, too); above
    224 a block has half as many rows.

    AMD's waves of 64 lanes: above 64 elements one block alone fits a compute unit, whose four SIMDs need a wave each. (gfx950 has more
    shared memory, and fills it with copies under way during other steps.) Turing, without asynchronous copies, keeps tiles in registers on
    their way, too: the largest heads' take more threads."""
    plain = {"block_m": 64, "block_n": 64, "stages": 2, "threads": 128, "columns": dim, "exchanged": False,
             "backwards": not _name(target).startswith("hip:")}
    if has_wgmma(target):
        return {**plain, "block_m": 128, "block_n": 128 if dim <= 128 else 64, "threads": 256}
    if _has_waves_of(32, target):
        keys = {"block_m": 64 if dim <= 224 else 32, "block_n": 64 if dim <= 64 else 32, "stages": 2 if dim <= (96 if lse else 128) else 1}
        return {**plain, **keys, "threads": 256, "columns": -(-dim // 32) * 32, "exchanged": True}
    alone = (_has_waves_of(64, target) and dim > 64) or (_name(target).endswith(":sm_75") and dim > 240)
    return {**plain, "threads": 256} if alone else plain


def block_sparse(dim: int, block: int, target=None) -> dict:
    """Of ``kiln.library.block_sparse_attention``: tiles that divide blocks of so many queries and keys. Each step has masks. These take registers,
    which the largest heads have only for one group of warps, and AMD's waves of 32 lanes for half as many rows."""
    tile = attention(dim, target)
    del tile["backwards"]
    rows = min(64 if dim > 128 else 128, tile["block_m"], block)
    if has_wgmma(target):
        tile["threads"] = 2 * rows
    elif _has_waves_of(32, target) and dim > 64:
        rows = 32
    return {**tile, "block_m": rows, "block_n": min(tile["block_n"], block)}


def linear_attention(keys: int, target=None) -> dict:
    """Of ``kiln.library.linear_attention``: a chunk's queries and keys, its faded keys, and the state of so many columns lie in shared memory, the
    state in float32 in registers as well: those of one group of warps up to 128 keys."""
    name, amd = _name(target).split(":")[-1], ":gfx" in _name(target)
    tile = {"chunk": 64, "columns": 64, "stages": 1 if amd else 2, "threads": 128 if has_wgmma(target) and keys <= 128 else 256}
    if name in ("sm_80", "sm_90", "sm_90a", "sm_100a") or keys <= 64:
        return tile
    if keys <= 128:
        return {**tile, "chunk": 32} if amd else tile
    return {**tile, "chunk": 16 if amd else 32, "columns": 32}


# Of the board that a target is compiled for where none is named: the first of its architecture in compiler/target/boards.def.
MULTIPROCESSORS = {"sm_75": 40, "sm_80": 108, "sm_86": 84, "sm_89": 142, "sm_90": 132, "sm_90a": 132, "sm_100a": 148, "sm_120a": 170,
                   "gfx90a": 104, "gfx942": 304, "gfx950": 256, "gfx1100": 96, "gfx1201": 64}
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # each is a kernel of its own
RESIDENT_SPLITS = 2  # blocks of ``decode`` on a multiprocessor at once
SPLIT_COST = 4  # steps that take as long as a block's first loads and its result, of which nothing is hidden


def splits(blocks: int, steps: int, target=None, resident: int = RESIDENT_SPLITS) -> int:
    """How many blocks share the steps over one sequence's keys where ``blocks`` would not: as many as make the last of them end first."""
    at_once = resident * MULTIPROCESSORS.get(_name(target).split(":")[-1], MULTIPROCESSORS["sm_90a"])

    def turns(parts):
        return -(-blocks * parts // at_once) * (-(-steps // parts) + SPLIT_COST)

    return min((parts for parts in SPLITS if parts == 1 or parts <= steps), key=turns)


def decode(rows: int, dim: int, page: int = 0, target=None) -> dict:
    """Of ``kiln.library.attention_decode``. ``rows``: the heads that share keys, times the tokens. Memory bounds it: two blocks share a
    multiprocessor and together keep 64 KiB and more under way.

    wgmma: it computes the products of the transposes, whose columns come by eights; each has 64 keys. Rows beyond those of a tile are other
    blocks', which read the same keys. Above 128 elements, sums take the registers of more rows. Elsewhere a step is shorter where shared memory is
    small: the last one, with its masks, has tiles of its own."""
    name, wide = _name(target).split(":")[-1], dim > 128
    least = 8 if has_wgmma(target) else 16
    few = page % 64 != 0 or _has_waves_of(32, target)  # registers: addresses, or waves of 32 lanes
    most = (16 if few else 32) if wide else 32 if dim > 64 and _has_waves_of(32, target) else 64
    tile = {"block_m": min(most, -(-rows // least) * least), "block_n": 64, "stages": 4 if dim <= 64 else 2, "threads": 128}
    if has_wgmma(target):
        return {**tile, "stages": 3} if page % 64 and dim <= 128 else tile
    if name in ("sm_80", "sm_90", "sm_100a"):
        return {**tile, "block_n": 32} if wide else tile
    if ":gfx" in _name(target):
        return {**tile, "block_n": 16 if wide else 32, "stages": 2, "threads": 256}
    return {**tile, "block_n": 16 if wide else 32, "stages": 3}


def latent(rows: int, target=None) -> dict:
    """Of ``kiln.library.latent_attention`` and ``sparse_latent_attention``. ``rows``: the heads that see the same keys. A key is 576 elements, 1152
    bytes, of which shared memory holds one or two steps beside the queries; the sums of 64 rows take half of the registers of 256 threads."""
    name = _name(target).split(":")[-1]
    least = 8 if has_wgmma(target) else 16
    large = name in ("sm_80", "sm_90", "sm_90a", "sm_100a")  # shared memory
    tile = {"block_m": min(64 if large else 16, -(-rows // least) * least), "block_n": 64 if has_wgmma(target) else 32, "stages": 2, "threads": 256}
    return {**tile, "block_n": 16, "stages": 1} if ":gfx" in _name(target) else tile


KEY_TURNS = 8  # blocks of ``attention_backward`` for each multiprocessor; with fewer, some wait for the longest


def attention_backward(dim: int, target=None, deterministic: bool = False, group: int = 1, tiles_of_keys: int | None = None) -> dict:
    """Of ``kiln.library.attention_backward``, up to 128 elements. ``group``: heads that share keys. ``tiles_of_keys``: of 128, of all heads that have
    some; many, if left out. ``columns``, ``exchanged``: as in ``attention``. ``rows``, ``row_keys``: of the blocks that compute dQ where they are
    others than those of dK and dV. ``turned``: whether lanes hold neighbouring rows of a part of dQ, not columns.

    wgmma: a block's 128 keys take two groups of warps, and their gradients half of the registers at 128 elements, beside which the scores of 64
    queries and their part of dQ fit. Up to 64 elements, blocks without a part of dQ have registers for the scores of 128 queries, and two more
    products of such tiles take less time than sums of dQ in memory. Heads that share keys have blocks of their own where there are few of them, whose
    lengths differ. Elsewhere the gradients of 64 keys fill the registers of four warps, or of eight with more elements; waves of 32 lanes have fewer
    still, and their shared memory takes no copies under way."""
    plain = {"block_m": 64, "block_n": 64, "stages": 2, "threads": 128, "columns": dim, "exchanged": False, "rows": 64, "row_keys": 64,
             "turned": not _name(target).startswith("hip:"), "by_rows": deterministic, "in_flight": False, "heads_apart": False}
    if has_wgmma(target):
        few = tiles_of_keys is not None and tiles_of_keys < KEY_TURNS * MULTIPROCESSORS[_name(target).split(":")[-1]]
        tile = {**plain, "block_n": 128, "threads": 256, "rows": 128, "row_keys": 128, "columns": 128 if dim > 96 else dim, "turned": False,
                "in_flight": True, "heads_apart": few and group > 1 and not deterministic}
        return {**tile, "block_m": 128, "by_rows": True} if dim <= 64 else tile
    if _has_waves_of(32, target):
        small = {} if dim <= 64 else {"block_m": 32, "block_n": 32, "rows": 32, "row_keys": 32}
        return {**plain, "stages": 1, "threads": 256, "columns": -(-dim // 32) * 32, "exchanged": True, **small}
    if _has_waves_of(64, target):
        small = {} if dim <= 64 else {"block_m": 32, "stages": 1, "rows": 32, "row_keys": 32}
        return {**plain, "threads": 256, **small}
    small = {} if dim <= 64 else {"block_m": 32, "threads": 256, "row_keys": 32, "columns": 128 if dim > 96 else dim}
    return {**plain, "stages": 1 if _name(target).endswith(":sm_75") else 2, **small}


def scaled_attention(dim: int, target=None) -> dict:
    """Of ``kiln.library.scaled_attention``. A tile of keys lies along k of the second product, whose instructions take 32 of it. ``ordered``:
    weights stay in registers. wgmma: a thread has half as many registers of scores as there are keys, and of results as there are elements; up to 96
    elements the scores of two steps lie beside each other."""
    if has_wgmma(target):
        return {"block_m": 128, "block_n": 192 if dim == 128 else 128 if dim <= 192 else 96, "stages": 2, "threads": 256, "ordered": True}
    small = dim <= 128
    return {"block_m": 64, "block_n": 64 if small else 32, "stages": 2 if small else 1, "threads": 128 if dim <= 64 else 256, "ordered": False}


def plain_attention(target=None, known=True) -> dict:
    """Of ``kiln.examples.attention``. AMD's waves of 32 lanes have 256 registers for each lane: there, each of eight waves has fewer columns of
    the result, and a step has fewer keys; still fewer where the number of keys is not ``known``, because masks and addresses take more."""
    if not _has_waves_of(32, target):
        return {"block_n": 64, "threads": 128}
    return {"block_n": 32 if known else 16, "threads": 256}


IN_REGISTERS = 16384  # elements of a row; longer ones are programs of their own
RESIDENT = 896  # threads on a multiprocessor whose loads are under way together, where registers are spared for them
CLUSTERS = {2: 66, 4: 30, 8: 15}  # of so many large blocks, that an H200 has at once
SHORT = 1024  # elements of a row, up to which several rows share a block; up to twice as many where little is kept
SHORT_PROGRAMS = ("rms_norm_short", "layer_norm_short", "cross_entropy_short")
_ELEMENTS = {"rms_norm": 32, "softmax": 16, "layer_norm": 64, "layer_norm_backward": 64, "quantize_rows": 64}  # of a thread


def row_threads(program: str, n: int, target=None, dtype="float16") -> int:
    """Threads of a block that keeps a row of n elements in registers: a thread has 64 elements, whose eight loads of 16 bytes are under way
    together; fewer where every element is a float32 of its thread until the row is written, or where elements are wider. AMD: a power of
    two, which is a number of whole waves of 64 lanes, too, and by which threads find their elements without registers for each."""
    elements = _ELEMENTS[program] * 2 // max(2, _bytes(dtype))
    threads = min(1024, max(128, -(-n // elements // 32) * 32))
    return 1 << (threads - 1).bit_length() if _has_waves_of(32, target) or _has_waves_of(64, target) else threads


def short_rows(n: int) -> int:
    """How many rows of n elements a block of 128 threads takes: each thread has 16 bytes of two to four loads, whole ones if that can be."""
    if n > 2 * SHORT:
        return 1
    fit = [count for count in (1, 2, 4, 8, 16, 32, 64) if 12 * 128 < count * n <= 32 * 128]
    return min(fit, key=lambda count: (count * n % (8 * 128) != 0, count), default=64)


def rows(program: str, n: int, target=None, dtype="float16") -> dict:
    """Sizes of a program of ``kiln.library.programs`` that the memory bounds, for rows of n elements. Rows in registers: see ``row_threads``;
    several short ones to a block. Strips of columns: 128 wide where four blocks come on each multiprocessor, else 64 wide, with twice the
    threads and twice the loads of each. Rows in shared memory: the part in registers is the larger, the fewer float32 the program keeps
    beside it. Clusters that share the rows: as many as there are at once; threads have
    at most 32 elements each, in whole warps."""
    if program == "cross_entropy_short" and n > SHORT:
        return {"threads": 128, "rows": 4 if 4 * n <= 40 * 128 else 2}
    if program in SHORT_PROGRAMS or (program == "softmax" and n < 2 * SHORT):
        return {"threads": 128, "rows": short_rows(n)}
    if program in ("rms_norm", "softmax"):
        return {"threads": row_threads(program, n, target), "rows": 1}
    if program == "quantize_rows":
        return {"threads": row_threads(program, n, target), "rows": short_rows(n)}
    if program == "layer_norm_backward":
        return {"threads": row_threads(program, n, target)}
    if program == "layer_norm":
        threads = row_threads(program, n, target, dtype)
        return {"threads": threads, "min_blocks": RESIDENT // threads}
    if program == "row_sum":
        return {"columns": max(512, min(-(-n // 512) * 512, IN_REGISTERS)), "threads": 512}
    if program == "column_sum" and n // 128 < 4 * MULTIPROCESSORS["sm_90a"]:
        return {"steps": 8, "rows": 64, "columns": 64, "threads": 512}
    if program == "cross_entropy":
        return cross_entropy_columns(n, target)
    if program == "swiglu":
        return {"columns": max(128, min(1024, 1 << (n - 1).bit_length()))}
    if program in ("layer_norm_long", "layer_norm_backward_long"):
        blocks = row_blocks(program, n)
        return {"blocks": CLUSTERS[blocks], "threads": max(128, -(-n // blocks // (32 * 32)) * 32)}
    if program.endswith("_long"):
        columns = 32768 if program == "rms_norm_long" and n % 65536 == 0 else row_part(n)
        return {"columns": columns, "threads": min(1024, -(-columns // (16 * 32)) * 32)}
    return {"rows": 1, "columns": 8192, "threads": 512} if program == "softmax_online" and n > IN_REGISTERS else {}


KEPT_BYTES = 232448 // 3  # of a row in one block's shared memory: three blocks share a multiprocessor (compiler/rows/split_rows.cc)


def kept(program: str, n: int) -> dict:
    """Of ``kiln.library.programs.kept``, for rows of n elements of two bytes. ``blocks``: of the cluster that the compiler gives a row to. Norms load
    weights, which more threads have on their way together, unless clusters are large."""
    norm = program in ("rms_norm", "layer_norm")
    plain = 64 if n < 2048 else 128 if n < 16384 else 256
    for blocks in (1, 2, 4, 8):
        threads = min(512, 2 * plain) if norm and blocks <= 2 else plain
        lanes = threads * blocks
        if vectors_of(n, lanes) * lanes * RUN * 2 <= blocks * KEPT_BYTES:
            break
    return {"threads": threads, "blocks": blocks}


def row_part(n: int) -> int:
    """The longest equal parts of a row of n elements of two bytes, one of which lies in the registers of a block and all others in its shared memory;
    they begin at multiples of 16 bytes. 0: they would be short, or too much for shared memory."""
    fewest = -(-n // IN_REGISTERS)
    return next((n // parts for parts in range(fewest, 2 * fewest) if n % (parts * 8) == 0 and n - n // parts <= 7 * IN_REGISTERS), 0)


def row_blocks(program: str, n: int) -> int:
    """How many blocks of a cluster the compiler gives a row of n elements to, of a program that keeps it in a float32 each, and its weights: half of
    a multiprocessor's registers, 128 KiB, hold them, and a quarter holds a part of the float32 (compiler/rows/split_rows.cc)."""
    values, kept = 4 * n, (8 if program == "layer_norm_long" else 6) * n
    if kept <= 1 << 17:
        return 1
    return next((blocks for blocks in (2, 4) if values <= blocks << 16 and kept <= blocks << 17), 8)


def cross_entropy_columns(n: int, target=None) -> dict:
    """Of ``cross_entropy``: a lane has 16 elements of a row up to 4096, else 16, 24 or 32 of each part of it; parts of which the last has the fewest
    lanes without work, the largest of these. AMD: powers of two, as ``row_threads`` says."""
    if _has_waves_of(32, target) or _has_waves_of(64, target):
        columns = min(8192, max(1024, 1 << (n - 1).bit_length()))
        return {"columns": columns, "threads": min(256, columns // 8)}
    if n <= 4096:
        threads = -(-n // (16 * 32)) * 32
        return {"columns": 16 * threads, "threads": threads}
    return {"columns": min((8192, 6144, 4096), key=lambda columns: -(-n // columns) * columns), "threads": 256}


def transposed(n: int, dtype) -> dict:
    """Sizes of ``kiln.library.programs.elementwise.transpose`` for rows of n elements: a tile of 64 KiB at most. Two blocks share a multiprocessor's
    registers where no column has to be checked, which takes some more."""
    columns = 256 // _bytes(dtype)
    return {"block_m": 256, "block_n": columns, "threads": 512, "min_blocks": 2 if n % columns == 0 else 0}


def parts(n: int) -> dict:
    """Sizes of the library's programs that go over a row of n elements part by part."""
    columns = max(128, min(4096, 1 << (n - 1).bit_length()))
    return {"columns": columns, "threads": min(256, max(64, columns // 8))}


def _name(target) -> str:
    """Empty where no target is named and there is no device."""
    try:
        return targets.resolve(target)
    except RuntimeError:
        return ""


def has_wgmma(target) -> bool:
    return _name(target).endswith(":sm_90a")


def _has_waves_of(lanes: int, target) -> bool:
    """Of AMD's: RDNA has 32 lanes in a wave, and CDNA 64."""
    return (":gfx1" if lanes == 32 else ":gfx9") in _name(target)


def _bytes(dtype) -> int:
    name = str(dtype)
    return 1 if "8" in name else 4 if "32" in name else 8 if "64" in name else 2
