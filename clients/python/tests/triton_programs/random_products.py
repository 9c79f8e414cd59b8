# SPDX-License-Identifier: Apache-2.0
"""Random products of matrices, in the many ways in which kernels write one: a seed gives the text of a kernel in Triton's language, its
arguments, and what numpy makes of them."""

import random

import numpy as np
from numbers_of import BOUND, normal, stored, values

_HEAD = """\
import triton
import triton.language as tl


@triton.jit
def kernel(a_ptr, b_ptr, c_ptr, M, N, K, sab, sam, sak, sbb, sbk, sbn, scb, scm, scn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
"""


class RandomProduct:
    """``text``; ``a``, ``b``, ``c``: arrays as launches take them; ``bound``: how far the result may be from numpy's, relative to its largest."""

    def __init__(self, seed: int):
        r = self.random = random.Random(seed)
        more = random.Random(f"more {seed}")  # than what seeds chose before
        self.dtype = r.choice(["float16", "bfloat16"])
        if more.random() < 0.15:
            self.dtype = "float32"  # in tf32, whose 10 bits are cut
        self.bound = {**BOUND, "float32": 2.0**-9}[self.dtype]
        self.bm, self.bn, self.bk = r.choice([64, 128]), r.choice([16, 32, 64, 128]), r.choice([16, 32, 64])
        self.m, self.n, self.k = r.randrange(1, 150), r.randrange(1, 150), r.choice([0, 1, r.randrange(1, 100), r.randrange(1, 100), 64])
        self.batches = r.choice([0, 0, 0, 1, 3])
        self.warps, self.stages = r.choice([4, 4, 8]), r.choice([1, 2, 3, 4])
        self.style = r.choice(["pointers", "pointers", "pointers", "computed", "block", "descriptor"])
        self.rows, self.columns = r.choice(["wrap", "mask", "bare"]), r.choice(["wrap", "mask", "bare"])
        if self.style in ("block", "descriptor"):
            self.rows = self.columns = "mask"
        self.other = r.choice(["0.0", "0.0", "0.0", "0", None, "1.0"])
        self.masks_rows, self.masks_columns = r.random() < 0.85, r.random() < 0.85
        if not self.masks_rows:
            self.m = self.bm * r.choice([1, 2])
        if not self.masks_columns:
            self.n = self.bn * r.choice([1, 2])
        self.ways = [r.choice([0, 1, 2, 3]) for _ in range(4)]
        self.order = r.choice(["grid", "grouped", "rows"])
        self.programs = more.choice([0, 0, 0, 1, 2, 3]) if self.order != "grid" else 0  # that share out the tiles; 0: one for each
        self.counts, self.by_number = more.random() < 0.5, more.random() < 0.5
        turned, rest = r.choice([False, False, True]), r.choice([False, False, False, True])
        self.halves = random.Random(f"halves {seed}").random() < 0.25  # tiles of A, in registers
        self.a = self._made(seed, self.m, self.k, turned and self.style != "descriptor", rest)
        self.b = self._made(seed + 1, self.k, self.n, r.random() < 0.5 and self.style != "descriptor", rest)
        self.c = self._made(None, self.m, self.n, False, r.random() < 0.2)
        self.text = _HEAD + "".join(f"    {line}\n" for line in self._body())

    def _made(self, seed, rows, columns, turned, odd):
        """Rows, or columns, that are a multiple of 16 elements apart, or not."""
        outer, inner = (columns, rows) if turned else (rows, columns)
        apart = -(-inner // 16) * 16 + (self.random.randrange(1, 9) if odd else 16 * self.random.randrange(2))
        shape = (max(self.batches, 1), outer, apart)
        array = stored(np.full(shape, 77.0) if seed is None else normal(seed, *shape), self.dtype)[:, :, :inner]
        return array.transpose(0, 2, 1) if turned else array

    def _below(self, index: str, bound: str, way: int) -> str:
        return [f"{index} < {bound}", f"{bound} > {index}", f"{index} <= {bound} - 1", f"{index} - ({bound}) < 0"][way]

    def _body(self):
        yield "rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)"
        if self.batches:
            yield f"batch = tl.program_id({2 if self.order == 'grid' else 1})"
            for name in "abc":
                yield f"{name}_ptr += batch{'.to(tl.int64)' if self.ways[0] else ''} * s{name}b"
        if not self.programs:
            yield "pid = tl.program_id(0)"
            yield from self._tile()
            return
        step = self.programs if self.by_number else "tl.num_programs(0)"
        yield f"stored = tl.program_id(0) - {step}"
        yield f"for pid in tl.range(tl.program_id(0), rows * columns, {step}):"
        yield from (f"    {line}" for line in self._tile(f"stored += {step}"))

    def _place(self, pid: str):
        if self.order == "grouped":
            yield f"group = {pid} // (4 * columns)"
            yield "size = min(rows - group * 4, 4)"
            yield f"m, n = group * 4 + ({pid} % (4 * columns)) % size, ({pid} % (4 * columns)) // size"
        elif self.order == "rows":
            yield f"m, n = {pid} // columns, {pid} % columns"
        else:
            yield "m, n = pid, tl.program_id(1)"
        yield "c_m, c_n = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN)"

    def _tile(self, counted: str = ""):
        """``counted``: the statement that counts the tiles which are stored."""
        yield from self._place("pid")
        yield f"at_m = c_m{' % M' if self.rows == 'wrap' else ''}"
        yield f"at_n = c_n{' % N' if self.columns == 'wrap' else ''}"
        yield "at_k = tl.arange(0, BK)"
        yield "total = tl.zeros((BM, BN), dtype=tl.float32)"
        yield from {"pointers": self._pointers, "computed": self._computed, "block": self._blocks, "descriptor": self._descriptors}[self.style]()
        if counted and self.counts:
            yield counted
            yield from self._place("stored")
        yield from self._stores()

    def _left(self, tile: str) -> str:
        return f"({tile} * 0.5).to(a_ptr.dtype.element_ty)" if self.halves else tile

    def _load(self, pointers: str, masks) -> str:
        given = "0.0" if self.other == "1.0" and pointers.startswith("b") else self.other  # zero times one adds nothing
        other = "" if given is None else f", other={given}"
        return f"tl.load({pointers}, mask={' & '.join(f'({mask})' for mask in masks)}{other})"

    def _masks(self, left: str):
        a, b = [self._below("at_k[None, :]", left, self.ways[0])], [self._below("at_k[:, None]", left, self.ways[1])]
        if self.rows == "mask":
            a.append(self._below("at_m[:, None]", "M", self.ways[2]))
        if self.columns == "mask":
            b.append(self._below("at_n[None, :]", "N", self.ways[3]))
        return a, b

    def _pointers(self):
        yield "a = a_ptr + (at_m[:, None] * sam + at_k[None, :] * sak)"
        yield "b = b_ptr + (at_k[:, None] * sbk + at_n[None, :] * sbn)"
        yield "for k in range(0, tl.cdiv(K, BK)):"
        a, b = self._masks("K - k * BK")
        yield f"    total = tl.dot({self._left(self._load('a', a))}, {self._load('b', b)}, total)"
        yield "    a += BK * sak"
        yield "    b += BK * sbk"

    def _computed(self):
        yield "for start in range(0, K, BK):"
        yield "    at_k = start + tl.arange(0, BK)"
        a, b = self._masks("K")
        yield f"    a = {self._load('a_ptr + at_m[:, None] * sam + at_k[None, :] * sak', a)}"
        yield f"    b = {self._load('b_ptr + at_k[:, None] * sbk + at_n[None, :] * sbn', b)}"
        yield f"    total += tl.dot({self._left('a')}, b)"

    def _blocks(self):
        yield "a = tl.make_block_ptr(a_ptr, (M, K), (sam, sak), (m * BM, 0), (BM, BK), (1, 0))"
        yield "b = tl.make_block_ptr(b_ptr, (K, N), (sbk, sbn), (0, n * BN), (BK, BN), (1, 0))"
        yield "for start in range(0, K, BK):"
        yield f"    total = tl.dot({self._left('tl.load(a, boundary_check=(0, 1))')}, tl.load(b, boundary_check=(0, 1)), total)"
        yield "    a, b = tl.advance(a, (0, BK)), tl.advance(b, (BK, 0))"

    def _descriptors(self):
        yield "a = tl.make_tensor_descriptor(a_ptr, [M, K], [sam, 1], [BM, BK])"
        yield "b = tl.make_tensor_descriptor(b_ptr, [K, N], [sbk, 1], [BK, BN])"
        yield "for start in range(0, K, BK):"
        yield f"    total = tl.dot({self._left('a.load([m * BM, start])')}, b.load([start, n * BN]), total)"

    def _stores(self):
        masks = [self._below("c_m[:, None]", "M", self.ways[0])] if self.masks_rows else []
        masks += [self._below("c_n[None, :]", "N", self.ways[1])] if self.masks_columns else []
        mask = f", mask={' & '.join(f'({mask})' for mask in masks)}" if masks else ""
        yield f"tl.store(c_ptr + c_m[:, None] * scm + c_n[None, :] * scn, total.to(c_ptr.dtype.element_ty){mask})"

    def grid(self) -> tuple:
        rows, columns = -(-self.m // self.bm), -(-self.n // self.bn)
        sizes = (rows, columns) if self.order == "grid" else (self.programs or rows * columns,)
        return sizes + ((self.batches,) if self.batches else ())

    def expected(self):
        return values(self.a, self.dtype) @ values(self.b, self.dtype) * (0.5 if self.halves else 1.0)

    def result(self):
        return values(np.ascontiguousarray(self.c), self.dtype)

    def around(self):
        """What lies between the rows of the result, which no kernel may write."""
        return values(self.c.base[:, :, self.n :], self.dtype)

    def launch(self, kernel, argument):
        arrays = (self.a, self.b, self.c)
        strides = [step // x.itemsize for x in arrays for step in x.strides]
        return kernel[self.grid()](*(argument(x, self.dtype) for x in arrays), self.m, self.n, self.k, *strides, BM=self.bm, BN=self.bn, BK=self.bk,
                                   num_warps=self.warps, num_stages=self.stages)
