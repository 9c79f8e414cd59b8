# SPDX-License-Identifier: Apache-2.0
"""Random programs of several kernels that hand tiles over in workspaces, and of tensors that lie within one another
(``T.annotate_restrict_buffers``): what must not be reordered, kept in a register or moved ahead."""

from dataclasses import replace

from random_text import Tensor, clamped
from random_tiles import BITS, RandomTiles

SMALL = ("float16", "float32", "int32", "int8", "bfloat16")


class RandomKernels(RandomTiles):
    FORMS = ("several kernels", "shared workspace", "workspace read", "workspace written again", "aliasing arguments", "aliased copy",
             "aliased loop", "aliased pipeline", "aliased element", "aliased parallel loop", "alias at an odd element", "local tile", "old values",
             "gathered rows", "view")

    def build(self):
        self.workspaces, self.family, self.declarations = [], [], []
        count = self.pick(2, 2, 3)
        if self.chance(0.5):
            self.aliases()
        for self.later in reversed(range(count)):
            self.kernel()
        self.form("several kernels")
        self.lines[:0] = self.declarations
        return self.source()

    def grid(self):
        if self.family and self.chance(0.6):
            return 1, 1  # blocks have no order: one alone may write
        return super().grid()

    def enter(self):
        self.read_here = set()
        self.readable += self.workspaces

    def kernel(self):
        self.begun = []
        super().kernel()
        self.workspaces += self.begun

    # Workspaces.

    def input(self, shape, dtype):
        tensor = super().input(shape, dtype)
        if tensor in self.workspaces:
            self.form("workspace read")
        self.read_here.add(tensor.name)
        return tensor

    def load(self, tile):
        """Often what another kernel left, in whatever type it has."""
        fits = [w for w in self.workspaces
                if len(w.shape) == max(2, len(tile.shape)) and (w.dtype.startswith("u") or not tile.dtype.startswith("u"))]
        if not fits or self.chance(0.3):
            return super().load(tile)
        chosen = self.pick(*fits)
        self.form("workspace read")
        self.read_here.add(chosen.name)
        self.line(f"T.copy({self.region(chosen.name, self.place(tile.shape, len(chosen.shape)), tile.shape)}, {tile.name})")
        return True

    def sink(self, tile, again=False):
        if again or tile.wide or self.later == 0 or self.gx * self.gy == 0 or self.chance(0.3):
            return super().sink(tile, again)
        rows = 1 if len(tile.shape) == 1 else tile.shape[-2]
        begins = [*["0"] * (len(tile.shape) - 2), f"by * {rows}", f"bx * {tile.shape[-1]}"]
        self.line(f"T.copy({tile.name}, {self.region(self.workspace(tile, rows).name, begins, tile.shape, open_end=self.chance(0.5))})")
        return True

    def workspace(self, tile, rows):
        """One that this tile, of all blocks, fills; or one of an earlier kernel, which has values already."""
        known = [w for w in self.workspaces
                 if w.dtype == tile.dtype and len(w.shape) == max(2, len(tile.shape)) and w.name not in self.read_here]
        if known and self.chance(0.5):
            self.form("workspace written again")
            chosen = self.pick(*known)
            self.workspaces.remove(chosen)  # by one statement of a kernel
            self.begun.append(chosen)
            return chosen
        self.form("shared workspace")
        new = Tensor(self.fresh("W"), (*tile.shape[:-2], rows * self.gy, tile.shape[-1] * self.gx), tile.dtype, "values")
        self.declarations.append(f"    {new.name} = T.alloc_global({new.shape}, '{new.dtype}')")
        self.begun.append(new)
        return new

    # Tensors in one another.

    def aliases(self):
        self.form("aliasing arguments")
        dtype = self.pick(*SMALL)
        rows, columns = self.pick(32, 48, 65), self.pick(32, 40, 64, 33)
        base = self.tensor((rows, columns), dtype)
        self.family = [base]
        bytes_each = BITS.get(dtype, 8) // 8
        step = 16 // bytes_each
        for _ in range(self.pick(1, 1, 2, 3)):
            shape = self.pick((rows // 2, columns), (rows - 8, columns), (rows // 2, columns // 2), (rows, columns))
            room = rows * columns - shape[0] * shape[1]
            first = self.pick(0, room // 2 // step * step, columns * min(8, rows - shape[0]), self.random.randint(0, room))
            first = min(first, room)
            if first % step:
                self.form("alias at an odd element")
                self.alignment = bytes_each
            view = replace(self.tensor(shape, dtype), inside=(self.tensors.index(base), first))
            self.tensors[-1] = view
            self.family.append(view)
        self.declarations.append(f"    T.annotate_restrict_buffers({', '.join(t.name for t in self.family)})")

    def inside(self, tensor, shape, loop=""):
        """Where a box of this shape begins: within the tensor or over its edge."""
        begins = []
        for extent, part in zip(tensor.shape, shape):
            begins.append(str(self.pick(0, 0, max(0, extent - part), max(0, extent - part + 3), self.random.randrange(extent), 8)))
            if part == 1:
                begins[-1] = str(min(extent - 1, int(begins[-1])))
        if loop:
            begins[0] = f"{loop} * {self.pick(1, 2, 8, shape[0])} + {begins[0]}"
        return begins

    def of_family(self, tile, loop=""):
        tensor = self.pick(*self.family)
        shape = tile.shape if len(tile.shape) == 2 else (1, *tile.shape)
        return self.region(tensor.name, self.inside(tensor, shape, loop), tile.shape)

    def aliased(self):
        tiles = [t for t in self.those(wide=False) if len(t.shape) < 3 and not t.dtype.startswith("u")]
        if not self.family or self.gx * self.gy != 1 or not tiles:
            return False
        ways = [self.aliased_copies, self.aliased_loop] * 2 + [self.aliased_elements, self.aliased_parallel]
        self.pick(*ways)(tiles)
        return True

    def aliased_copies(self, tiles):
        self.form("aliased copy")
        for _ in range(self.random.randint(1, 3)):
            tile = self.pick(*tiles)
            pair = [tile.name, self.of_family(tile)]
            self.line(f"T.copy({', '.join(pair if self.chance(0.5) else pair[::-1])})")

    def aliased_loop(self, tiles):
        """What an iteration stores a later one loads, perhaps."""
        if self.depth > 1:
            return self.aliased_copies(tiles)
        self.form("aliased loop")
        name, tile, stages = self.fresh("k"), self.pick(*tiles), self.pick(0, 0, 1, 2, 3)
        if stages:
            self.form("aliased pipeline")
        self.depth += 2  # loops end here
        loop = f"T.Pipelined({self.extent(4)}, num_stages={stages})" if stages else f"T.serial({self.extent(4)})"
        with self.block(f"for {name} in {loop}:"):
            self.loop_vars.append(name)
            self.line(f"T.copy({self.of_family(tile, name)}, {tile.name})")
            if self.chance(0.7):
                self.elementwise(tile, whole=False)
            other = self.pick(tile, tile, *tiles)
            self.line(f"T.copy({other.name}, {self.of_family(other, name)})")
            if self.chance(0.3):
                self.statement()
            self.loop_vars.pop()
        self.depth -= 2

    def element_of_family(self):
        tensor = self.pick(*self.family)
        return f"{tensor.name}[{', '.join(str(self.random.randrange(e)) for e in tensor.shape)}]"

    def aliased_elements(self, tiles):
        self.form("aliased element")
        for _ in range(self.random.randint(1, 4)):
            other = f"T.cast({self.element_of_family()}, 'int32')"
            value = self.pick(f"{other} + 1", other, "5", "bx - 3")
            self.line(f"{self.element_of_family()} = {clamped(value, self.family[0].dtype)}")

    def aliased_parallel(self, tiles):
        self.form("aliased parallel loop")
        tile, tensor = self.pick(*tiles), self.pick(*self.family)
        names = list("ij"[: len(tile.shape)])
        begins = self.inside(tensor, tile.shape if len(tile.shape) == 2 else (1, *tile.shape))
        at = [begins[0], *names] if len(names) == 1 else names
        place = f"{tensor.name}[{', '.join(f'{i} + {b}' if i in names else i for i, b in zip(at, begins))}]"
        with self.block(f"for {', '.join(names)} in T.Parallel({', '.join(map(str, tile.shape))}):"):
            if self.chance(0.5):
                self.line(f"{tile.name}[{', '.join(names)}] = {clamped(f'''T.cast({place}, 'int32') + 1''', tile.dtype)}")
            else:
                self.line(f"{place} = {clamped(self.element_as(tile, names), tensor.dtype)}")

    WEIGHTS = (*RandomTiles.WEIGHTS, (aliased, 70))
