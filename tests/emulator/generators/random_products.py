# SPDX-License-Identifier: Apache-2.0
"""Random products around pipelined loops, with what stands around them in kernels: operands that are converted, converted back, scaled,
read in parts or through registers, several sums, products of a sum, results that leave in several ways. What the plans for tensor copies,
wgmma, rings and persistent blocks take for theirs, and what they must not."""

from random_text import Text

EIGHT = ("int8", "float8_e4m3fn", "float8_e5m2")


class RandomProduct(Text):
    FORMS = ("an operand in parts", "parts at a run-time place", "a product in tf32", "a sparse product")
    largest = 2  # of a tensor's elements: sums of products stay exact

    def build(self):
        self.sizes()
        with self.block(f"with T.Kernel({self.gx}, {self.gy}, threads={self.threads}{self.cluster}) as (bx, by):"):
            self.operands()
            self.sums()
            if self.chance(0.15):
                with self.block(f"for t in T.serial({self.pick(2, 3)}):"):
                    self.body()
            else:
                self.body()
        return self.source()

    def sizes(self):
        self.threads = self.pick(128, 128, 128, 256, 256, 384)
        self.dtype = self.pick("float16", "float16", "bfloat16", *EIGHT)
        with self.aside():
            if self.dtype == "bfloat16" and self.chance(0.3):
                self.dtype = "float32"
        self.sum = "int32" if self.dtype == "int8" else "float32"
        bytes_each = 1 if self.dtype in EIGHT else 4 if self.dtype == "float32" else 2
        self.m = self.pick(64, 64, 64, 64, 128, 80, 192, 16, 24, 32, 8, 152)
        self.n = self.pick(64, 32, 128, 16, 80, 96, 24, 192, 72, 8)
        self.k = self.pick(32, 64, 128, 96) if bytes_each == 1 else self.pick(32, 64, 64, 16, 128, 80, 48)
        with self.aside():
            self.in_parts = self.chance(0.3)
            if self.in_parts and self.chance(0.6):  # several panels, of up to 128 bytes each
                self.k = self.pick(128, 192, 256) if bytes_each == 1 else self.pick(64, 96, 128, 192)
        with self.aside():
            self.choose_sparse(bytes_each)
        while self.m * self.n > 48 * self.threads:
            self.m, self.n = (self.m, max(8, self.n // 16 * 8)) if self.n > 8 else (max(8, self.m // 16 * 8), self.n)
        self.trans_a, self.trans_b = self.chance(0.25), self.chance(0.6)
        self.gx, self.gy, self.trips = self.pick(1, 2, 3), self.pick(1, 1, 2), self.pick(0, 1, 2, 3, 4, 5, 6)
        with self.aside():
            dims = [(x, y) for x in (1, 2) for y in (1, 2) if x * y > 1 and self.gx % x == 0 and self.gy % y == 0]
            matrix = self.m % 64 == 0 and self.n % 8 == 0  # else threads add up, and finding races among them takes the emulator a minute
            self.cluster = f", cluster_dims={self.pick(*dims)}" if dims and matrix and self.chance(0.25) else ""
        extents = [self.edge(self.m * self.gy), self.edge(self.n * self.gx), self.edge(self.k * self.trips)]
        if self.chance(0.5):
            step = 16 // bytes_each  # rows by 16 bytes: what tensor copies take
            extents = [max(step, -(-extent // step) * step) for extent in extents]
        self.rows, self.columns, self.depth = extents
        self.stages = min(self.pick(0, 1, 2, 3, 3, 4), 100000 // ((self.m + 2 * self.n) * self.k * bytes_each))
        self.symbolic = self.chance(0.25)
        self.batch = self.pick(0, 0, 0, 2)

    def choose_sparse(self, bytes_each):
        """Whether A has half of its columns, and metadata of where they are."""
        self.sparse = not self.in_parts and self.chance(0.2)
        self.meta, self.trans_e = self.pick("int8", "uint8", "int16", "uint16", "int32", "uint32"), self.chance(0.25)
        self.each = int(self.meta.strip("uint")) // 4 * (2 if bytes_each == 4 else 4)
        if not self.sparse:
            return
        self.form("a sparse product")
        if self.k % self.each:
            self.k = -(-self.k // self.each) * self.each

    def edge(self, extent):
        return max(1, extent - self.pick(1, 3, 8, 16, extent // 2)) if self.chance(0.6) else extent

    def matrix(self, shape, dtype):
        return self.tensor((self.batch,) * bool(self.batch) + shape, dtype, symbolic=self.symbolic and self.chance(0.5)).name

    def operands(self):
        """The tensors, and the tiles that the loop fills."""
        kept = self.k // 2 if self.sparse else self.k
        self.a_shape = (kept, self.m) if self.trans_a else (self.m, kept)
        self.b_shape = (self.n, self.k) if self.trans_b else (self.k, self.n)
        depth = -(-self.depth // 2) if self.sparse else self.depth
        a_whole, b_whole = ((depth, self.rows)[:: 1 if self.trans_a else -1], (self.columns, self.depth)[:: 1 if self.trans_b else -1])
        self.converted = self.dtype == "float16" and self.chance(0.15)
        self.twice = self.chance(0.2)
        self.in_registers = not self.trans_a and self.chance(0.2)
        self.a = self.matrix(a_whole, self.dtype)
        self.b = self.matrix(b_whole, "int8" if self.converted else self.dtype)
        self.b2 = self.matrix(b_whole, self.dtype) if self.twice else None
        if self.sparse:
            self.metadata()
        self.allocate("A_tile", "shared", self.a_shape, self.dtype)
        self.allocate("B_tile", "shared", self.b_shape, self.dtype)
        if self.in_registers:
            self.allocate("A_own", "fragment", self.a_shape, self.dtype)
        if self.converted:
            self.allocate("B_packed", self.pick("shared", "shared", "fragment"), self.b_shape, "int8")
        if self.twice:
            self.allocate("B2_tile", "shared", self.b_shape, self.dtype)

    def metadata(self):
        """The tensor, which knows of all columns of A, and its tile."""
        turn = 1 if self.trans_e else -1
        whole = (-(-max(self.depth, 2) // self.each), self.rows)[::turn]
        self.e = self.tensor(whole, self.meta, "halves" if self.dtype == "float32" else "pairs").name
        self.allocate("E_tile", "shared", (self.k // self.each, self.m)[::turn], self.meta)

    def parts(self):
        """An operand once more, part by part from registers, so that each part is changed by what it holds and by where it goes."""
        tile, shape = self.pick(("A_tile", self.a_shape), ("B_tile", self.b_shape))
        whole, dim = self.fresh("whole"), self.pick(0, 1, 1)
        self.allocate(whole, "fragment", shape, self.dtype)
        self.line(f"T.copy({tile}, {whole})")
        with self.over(shape):
            self.line(f"{whole}[i, j] = T.cast(T.min(T.cast({whole}[i, j], '{self.sum}'), T.cast(1 - j % 2, '{self.sum}')), '{self.dtype}')")
        width = self.pick(*[w for w in (8, 16, 24, 32, 40, 48, 64, 96, 128, shape[dim] // 2) if 0 < w <= shape[dim]] or [shape[dim]])
        count, moved = shape[dim] // width, [*shape]
        moved[dim] = width
        self.form("an operand in parts")
        loop = self.pick("serial", "serial", "unroll", "constants")
        if loop == "serial":
            self.form("parts at a run-time place")
        if loop == "constants":
            for part in self.random.sample(range(count), max(1, count - self.pick(0, 1))):
                self.part(tile, whole, dim, moved, part * width)
            return
        name = self.fresh("p")
        with self.block(f"for {name} in T.{loop}({count}):"):
            self.part(tile, whole, dim, moved, f"{name} * {width}")

    def part(self, tile, whole, dim, moved, begin):
        """One of them, which begins there."""
        region = ", ".join(f"{begin} : {begin} + {e}" if d == dim else ":" for d, e in enumerate(moved))
        way = self.pick("copy", "elements", "fragment")
        if way == "copy":
            self.line(f"T.copy({whole}[{region}], {tile}[{region}])")
        elif way == "elements":
            at = ", ".join(f"{begin} + {v}" if d == dim else v for d, v in enumerate("ij"))
            with self.over(moved):
                self.line(f"{tile}[{at}] = {whole}[{at}]")
        else:
            own = self.fresh("own")
            self.allocate(own, "fragment", moved, self.dtype)
            self.line(f"T.copy({tile}[{region}], {own})")
            with self.over(moved):
                self.line(f"{own}[i, j] = T.cast(T.max(T.cast({own}[i, j], '{self.sum}'), T.cast(i % 2, '{self.sum}')), '{self.dtype}')")
            self.line(f"T.copy({own}, {tile}[{region}])")

    def allocate(self, name, space, shape, dtype):
        self.line(f"{name} = T.alloc_{space}({tuple(shape)}, '{dtype}')")

    def sums(self):
        self.scaled, self.row_sums = self.chance(0.2), not self.trans_a and self.chance(0.15)
        self.allocate("C", "fragment", (self.m, self.n), self.sum)
        if self.twice:
            self.allocate("C2", "fragment", (self.m, self.n), self.sum)
        if self.scaled:
            self.scales = self.tensor((max(1, self.trips), self.rows), "float32").name
            self.allocate("part", "fragment", (self.m, self.n), self.sum)
            self.allocate("scale", "fragment", (self.m,), "float32")
        if self.row_sums:
            self.allocate("A_wide", "fragment", self.a_shape, "float32")
            self.allocate("row_sums", "fragment", (self.m,), "float32")
            self.line("T.clear(row_sums)")
        if self.twice:
            self.line("T.clear(C2)")

    def body(self):
        self.line("T.clear(C)")
        with self.block(self.head()):
            self.loads()
            self.prepare()
            self.products()
        self.epilogue()
        self.leave()

    def head(self):
        count = self.pick(str(self.trips), str(self.trips), self.symbol(self.trips), f"T.min({self.trips}, by + {self.pick(1, 2)})")
        return f"for k in T.Pipelined({count}, num_stages={self.stages}):" if self.chance(0.9) else f"for k in T.serial({count}):"

    def loads(self):
        lead = f"bx % {self.batch}, " if self.batch else ""
        a_at = (f"k * {self.k // 2 if self.sparse else self.k}", f"by * {self.m}")[:: 1 if self.trans_a else -1]
        b_at = (f"bx * {self.n}", f"k * {self.k}")[:: 1 if self.trans_b else -1]
        copies = [(self.a, a_at, "A_tile"), (self.b, b_at, "B_packed" if self.converted else "B_tile")]
        if self.twice:
            copies.append((self.b2, b_at, "B2_tile"))
        self.random.shuffle(copies)
        if self.sparse:
            e_at = (f"k * {self.k // self.each}", f"by * {self.m}")[:: 1 if self.trans_e else -1]
            self.line(f"T.copy({self.e}[{', '.join(e_at)}], E_tile)")
        for tensor, at, tile in copies:
            self.line(f"T.copy({tensor}[{lead}{', '.join(at)}], {tile})")

    def over(self, shape):
        return self.block(f"for {', '.join('ij'[: len(shape)])} in T.Parallel({', '.join(map(str, shape))}):")

    def prepare(self):
        """What happens to operands between the copy and the product."""
        if self.converted:
            with self.over(self.b_shape):
                self.line(f"B_tile[i, j] = T.cast(B_packed[i, j], '{self.dtype}')" + self.pick("", f" * T.cast(2, '{self.dtype}')"))
        if self.chance(0.12):
            with self.over(self.a_shape):
                self.line(f"A_tile[i, j] = T.cast(T.min(T.cast(A_tile[i, j], '{self.sum}'), T.cast(1, '{self.sum}')), '{self.dtype}')")
        with self.aside():
            if self.in_parts:
                self.parts()
        if self.in_registers:
            self.line("T.copy(A_tile, A_own)")
            if self.chance(0.5):
                with self.over(self.a_shape):
                    # Beyond a sparse tensor's end, where the metadata name no places, zeros stay zeros.
                    least = f"T.cast({'0' if self.sparse else self.pick('0', 'i % 2', 'k % 2')}, '{self.sum}')"
                    self.line(f"A_own[i, j] = T.cast(T.max(T.cast(A_own[i, j], '{self.sum}'), {least}), '{self.dtype}')")

    def products(self):
        options = [", transpose_A=True"] * self.trans_a + [", transpose_B=True"] * self.trans_b
        options = "".join(options) + self.pick("", "", "", ", policy=T.GemmWarpPolicy.FullRow", ", policy=T.GemmWarpPolicy.FullCol")
        with self.aside():
            if self.dtype == "float32" and self.chance(0.8):
                self.form("a product in tf32")
                options += ", allow_tf32=True"
        a = "A_own" if self.in_registers else "A_tile"
        if self.chance(0.12):
            with self.block(f"if {self.pick('k % 2 == 0', 'k > 0', 'k + by < 3')}:"):
                self.product(a, options)
        else:
            self.product(a, options)
        if self.twice:
            self.multiply(a, "B2_tile", f"C2{options}")
        if self.row_sums:
            self.line("T.copy(A_tile, A_wide)")
            self.line("T.reduce_sum(A_wide, row_sums, dim=1, clear=False)")

    def product(self, a, options):
        if self.scaled:
            self.multiply(a, "B_tile", f"part{options}, clear_accum=True")
            with self.over((self.m,)):
                read = f"{self.scales}[k, by * {self.m} + i]"
                self.line(f"scale[i] = {self.pick(read, f'T.if_then_else(by * {self.m} + i < {self.rows}, {read}, 0)')}")
            with self.over((self.m, self.n)):
                self.line(f"C[i, j] = C[i, j] + T.cast(T.cast(part[i, j], 'float32') * scale[i], '{self.sum}')")
        elif self.k % 32 == 0 and not self.in_registers and self.chance(0.25) and not self.sparse:
            for begin in self.random.sample([0, self.k // 2], 2):
                part = f"{begin} : {begin + self.k // 2}"
                a_part, b_part = f"{part}, :" if self.trans_a else f":, {part}", f":, {part}" if self.trans_b else f"{part}, :"
                self.line(f"T.gemm(A_tile[{a_part}], B_tile[{b_part}], C{options})")
        else:
            self.multiply(a, "B_tile", f"C{options}")

    def multiply(self, a, b, rest):
        if not self.sparse:
            return self.line(f"T.gemm({a}, {b}, {rest})")
        self.line(f"T.gemm_sp({a}, E_tile, {b}, {rest}{', transpose_E=True' * self.trans_e})")

    def epilogue(self):
        tile = (self.m, self.n)
        at = f"by * {self.m} + i, bx * {self.n} + j"
        if self.twice:
            with self.over(tile):
                self.line(f"C[i, j] = C[i, j] {self.pick('+', '-')} C2[i, j]")
        if self.chance(0.3):
            bias = self.tensor((self.columns,), self.sum)
            with self.over(tile):
                self.line(f"C[i, j] = C[i, j] + {bias.name}[bx * {self.n} + j]")
        if self.chance(0.25):
            residual = self.tensor((self.rows, self.columns), self.pick("float16", self.sum))
            with self.over(tile):
                self.line(f"C[i, j] = C[i, j] + T.cast({residual.name}[{at}], '{self.sum}')")
        if self.row_sums:
            out = self.tensor((self.rows,), "float32", "marks")
            with self.block("if bx == 0:"), self.over((self.m,)):
                self.line(f"{out.name}[by * {self.m} + i] = row_sums[i]")
        if self.sum == "float32" and self.dtype not in EIGHT and self.n % 16 == 0 and self.chance(0.2):
            self.product_of_the_sum()
        if self.chance(0.3):
            self.row_maxima()

    def product_of_the_sum(self):
        width, name = self.pick(32, 64, 16, 80), self.fresh("P")
        right = self.tensor((self.columns, width), self.dtype)
        self.allocate(name, self.pick("fragment", "shared"), (self.m, self.n), self.dtype)
        self.allocate(f"{name}_right", "shared", (self.n, width), self.dtype)
        self.allocate(f"{name}_sum", "fragment", (self.m, width), "float32")
        self.line(f"T.clear({name}_sum)")
        with self.over((self.m, self.n)):
            self.line(f"{name}[i, j] = T.cast(T.max(T.min(C[i, j], 3), -3), '{self.dtype}')")
        self.line(f"T.copy({right.name}[bx * {self.n}, 0], {name}_right)")
        self.line(f"T.gemm({name}, {name}_right, {name}_sum)")
        out = self.tensor((self.gx, self.rows, width), "float32", "marks")
        self.line(f"T.copy({name}_sum, {out.name}[bx, by * {self.m}, 0])")

    def row_maxima(self):
        out, name = self.tensor((self.gx, self.rows), self.sum, "marks"), self.fresh("maxima")
        self.allocate(name, "fragment", (self.m,), self.sum)
        self.line(f"T.reduce_max(C, {name}, dim=1)")
        with self.over((self.m,)):
            self.line(f"{out.name}[bx, by * {self.m} + i] = {name}[i]")

    def leave(self):
        """The result to memory: as it is, rounded through registers or shared memory, element by element, turned."""
        way = self.pick("sum", "sum", "fragment", "shared", "shared", "elements", "turned")
        dtype = self.sum if way == "sum" else self.pick("float16", "bfloat16", "int8", "float32", "float16")
        shape = (self.columns, self.rows) if way == "turned" else (self.rows, self.columns)
        out = self.tensor(shape, dtype, "marks").name
        bounded = f"T.cast(T.max(T.min(C[i, j], 9), -9), '{dtype}')"
        if way == "sum":
            self.line(f"T.copy(C, {out}[by * {self.m}, bx * {self.n}])")
            return
        if way == "elements":
            with self.over((self.m, self.n)):
                self.line(f"{out}[by * {self.m} + i, bx * {self.n} + j] = {bounded}")
            return
        name = self.fresh("D")
        self.allocate(name, "shared" if way == "shared" else "fragment", (self.m, self.n), dtype)
        with self.over((self.m, self.n)):
            self.line(f"{name}[i, j] = {bounded}")
        if way == "turned":
            with self.over((self.n, self.m)):
                self.line(f"{out}[bx * {self.n} + i, by * {self.m} + j] = {name}[j, i]")
        else:
            self.line(f"T.copy({name}, {out}[by * {self.m}, bx * {self.n}])")
