# SPDX-License-Identifier: Apache-2.0
"""Each statement of the language and each type that has an address, on each family of targets, checked: results against numpy's. What
the programs hold is read back from their messages, so that a statement or a type without a case shows."""

import as_ptx_test
import cases
import kiln.language as T
import numpy as np
import mma_test
import pinned_test
import pytest
from data import FP8, STORED as FLOATS, decode
from kiln._proto import messages

STORED = {**FLOATS, "bool": np.bool_, "int16": np.int16, "uint16": np.uint16, "uint32": np.uint32, "int64": np.int64, "uint64": np.uint64}
ENUMS = ("DType", "LoopKind", "ReduceKind", "AtomicKind")
TWO_TO_A_BYTE = {"I4", "U4", "F4E2M1"}  # see tests of tilelang_programs/test_tilelang_short_types.py
N = 96
LOOPS = {"serial": T.serial, "unroll": T.unroll, "pipelined": lambda count: T.Pipelined(count, num_stages=2)}
REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min, "abssum": lambda x, axis: np.abs(x).sum(axis),
              "absmax": lambda x, axis: np.abs(x).max(axis),
              "bitand": np.bitwise_and.reduce, "bitor": np.bitwise_or.reduce, "bitxor": np.bitwise_xor.reduce}
ATOMICS = {"add": (T.atomic_add, np.add), "max": (T.atomic_max, np.maximum), "min": (T.atomic_min, np.minimum),
           "and": (T.atomic_and, np.bitwise_and), "or": (T.atomic_or, np.bitwise_or), "xor": (T.atomic_xor, np.bitwise_xor)}
ATOMIC_TYPES = ["int32", "uint32", "int64", "uint64", "float32"]


def values(dtype, shape=(N,)):
    """Small numbers as the dtype stores them; the same each time."""
    small = np.random.default_rng(3).integers(0, 2 if dtype == "bool" else 5, shape)
    if dtype in FP8 or dtype == "bfloat16":
        bits = {int(decode(np.array([b], STORED[dtype]), dtype)[0]): b for b in _codes(dtype)}
        return np.vectorize(bits.get, otypes=[STORED[dtype]])(small)
    return small.astype(STORED[dtype])


def _codes(dtype):
    codes = range(256) if dtype in FP8 else [0] + [(127 + e) << 7 | m << 5 for e in range(3) for m in range(4)]
    return [b for b in codes if decode(np.array([b], STORED[dtype]), dtype)[0] in (0, 1, 2, 3, 4) and not (dtype in FP8 and b == 0x80)]


def moves(dtype):
    """Global, shared, registers and back; fill and a cast on the way."""
    @T.prim_func
    def program(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=64):
            shared, tile, filled = T.alloc_shared((N,), dtype), T.alloc_fragment((N,), dtype), T.alloc_fragment((N,), dtype)
            T.copy(A, shared)
            T.fill(filled, T.cast(1, dtype))
            T.copy(shared, tile)
            for i in T.Parallel(N):
                tile[i] = T.if_then_else(i < N // 2, tile[i], filled[i])
            T.copy(tile, B)
            for i in T.Parallel(N):
                C[i] = T.cast(shared[i], "float32")

    a = values(dtype)
    wide = decode(a, dtype)
    return program, [(a, dtype)], [(dtype, np.where(np.arange(N) < N // 2, wide, 1)), ("float32", wide)]


def loops(kind):
    @T.prim_func
    def program(A: T.Tensor((8, N), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=64):
            total = T.alloc_fragment((N,), "float32")
            T.clear(total)
            for k in kind(8):
                for i in T.Parallel(N):
                    total[i] += A[k, i] * T.cast(k, "float32")
            T.copy(total, B)

    a = values("float32", (8, N))
    return program, [(a, "float32")], [("float32", (a * np.arange(8)[:, None]).sum(0))]


def vectors():
    @T.prim_func
    def program(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(N // 4):
                for v in T.vectorized(4):
                    B[i * 4 + v] = A[i * 4 + v] * 2

    a = values("float32")
    return program, [(a, "float32")], [("float32", a * 2)]


def control():
    """Loops that end early or skip, a while, a branch, a let, a fact, a barrier, tiles handed out to blocks that stay."""
    @T.prim_func
    def program(A: T.Tensor((N,), "int32"), B: T.Tensor((4, N), "int32")):
        with T.Kernel(2, threads=64) as bx:
            T.assume(bx < 2)
            count, shared = T.alloc_var("int32", 0), T.alloc_shared((N,), "int32")
            T.copy(A, shared)
            for k in T.serial(10):
                if k == 3:
                    continue
                if k > 6:
                    T.loop_break()
                count += k
            while count % 5 != 0:
                count += 1
            T.sync_threads()
            for (row,) in T.Persistent([4], 2, bx):
                twice = row * 2
                for i in T.Parallel(N):
                    B[row, i] = shared[i] + count + twice

    a = values("int32")
    return program, [(a, "int32")], [("int32", a[None] + 20 + 2 * np.arange(4)[:, None])]


TEXT = """kiln 1
func @text(%A: global f32[8, 16], %B: global f32[8, 16]) {
  kernel @main grid(2) threads 64 blocks(%bx) {
    for persistent %t in 4 {
      let %row = %t * 2 + %bx
      for parallel %i in 16 {
        store %B[%row, %i] = %A[%row, %i] + f32(%row)
      }
    }
  }
}
"""


class Text:
    serialized = TEXT.encode()


def text():
    """What the Python front end writes in other ways."""
    a = values("float32", (8, 16))
    return Text, [(a, "float32")], [("float32", a + np.arange(8)[:, None])]


def reductions(kind):
    dtype = "int32" if "bit" in kind else "float32"

    @T.prim_func
    def program(A: T.Tensor((8, N), dtype), B: T.Tensor((8,), dtype)):
        with T.Kernel(1, threads=64):
            tile, result = T.alloc_fragment((8, N), dtype), T.alloc_fragment((8,), dtype)
            T.copy(A, tile)
            T.reduce(tile, result, kind, 1)
            T.copy(result, B)

    a = values(dtype, (8, N)) - 2
    return program, [(a, dtype)], [(dtype, REDUCTIONS[kind](a, axis=1))]


def atomics(kind, dtype):
    change, reference = ATOMICS[kind]

    @T.prim_func
    def program(A: T.Tensor((N,), dtype), B: T.Tensor((8,), dtype)):
        with T.Kernel(3, threads=64) as bx:
            for i in T.Parallel(N // 3):
                change(B[(bx * (N // 3) + i) % 8], A[bx * (N // 3) + i])

    a, start = values(dtype), np.full(8, 3, STORED[dtype])
    expected = start.copy()
    reference.at(expected, np.arange(N) % 8, a)
    return program, [(a, dtype)], [(dtype, expected, start)]


def exchanges(dtype):
    @T.prim_func
    def program(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype), D: T.Tensor((N,), dtype), E: T.Tensor((N,), dtype)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(N):
                C[i] = T.atomic_exch(B[i], A[i])
            for i in T.Parallel(N):
                D[i] = T.atomic_cas(B[i], 2, 7)
            for i in T.Parallel(N):
                E[i] = T.atomic_load(B[i], "relaxed")

    a, start = values(dtype), np.full(N, 3, STORED[dtype])
    after = np.where(a == 2, 7, a).astype(STORED[dtype])
    return program, [(a, dtype)], [(dtype, after, start), (dtype, start), (dtype, a), (dtype, after)]


def arithmetic(dtype):
    @T.prim_func
    def program(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(N):
                B[i] = T.max(A[i] * A[i] + A[(i + 1) % N], T.cast(2, dtype))

    a = values(dtype)
    wide = decode(a, dtype)
    return program, [(a, dtype)], [(dtype, np.maximum(wide * wide + np.roll(wide, -1), 2))]


def product(dtype, out):
    """With the operands that the type's instructions have, and none."""
    @T.prim_func
    def program(A: T.Tensor((64, 64), dtype), B: T.Tensor((64, 64), dtype), C: T.Tensor((64, 64), out)):
        with T.Kernel(1, threads=128):
            a, b, c = T.alloc_shared((64, 64), dtype), T.alloc_shared((64, 64), dtype), T.alloc_fragment((64, 64), out)
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C)

    a, b = values(dtype, (64, 64)), values(dtype, (64, 64))
    return program, [(a, dtype), (b, dtype)], [(out, decode(a, dtype) @ decode(b, dtype).T)]


ADD = T.llvm_function("add", """
define void @add(ptr addrspace(1) %tensor, ptr addrspace(3) %tile, i32 %by) {
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %p = getelementptr i32, ptr addrspace(1) %tensor, i32 %i
  %q = getelementptr i32, ptr addrspace(3) %tile, i32 %i
  %v = load i32, ptr addrspace(1) %p
  %w = load i32, ptr addrspace(3) %q
  %sum = add i32 %v, %w
  %more = add i32 %w, %by
  store i32 %sum, ptr addrspace(1) %p
  store i32 %more, ptr addrspace(3) %q
  ret void
}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
""")


def calls():
    """A function that changes a tensor and a tile."""
    @T.prim_func
    def program(A: T.Tensor((N,), "int32"), B: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=N):
            tile = T.alloc_shared((N,), "int32")
            T.copy(A, tile)
            for k in range(2):
                T.call(ADD, B, tile, k + 3)
            for i in T.Parallel(N):
                C[i] = tile[N - 1 - i]

    a, start = values("int32"), np.full(N, 5, np.int32)
    return program, [(a, "int32")], [("int32", start + 2 * a + 3, start), ("int32", a[::-1] + 7)]


TYPES = list(STORED)
NUMBERS = [dtype for dtype in TYPES if dtype != "bool" and dtype != "tfloat32" and dtype not in FP8]
MAKERS = {
    **{f"moves {dtype}": (moves, dtype) for dtype in TYPES}, **{f"loops {name}": (loops, kind) for name, kind in LOOPS.items()},
    "loops vectorized": (vectors,), "control": (control,), "text": (text,), "calls": (calls,),
    **{f"reduce {kind}": (reductions, kind) for kind in REDUCTIONS},
    **{f"atomic {kind} {dtype}": (atomics, kind, dtype) for kind in ATOMICS for dtype in ATOMIC_TYPES if dtype != "float32" or kind == "add"},
    **{f"exchanges {dtype}": (exchanges, dtype) for dtype in ATOMIC_TYPES},
    **{f"arithmetic {dtype}": (arithmetic, dtype) for dtype in NUMBERS},
    **{f"gemm {dtype}": (product, dtype, "int32" if "int" in dtype else "float32") for dtype in
       ("float16", "bfloat16", "tfloat32", "float32", "int8", "uint8", *FP8)},
}


@pytest.mark.parametrize("target", cases.TARGETS)
@pytest.mark.parametrize("name", MAKERS)
def test_agrees_with_numpy(emulator, name, target):
    make, *arguments = MAKERS[name]
    program, inputs, expected = make(*arguments)
    outputs = [(start[0].copy() if start else np.zeros(reference.shape, STORED[dtype]), dtype) for dtype, reference, *start in expected]
    after, answer = emulator.call(emulator.module(program.serialized), target, [*inputs, *outputs], check=1)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    for (dtype, reference, *_), array in zip(expected, after[len(inputs):]):
        assert np.array_equal(decode(array, dtype), np.asarray(reference, np.float64)), name


def statements(message, found):
    """The names of all statements and types in a message."""
    for field, value in message.ListFields():
        if field.enum_type is not None and field.enum_type.name in ENUMS:
            numbers = [value] if isinstance(value, int) else value
            found |= {field.enum_type.values_by_number[number].name for number in numbers}
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in [value] if hasattr(value, "ListFields") else value:
                if field.message_type.name == "Stmt":
                    found.add(inner.WhichOneof("op"))
                statements(inner, found)
    return found


def test_no_statement_and_no_type_is_left_out():
    found = set()
    for make, *arguments in MAKERS.values():
        program = make(*arguments)[0]
        if program is Text:
            found |= {word if word == "let" else word.upper() for word in TEXT.split()}
        else:
            statements(messages().Module.FromString(program.serialized), found)
    # For targets with mbarriers alone, with instructions of warps that a program may choose, and with clusters of blocks.
    for program in (pinned_test.in_one_loop(), pinned_test.with_registers(24, 240), mma_test.product("float16"), as_ptx_test.to_the_next_block):
        statements(messages().Module.FromString(program.serialized), found)
    expected = {field.name for field in messages().Stmt.DESCRIPTOR.oneofs_by_name["op"].fields}
    for name in ENUMS:
        expected |= {value.name for value in messages().enums[name].values if value.number != 0}
    assert expected - TWO_TO_A_BYTE <= found, expected - TWO_TO_A_BYTE - found
