# SPDX-License-Identifier: Apache-2.0
"""TensorCoreIntrinEmitter: the statements of a product by the instructions of warps, as scripts write them out. Each warp of a block has a part of
the sum, as many rows and columns of instructions as ``warp_rows`` and ``warp_cols`` say; its threads hold their parts in arrays of their own."""

import kiln.language as T
from kiln.language.dtypes import as_dtype
from kiln.language.regions import operand
from kiln.language.trace import store

from . import _absent

_NAMES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "int8": "int8", "uint8": "uint8", "int32": "int32", "float8_e4m3": "e4m3",
          "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
_USE_GEMM = "use T.gemm; the compiler chooses the instruction"


def _abbreviation(dtype) -> str:
    name = str(as_dtype(dtype))
    if name not in _NAMES:
        raise NotImplementedError(f"TensorCoreIntrinEmitter of {name} is not part of Kiln: {_USE_GEMM}")
    return _NAMES[name]


class TensorCoreIntrinEmitter:
    """``a_dtype``, ``b_dtype``, ``accum_dtype``: of the arrays. ``chunk``: how many steps of k the shared tiles hold."""

    M_DIM, WARP_SIZE = 16, 32

    def __init__(self, a_dtype="float16", b_dtype="float16", accum_dtype="float16", a_transposed=False, b_transposed=False, block_row_warps=2,
                 block_col_warps=2, warp_row_tiles=8, warp_col_tiles=8, chunk=16, reduce_k=1, num_elems_per_byte=1, is_m_first=False,
                 thread_var=None):
        if num_elems_per_byte != 1:
            raise NotImplementedError(f"TensorCoreIntrinEmitter of packed elements is not part of Kiln: {_USE_GEMM}")
        self.a_dtype, self.b_dtype, self.accum_dtype = a_dtype, b_dtype, accum_dtype
        self.a_dtype_abbrv, self.b_dtype_abbrv, self.accum_dtype_abbrv = map(_abbreviation, (a_dtype, b_dtype, accum_dtype))
        self.a_transposed, self.b_transposed = a_transposed, b_transposed
        self.block_row_warps, self.block_col_warps = block_row_warps, block_col_warps
        self.warp_row_tiles, self.warp_col_tiles, self.chunk, self.reduce_k = warp_row_tiles, warp_col_tiles, chunk, reduce_k
        self.is_m_first, self.thread_var = bool(is_m_first), thread_var
        if warp_row_tiles % 16 or warp_col_tiles % 8 or warp_row_tiles < 16 or warp_col_tiles < 8:
            raise ValueError(f"a warp's part of {warp_row_tiles} × {warp_col_tiles}: an instruction has 16 rows and 8 columns")
        self.k_dim = self.micro_size_k = min(256 // as_dtype(a_dtype).bits, chunk)
        self._each = 32 // as_dtype(a_dtype).bits  # elements of a word, of which each of a row's four lanes has one or two
        self._halves = self.k_dim // (4 * self._each)
        if self._halves * 4 * self._each != self.k_dim or not self._halves:
            raise ValueError(f"a chunk of {chunk} {a_dtype}: an instruction takes {4 * self._each} or {8 * self._each} steps of k")
        self.n_dim = self.micro_size_y = 16 if warp_col_tiles % 16 == 0 else 8
        self.micro_size_x = self.M_DIM
        self.warp_rows, self.warp_cols = warp_row_tiles // 16, warp_col_tiles // self.n_dim
        self.mma_prefix = f"m16n8k{self.k_dim}"
        self.threads = self.WARP_SIZE * block_row_warps * block_col_warps * reduce_k
        self.local_size_a, self.local_size_b, self.local_size_out = (
            size // self.WARP_SIZE for size in (16 * self.k_dim, self.n_dim * self.k_dim, 16 * self.n_dim))

    mma_num_inst_m = property(lambda self: self.warp_rows, doc="How many instructions a warp's part has along its rows.")
    mma_num_inst_n = property(lambda self: self.warp_cols, doc="The same along its columns.")

    def get_thread_binding(self):
        return T.get_thread_binding() if self.thread_var is None else self.thread_var

    def extract_thread_binding(self, thread_id, is_m_first=None):
        """(lane, the warp's place along columns, along rows)."""
        lane, warp = thread_id % self.WARP_SIZE, thread_id // self.WARP_SIZE
        rows, columns = self.block_row_warps, self.block_col_warps
        if self.is_m_first if is_m_first is None else is_m_first:
            return lane, warp % columns, warp // columns % rows
        return lane, warp // rows % columns, warp % rows

    def _words(self, rows_of_eight: int):
        """(word, row, first k) of what a lane holds of a matrix with that many times 8 rows, as PTX lays out mma.sync's operands: by rows, then k."""
        lane = self.get_thread_binding() % self.WARP_SIZE
        for word in range(self._halves * rows_of_eight):
            block, half = word % rows_of_eight, word // rows_of_eight
            yield word, lane // 4 + 8 * block, (lane % 4 + 4 * half) * self._each

    def _load(self, local, tile, along, transposed, ki, rk, parts, size, rows_of_eight, order):
        """Each lane's words, from shared memory."""
        region = operand(tile, "the shared tile")
        first = [T.as_expr(offset) for offset in region.offsets]
        each = self._each
        for part in range(parts):
            for word, row, k in self._words(rows_of_eight):
                for lane in T.vectorized(each):
                    at = along + part * 8 * rows_of_eight + row, rk * self.chunk + ki * self.k_dim + k + lane
                    at = at[::-1] if transposed else at
                    index = (*first[:-2], first[-2] + at[0], first[-1] + at[1])
                    store(local, (part * size + order(word) * each + lane,), region.buffer[index])

    def ldmatrix_a(self, A_local_buf, A_shared_buf, ki, rk=0):
        """What the warp's instructions of step ``ki`` take of A."""
        _, _, warp_m = self.extract_thread_binding(self.get_thread_binding())
        self._load(A_local_buf, A_shared_buf, warp_m * self.warp_row_tiles, self.a_transposed, ki, rk, self.warp_rows, self.local_size_a, 2,
                   lambda word: word)

    def ldmatrix_b(self, B_local_buf, B_shared_buf, ki, rk=0):
        """The same of B. Where an instruction's columns are half of a part's, all words of the first half come first."""
        _, warp_n, _ = self.extract_thread_binding(self.get_thread_binding())
        blocks = self.n_dim // 8
        self._load(B_local_buf, B_shared_buf, warp_n * self.warp_col_tiles, not self.b_transposed, ki, rk, self.warp_cols, self.local_size_b, blocks,
                   lambda word: word % blocks * self._halves + word // blocks)

    def mma(self, A_local_buf, B_local_buf, C_local_buf, k_inner=0):
        """All products of the warp."""
        for i in range(self.warp_rows):
            for j in range(self.warp_cols):
                self.mma_atom(A_local_buf, B_local_buf, C_local_buf, i, j, k_inner)

    def mma_atom(self, A_local_buf, B_local_buf, C_local_buf, inst_m_idx, inst_n_idx, k_inner=0):
        """The products of one part."""
        halves = self.n_dim // 8
        for half in range(halves):
            T.ptx_mma(self.accum_dtype, self.mma_prefix, "row", "col", self.a_dtype_abbrv, self.b_dtype_abbrv, self.accum_dtype_abbrv,
                      A_local_buf.data, inst_m_idx * self.local_size_a, B_local_buf.data,
                      inst_n_idx * self.local_size_b + self.local_size_b // halves * half, C_local_buf.data,
                      (inst_m_idx * self.warp_cols + inst_n_idx) * self.local_size_out + self.local_size_out // halves * half)

    def stmatrix(self, C_local_buf, C_buf, pid_m=None, pid_n=None):
        """The warp's part of the sum, into a tile of (rows, columns) or (parts along rows, along columns, rows, columns); with ``pid_m`` and
        ``pid_n`` into the block of a tensor that they number."""
        lane, warp_n, warp_m = self.extract_thread_binding(self.get_thread_binding())
        first_m, first_n = warp_m * self.warp_rows, warp_n * self.warp_cols
        if pid_m is not None and pid_n is not None:
            first_m, first_n = pid_m * self.block_row_warps * self.warp_rows + first_m, pid_n * self.block_col_warps * self.warp_cols + first_n
        for i in range(self.warp_rows):
            for j in range(self.warp_cols):
                for pair in range(self.local_size_out // 2):
                    row, column = lane // 4 + 8 * (pair % 2), lane % 4 * 2 + 8 * (pair // 2)
                    for which in T.vectorized(2):
                        at = (first_m + i, first_n + j, row, column + which)
                        index = at if len(C_buf.shape) == 4 else (at[0] * 16 + at[2], at[1] * self.n_dim + at[3])
                        store(C_buf, index, C_local_buf[(i * self.warp_cols + j) * self.local_size_out + 2 * pair + which])

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotImplementedError(f"TensorCoreIntrinEmitter.{name} is not part of Kiln: {_USE_GEMM}")


def mma_store_index_map(thread_id, local_id):
    """(row, column) of a lane's element of a 16 × 16 sum."""
    return local_id % 4 // 2 * 8 + thread_id // 4, local_id // 4 * 8 + thread_id % 4 * 2 + local_id % 2


__getattr__ = _absent.getter(__name__)
