# SPDX-License-Identifier: Apache-2.0
"""Templates of programs, and the sizes of tiles that Kiln's planner expects most of: each has a space of configurations, whose programs kiln.rank
puts in order for the GPU that ``with_arch`` names."""

import dataclasses
import itertools
import math

import kiln
import kiln.language as T
from kiln.language.dtypes import as_dtype

_STAGES = (2, 3, 4)


class NoRasterization:
    """The plan of hints that say nothing of the order of tiles."""

    def __repr__(self):
        return "NoRasterization()"


@dataclasses.dataclass
class IntrinInfo:
    """What a hint says of a product's instruction: the types of its operands, and whether they are transposed. Where an operand's transform kind
    is 1 or more, it is laid out in blocks of the instruction's size. From 2 on, the elements within each block are reordered as well."""

    in_dtype: str
    out_dtype: str
    trans_b: bool
    input_transform_kind: int = 0
    weight_transform_kind: int = 0
    trans_a: bool = dataclasses.field(default=False, init=False)

    def is_input_8bit(self) -> bool:
        return as_dtype(self.in_dtype).bits == 8

    @property
    def smooth_a(self) -> bool:
        return self.input_transform_kind >= 2

    @property
    def smooth_b(self) -> bool:
        return self.weight_transform_kind >= 2

    @property
    def inter_transform_a(self) -> bool:
        return self.input_transform_kind >= 1

    @property
    def inter_transform_b(self) -> bool:
        return self.weight_transform_kind >= 1


@dataclasses.dataclass(frozen=True)
class Hint:
    """Sizes: of a block's part of the result and a warp's, of a step along what is summed. ``microseconds``: what the planner expects."""

    block: tuple
    thread: int
    rstep: tuple = ()
    warp: tuple = ()
    pipeline_stage: int = 1
    microseconds: float = math.inf
    use_async: bool = True
    rasterization_plan: object = NoRasterization

    def to_dict(self) -> dict:
        return dataclasses.asdict(self)


class Template:
    """``space`` gives hints, ``program`` the program of one."""

    arch = None

    def with_arch(self, arch):
        self.arch = arch
        return self

    def has_arch(self) -> bool:
        return self.arch is not None

    def equivalent_function(self):
        """A program that computes it, of the first sizes of the space."""
        return self.program(next(iter(self.space())))

    def recommend_hints(self, topk: int = 10) -> list:
        """The ``topk`` of the space that the planner expects to be fastest; those that it refuses are left out."""
        if self.arch is None:
            raise ValueError(f"{type(self).__name__}.recommend_hints needs a GPU: call with_arch first")
        hints = list(self.space())
        ranked = kiln.rank([self.program(hint) for hint in hints], self.arch.target)
        return [dataclasses.replace(hints[one.index], microseconds=one.microseconds) for one in ranked if not one.problem][:topk]


def _without_bias(template) -> None:
    if template.with_bias:
        raise NotImplementedError(f"{type(template).__name__} with a bias is not part of Kiln: write the program, and ask kiln.rank")


def _warps(block: tuple, threads: int):
    """A warp's part of the block's, as square as the block is."""
    count = threads // 32
    rows = max(r for r in range(1, count + 1) if count % r == 0 and (r == 1 or block[0] // r >= block[1] // (count // r)))
    return block[0] // rows, block[1] // (count // rows)


@dataclasses.dataclass
class MatmulTemplate(Template):
    """C = op(A) · op(B), with ``trans_B`` of B as n × k."""

    M: int
    N: int
    K: int
    trans_A: bool = False
    trans_B: bool = True
    in_dtype: str = "float16"
    out_dtype: str = "float16"
    accum_dtype: str = "float16"
    with_bias: bool = False

    def __post_init__(self):
        _without_bias(self)

    def space(self):
        deep = 64 // as_dtype(self.in_dtype).bytes
        for m, n, k, stages, threads in itertools.product((64, 128, 256), (64, 128, 256), (deep, 2 * deep), _STAGES, (128, 256)):
            if m * n <= 128 * 256 and m // 64 * 128 >= threads:
                yield Hint((m, n), threads, (k,), _warps((m, n), threads), stages)

    def program(self, hint: Hint):
        M, N, K, (m, n), (k,) = self.M, self.N, self.K, hint.block, hint.rstep
        of_a, of_b = ((k, m) if self.trans_A else (m, k)), ((n, k) if self.trans_B else (k, n))

        def matmul(A, B, C):
            with T.Kernel(T.ceildiv(N, n), T.ceildiv(M, m), threads=hint.thread) as (bx, by):
                a, b = T.alloc_shared(of_a, self.in_dtype), T.alloc_shared(of_b, self.in_dtype)
                c = T.alloc_fragment((m, n), self.accum_dtype)
                T.clear(c)
                for step in T.Pipelined(T.ceildiv(K, k), num_stages=hint.pipeline_stage):
                    T.copy(A[step * k, by * m] if self.trans_A else A[by * m, step * k], a)
                    T.copy(B[bx * n, step * k] if self.trans_B else B[step * k, bx * n], b)
                    T.gemm(a, b, c, transpose_A=self.trans_A, transpose_B=self.trans_B)
                T.copy(c, C[by * m, bx * n])

        shapes = [((K, M) if self.trans_A else (M, K), self.in_dtype), ((N, K) if self.trans_B else (K, N), self.in_dtype),
                  ((M, N), self.out_dtype)]
        return _prim_func(matmul, shapes)


@dataclasses.dataclass
class GEMVTemplate(Template):
    """C[n] = Σ A[k] · B[n, k], or B[k, n] without ``trans_B``."""

    N: int
    K: int
    trans_B: bool = True
    in_dtype: str = "float16"
    out_dtype: str = "float16"
    accum_dtype: str = "float16"
    with_bias: bool = False

    def __post_init__(self):
        _without_bias(self)

    def space(self):
        for n, k, threads in itertools.product((4, 8, 16, 32), (256, 512, 1024), (128, 256)):
            yield Hint((n,), threads, (k,))

    def program(self, hint: Hint):
        N, K, (n,), (k,), transposed = self.N, self.K, hint.block, hint.rstep, self.trans_B

        def gemv(A, B, C):
            with T.Kernel(T.ceildiv(N, n), threads=hint.thread) as bx:
                a, b = T.alloc_fragment((k,), self.in_dtype), T.alloc_fragment((n, k) if transposed else (k, n), self.in_dtype)
                products = T.alloc_fragment((n, k), self.accum_dtype)
                total = T.alloc_fragment((n,), self.accum_dtype)
                T.clear(total)
                for step in T.serial(T.ceildiv(K, k)):
                    T.copy(A[0, step * k], a)
                    T.copy(B[bx * n, step * k] if transposed else B[step * k, bx * n], b)
                    for i, j in T.Parallel(n, k):
                        products[i, j] = T.cast(a[j], self.accum_dtype) * T.cast(b[i, j] if transposed else b[j, i], self.accum_dtype)
                    T.reduce_sum(products, total, dim=1, clear=False)
                T.copy(total, C[0, bx * n])

        shapes = [((1, K), self.in_dtype), ((N, K) if transposed else (K, N), self.in_dtype), ((1, N), self.out_dtype)]
        return _prim_func(gemv, shapes)


@dataclasses.dataclass
class GeneralReductionTemplate(Template):
    """Sums over the dimensions that ``structure`` calls R; those called S stay. The blocks share the last of these. With none to sum over it
    is an ElementwiseTemplate."""

    structure: str
    shape: list
    dtype: str = "float16"

    def __new__(cls, structure, shape, dtype="float16"):
        return super().__new__(cls) if "R" in structure else ElementwiseTemplate(shape, dtype)

    def space(self):
        most_b, most_r = self.shape[self._last("S")], self.shape[self._last("R")]
        tiles = sorted({(min(b, most_b), min(r, most_r)) for b in (1, 4, 16, 64, 128) for r in (1, 16, 64, 256, 1024)})
        for (b, r), threads in itertools.product(tiles, (128, 256)):
            if min(128, most_b * most_r) <= b * r <= 16384:
                yield Hint((b,), threads, (r,))

    def _last(self, kind: str) -> int:
        return self.structure.rfind(kind)

    def program(self, hint: Hint):
        (b,), (r,), kept, summed = hint.block, hint.rstep, self._last("S"), self._last("R")
        others = [d for d, kind in enumerate(self.structure) if kind == "S" and d != kept]
        steps = [d for d, kind in enumerate(self.structure) if kind == "R" and d != summed]
        pieces, shape = -(-self.shape[kept] // b), self.shape
        rows_first, every = kept < summed, tuple(range(len(shape)))
        result = [d for d, kind in enumerate(self.structure) if kind == "S"]
        blocks = math.prod([shape[d] for d in others], start=pieces)
        extents = [shape[d] for d in steps] or [1]

        def place(block, counters, step):
            """The index of the tile's first element, by dimension, in the source and in the result."""
            at = {kept: block % pieces * b, summed: step * r}
            left = block // pieces
            for d in reversed(others):
                at[d], left = left % shape[d], left // shape[d]
            at.update(zip(steps, counters))
            return at

        def element(of, at, dims, sizes):
            return of[tuple(at[d] if d not in sizes else slice(at[d], at[d] + sizes[d]) for d in dims)]

        def reduction(A, C):
            with T.Kernel(blocks, threads=hint.thread) as block:
                tile = T.alloc_fragment((b, r) if rows_first else (r, b), self.dtype)
                total = T.alloc_fragment((b,), "float32" if as_dtype(self.dtype).is_float else self.dtype)
                T.clear(total)
                for counters in T.grid(*extents):
                    for step in T.serial(T.ceildiv(shape[summed], r)):
                        at = place(block, counters if isinstance(counters, tuple) else (counters,), step)
                        T.copy(element(A, at, every, {kept: b, summed: r}), tile)
                        T.reduce_sum(tile, total, dim=1 if rows_first else 0, clear=False)
                T.copy(total, element(C, place(block, steps, 0), result, {kept: b}))

        kept_shape = tuple(shape[d] for d, kind in enumerate(self.structure) if kind == "S")
        return _prim_func(reduction, [(tuple(shape), self.dtype), (kept_shape, self.dtype)])


@dataclasses.dataclass
class ElementwiseTemplate(Template):
    """C = A + 1, over any number of dimensions, which blocks share as one."""

    shape: list
    dtype: str = "float16"

    def space(self):
        for size, threads in itertools.product((256, 512, 1024, 2048, 4096, 8192), (128, 256)):
            yield Hint((size,), threads)

    def program(self, hint: Hint):
        count, (size,) = math.prod(self.shape), hint.block

        def elementwise(A, C):
            with T.Kernel(T.ceildiv(count, size), threads=hint.thread) as bx:
                for i in T.Parallel(size):
                    if bx * size + i < count:
                        C[bx * size + i] = A[bx * size + i] + T.cast(1, self.dtype)

        return _prim_func(elementwise, [((count,), self.dtype)] * 2)


def _prim_func(function, shapes):
    """T.prim_func of a function whose tensors are these."""
    names = function.__code__.co_varnames[: len(shapes)]
    function.__annotations__ = {name: T.Tensor(shape, dtype) for name, (shape, dtype) in zip(names, shapes)}
    function.__defaults__ = None
    return T.prim_func(function)


__all__ = ["ElementwiseTemplate", "GEMVTemplate", "GeneralReductionTemplate", "Hint", "MatmulTemplate", "NoRasterization", "Template"]
