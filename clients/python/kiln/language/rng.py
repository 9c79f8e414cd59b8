# SPDX-License-Identifier: Apache-2.0
"""Random numbers: T.rng_init, T.rng_rand and T.rng_rand_float, with the bits of cuRAND's device generators. Each thread has a state of its own, in
private arrays."""

from __future__ import annotations

import contextlib
import functools

from . import program as ir
from . import trace as tr
from .buffer import Buffer, load
from .dtypes import as_dtype, float32, float64, int32, uint32, uint64
from .expr import Expr, as_expr, cast, const, constant_value, select
from .launch import get_block_binding, get_thread_binding, get_thread_extent
from .loops import serial
from .math import cos, log, sin, sqrt
from .scope import Scope


def _u32(value) -> Expr:
    return cast(value, uint32)


def _u64(value) -> Expr:
    return cast(value, uint64)


class _Array:
    """A private array that lives as long as the kernel's block: a state may be drawn from behind the branch that began it."""

    def __init__(self, kernel, dtype, size: int, name: str):
        self.buffer = Buffer("LOCAL", (size,), as_dtype(dtype), f"random_{name}")
        kernel.body.insert(0, ir.Alloc(self.buffer))

    def __getitem__(self, index) -> Expr:
        return load(self.buffer, (index,))

    def __setitem__(self, index, value):
        tr.store(self.buffer, (index,), value)

    def now(self, index: int) -> Expr:
        """The element as it is here, whatever is stored later."""
        return _kept(self[index])

    def set(self, values):
        """All elements, once all values are computed."""
        for index, value in enumerate([_kept(as_expr(v)) for v in values]):
            self[index] = value


def _kept(value: Expr) -> Expr:
    return tr.let("drawn", value)


@contextlib.contextmanager
def _when(cond):
    stmt = tr.current().emit(ir.If(cond))
    with tr.current().inside(stmt.then_body, "branch"):
        yield stmt


@contextlib.contextmanager
def _otherwise(stmt):
    with tr.current().inside(stmt.else_body, "branch"):
        yield


class _Generator:
    """``begin`` sets the state, ``bits`` draws 32 of them. A normal number comes with a second one, which the next call gives."""

    def __init__(self, kernel):
        self.kept = {float32: (_Array(kernel, int32, 1, "has_normal"), _Array(kernel, float32, 1, "normal")),
                     float64: (_Array(kernel, int32, 1, "has_normal64"), _Array(kernel, float64, 1, "normal64"))}
        self.result = {float32: _Array(kernel, float32, 1, "result"), float64: _Array(kernel, float64, 1, "result64")}

    def start(self, seed: Expr, sequence: Expr, offset: Expr):
        for has, _ in self.kept.values():
            has[0] = 0
        self.begin(seed, sequence, offset)

    def uniform(self, dtype) -> Expr:
        """In (0, 1]."""
        if dtype is float32:
            return _kept(cast(self.bits(), float32) * const(2.0**-32, float32) + const(2.0**-33, float32))
        return _kept(self._wide())

    def _wide(self) -> Expr:
        x, y = self.bits(), self.bits()
        return _of_53_bits(x, y)

    def _pair(self, dtype):
        """The two numbers from which normal ones are made, the second as an angle."""
        if dtype is float32:
            x, y = self.bits(), self.bits()
            return [cast(number, float32) * const(scale, float32) + const(scale / 2, float32)
                    for number, scale in ((x, 2.0**-32), (y, 2.0**-32 * 6.2831855))]
        x, y = _of_53_bits(self.bits(), self.bits()), _of_53_bits(self.bits(), self.bits())
        return x, y * const(2 * 3.1415926535897932, float64)

    def normal(self, dtype) -> Expr:
        (has, other), result = self.kept[dtype], self.result[dtype]
        with _when(has[0] != 0) as branch:
            result[0] = other[0]
            has[0] = 0
        with _otherwise(branch):
            x, angle = self._pair(dtype)
            length, angle = _kept(sqrt(const(-2, dtype) * log(x))), _kept(angle)
            result[0] = sin(angle) * length
            other[0] = cos(angle) * length
            has[0] = 1
        return result.now(0)


def _of_53_bits(x: Expr, y: Expr) -> Expr:
    bits = _u64(x) ^ (_u64(y) << 21)
    return cast(bits, float64) * const(2.0**-53, float64) + const(2.0**-54, float64)


class _Philox(_Generator):
    """Philox 4 × 32, 10 rounds: a counter of blocks of four numbers, and the block that is being given out."""

    def __init__(self, kernel):
        super().__init__(kernel)
        self.key, self.high = _Array(kernel, uint32, 2, "key"), _Array(kernel, uint32, 2, "sequence")
        self.count, self.used = _Array(kernel, uint64, 1, "count"), _Array(kernel, int32, 1, "used")
        self.block = _Array(kernel, uint32, 4, "block")

    def begin(self, seed, sequence, offset):
        self.key[0], self.key[1] = _u32(seed), _u32(seed >> 32)
        self.high[0], self.high[1] = _u32(sequence), _u32(sequence >> 32)
        self.count[0] = offset >> 2
        self.used[0] = cast(offset & 3, int32)
        self._fill()

    def _fill(self):
        count = self.count.now(0)
        c = [_u32(count), _u32(count >> 32), self.high[0], self.high[1]]
        k0, k1 = self.key[0], self.key[1]
        for turn in range(10):
            first, second = _u64(c[0]) * _u64(0xD2511F53), _u64(c[2]) * _u64(0xCD9E8D57)
            key = k0 + _u32(turn * 0x9E3779B9 & 0xFFFFFFFF), k1 + _u32(turn * 0xBB67AE85 & 0xFFFFFFFF)
            c = [_kept(e) for e in (_u32(second >> 32) ^ c[1] ^ key[0], _u32(second), _u32(first >> 32) ^ c[3] ^ key[1], _u32(first))]
        self.block.set(c)

    def bits(self) -> Expr:
        used = self.used.now(0)
        b = self.block
        value = _kept(select(used == 0, b[0], select(used == 1, b[1], select(used == 2, b[2], b[3]))))
        self.used[0] = used + 1
        with _when(used == 3):
            self.used[0] = 0
            self.count[0] = self.count[0] + _u64(1)
            self._fill()
        return value

    def _wide(self) -> Expr:
        """Of 32 bits: the state has no more for one number."""
        return cast(self.bits(), float64) * const(2.0**-32, float64) + const(2.0**-32, float64)


class _Xorwow(_Generator):
    """Five words that are shifted and xored, and a sum. Of the words a step is linear over the bits, so that many steps are a polynomial of one,
    modulo the characteristic one."""

    WORDS = 5

    def __init__(self, kernel):
        super().__init__(kernel)
        self.words, self.sum = _Array(kernel, uint32, self.WORDS, "words"), _Array(kernel, uint32, 1, "sum")
        self.work = [_Array(kernel, uint32, self.WORDS, name) for name in ("power", "left", "total")]

    def begin(self, seed, sequence, offset):
        a, b = _u32(seed) ^ _u32(0xAAD26B49), _u32(seed >> 32) ^ _u32(0xF7DCEFDD)
        a, b = _kept(a * _u32(1099087573)), _kept(b * _u32(2591861531))
        self.sum[0] = _u32(6615241) + b + a + _u32(362437) * _u32(offset)
        self.words.set([_u32(123456789) + a, _u32(362436069) ^ a, _u32(521288629) + b, _u32(88675123) ^ b, _u32(5783321) + a])
        self._skip(sequence, _xorwow_power(67))
        self._skip(offset, 2)

    def _step(self):
        w = [self.words.now(i) for i in range(self.WORDS)]
        t = w[0] ^ (w[0] >> 2)
        self.words.set([*w[1:], w[4] ^ (w[4] << 4) ^ t ^ (t << 1)])

    def bits(self) -> Expr:
        self._step()
        self.sum[0] = self.sum[0] + _u32(362437)
        return _kept(self.words[4] + self.sum[0])

    def _skip(self, count: Expr, polynomial: int):
        """As many steps of those that the polynomial makes at once: by squaring."""
        if constant_value(count) == 0:
            return
        power, left, total = self.work
        rest = _Array(tr.current().kernel, uint64, 1, "rest")
        rest[0] = count
        power.set(_words(polynomial))
        for _ in Scope.while_(lambda: rest[0] != _u64(0)):
            with _when((rest[0] & _u64(1)) != _u64(0)):
                self._apply(power, left, total)
            self._square(power, left, total)
            rest[0] = rest[0] >> _u64(1)

    def _apply(self, power, left, total):
        """words = Σ bit · (words after so many steps)."""
        left.set([power[i] for i in range(self.WORDS)])
        total.set([_u32(0)] * self.WORDS)
        for _ in serial(32 * self.WORDS):
            mask = _kept(_u32(0) - (left[0] & _u32(1)))
            total.set([total[i] ^ (self.words[i] & mask) for i in range(self.WORDS)])
            left.set([(left[i] >> 1) | (left[i + 1] << 31 if i + 1 < self.WORDS else _u32(0)) for i in range(self.WORDS)])
            self._step()
        self.words.set([total[i] for i in range(self.WORDS)])

    def _square(self, power, left, total):
        """The bits of a square stand at twice their places: from the highest on, times x², plus one bit."""
        left.set([power[i] for i in range(self.WORDS)])
        total.set([_u32(0)] * self.WORDS)
        for _ in serial(32 * self.WORDS):
            for _ in range(2):
                mask = _kept(_u32(0) - (total[self.WORDS - 1] >> 31))
                low = _words(_xorwow_polynomial() & ((1 << 32 * self.WORDS) - 1))
                total.set([self._shifted(total, i) ^ (low[i] & mask) for i in range(self.WORDS)])
            total[0] = total[0] ^ (left[self.WORDS - 1] >> 31)
            left.set([self._shifted(left, i) for i in range(self.WORDS)])
        power.set([total[i] for i in range(self.WORDS)])

    def _shifted(self, words, i: int) -> Expr:
        return (words[i] << 1) | (words[i - 1] >> 31) if i else words[i] << 1


def _words(number: int) -> list:
    return [_u32(number >> 32 * i & 0xFFFFFFFF) for i in range(_Xorwow.WORDS)]


@functools.cache
def _xorwow_polynomial() -> int:
    """The characteristic polynomial of a step, bit k for x^k: the shortest recurrence of one bit of the words (Berlekamp and Massey)."""
    words, bits = [1, 0, 0, 0, 0], []
    for _ in range(2 * 32 * _Xorwow.WORDS):
        bits.append(words[0] & 1)
        t = words[0] ^ words[0] >> 2
        words = [*words[1:], (words[4] ^ words[4] << 4 ^ t ^ t << 1) & 0xFFFFFFFF]
    current, before, length, since = 1, 1, 0, 1  # bit k: what bits[n - k] adds
    for n in range(len(bits)):
        if sum(bits[n - k] for k in range(length + 1) if current >> k & 1) % 2 == 0:
            since += 1
        elif 2 * length <= n:
            current, before, length, since = current ^ before << since, current, n + 1 - length, 1
        else:
            current, since = current ^ before << since, since + 1
    return sum((current >> k & 1) << (length - k) for k in range(length + 1))


@functools.cache
def _xorwow_power(log2: int) -> int:
    """x^(2^log2) modulo the characteristic polynomial."""
    modulus, power = _xorwow_polynomial(), 2
    degree = modulus.bit_length() - 1
    for _ in range(log2):
        square = sum((power >> k & 1) << 2 * k for k in range(degree))
        while square.bit_length() > degree:
            square ^= modulus << square.bit_length() - 1 - degree
        power = square
    return power


class _Mrg32k3a(_Generator):
    """Two recurrences of three numbers, each modulo a prime below 2^32."""

    MODULI = (4294967087, 4294944443)
    STEPS = (((0, 1, 0), (0, 0, 1), (4294967087 - 810728, 1403580, 0)), ((0, 1, 0), (0, 0, 1), (4294944443 - 1370589, 0, 527612)))

    def __init__(self, kernel):
        super().__init__(kernel)
        self.states = [_Array(kernel, uint64, 3, f"state{i}") for i in range(2)]
        self.power = _Array(kernel, uint64, 9, "power")

    def begin(self, seed, sequence, offset):
        low, high = _u64(_u32(seed) ^ _u32(0x55555555)), _u64(_u32(seed >> 32) ^ _u32(0xAAAAAAAA))
        seeded = _kept(seed != _u64(0))
        for number, (state, m) in enumerate(zip(self.states, self.MODULI)):
            by = (low, high, low) if number == 0 else (high, low, high)
            state.set([select(seeded, x * _u64(12345) % _u64(m), _u64(12345)) for x in by])
            self._skip(state, sequence, _matrix_power(number, 76), m)
            self._skip(state, offset, self.STEPS[number], m)

    def _skip(self, state, count: Expr, matrix, m: int):
        if constant_value(count) == 0:
            return
        rest = _Array(tr.current().kernel, uint64, 1, "rest")
        rest[0] = count
        self.power.set([_u64(v) for row in matrix for v in row])
        for _ in Scope.while_(lambda: rest[0] != _u64(0)):
            p = [[self.power.now(3 * i + j) for j in range(3)] for i in range(3)]
            with _when((rest[0] & _u64(1)) != _u64(0)):
                state.set([_sum_of_products(p[i], [state[k] for k in range(3)], m) for i in range(3)])
            self.power.set([_sum_of_products(p[i], [p[k][j] for k in range(3)], m) for i in range(3) for j in range(3)])
            rest[0] = rest[0] >> _u64(1)

    def _number(self) -> Expr:
        """From 1 to the first modulus."""
        new = []
        for state, step, m in zip(self.states, self.STEPS, self.MODULI):
            s = [state.now(k) for k in range(3)]
            new.append(_kept(_sum_of_products([_u64(v) for v in step[2]], s, m)))
            state.set([s[1], s[2], new[-1]])
        return _kept(select(new[0] <= new[1], new[0] + _u64(self.MODULI[0]) - new[1], new[0] - new[1]))

    def bits(self) -> Expr:
        return _kept(_u32(_u64(cast(self._number(), float64) * const(1.000000048662, float64))))

    def uniform(self, dtype) -> Expr:
        return _kept(cast(cast(self._number(), float64) * const(2.3283065498378288e-10, float64), dtype))

    def _pair(self, dtype):
        x, y = self.uniform(dtype), self.uniform(dtype)
        return x, y * const(6.2831855 if dtype is float32 else 2 * 3.1415926535897932, dtype)


def _sum_of_products(row, column, m: int) -> Expr:
    total = None
    for a, b in zip(row, column):
        if constant_value(a) == 0:
            continue
        product = a * b % _u64(m)
        total = product if total is None else total + product
    return total % _u64(m)


@functools.cache
def _matrix_power(number: int, log2: int):
    matrix, m = _Mrg32k3a.STEPS[number], _Mrg32k3a.MODULI[number]
    for _ in range(log2):
        matrix = tuple(tuple(sum(matrix[i][k] * matrix[k][j] for k in range(3)) % m for j in range(3)) for i in range(3))
    return matrix


_GENERATORS = {"curandStatePhilox4_32_10_t": _Philox, "curandStateXORWOW_t": _Xorwow, "curandStateMRG32k3a_t": _Mrg32k3a}


def rng_init(seed, seq=None, off=0, generator="curandStatePhilox4_32_10_t"):
    """Begins the random numbers of each thread that comes to it: those of cuRAND's curand_init(seed, seq, off). T.rng_rand and T.rng_rand_float draw
    from the generator that was begun last above them. ``seq`` chooses a sequence, by default one for each thread of the grid's x axis. ``off``: so
    many numbers are left out; that takes a time that grows with its logarithm. ``generator``: "curandStatePhilox4_32_10_t", "curandStateXORWOW_t" or
    "curandStateMRG32k3a_t".
    Shapes: scalars. Dtypes: integers, taken as uint64. Targets: all. Errors: AssertionError for another generator. TraceError outside of T.Kernel."""
    assert generator in _GENERATORS, f"T.rng_init(generator={generator!r}); known: {', '.join(_GENERATORS)}"
    kernel = tr.current("T.rng_init").kernel
    if kernel is None:
        raise tr.error("T.rng_init is used outside T.Kernel")
    if seq is None:
        seq = get_thread_binding() + get_block_binding() * get_thread_extent()
    kernel.random = _GENERATORS[generator](kernel)
    kernel.random.start(*(_kept(_u64(v)) for v in (seed, seq, off)))


def _current(name: str) -> _Generator:
    kernel = tr.current(f"T.{name}").kernel
    if kernel is None or kernel.random is None:
        raise tr.error(f"T.{name} needs a generator: call T.rng_init above it, in the same kernel")
    tr.current().draws += 1
    return kernel.random


def rng_rand():
    """A random number of 32 bits, from the thread's generator: curand(). In a T.Parallel loop the threads take iterations in turns, by number:
    thread t of n takes t, t + n, and so on.
    Shapes: a scalar. Dtypes: uint32. Targets: all. Errors: TraceError without a T.rng_init above."""
    return _current("rng_rand").bits()


def rng_rand_float(bit=32, dist="uniform"):
    """A random float, from the thread's generator: curand_uniform() in (0, 1], or curand_normal() of mean 0 and deviation 1 for ``dist="normal"``; of
    64 bits their _double forms. Normal numbers are within the errors of T.sin, T.log and T.sqrt.
    Shapes: a scalar. Dtypes: float32, or float64 for ``bit=64``. Targets: all. Errors: AssertionError for another ``bit`` or ``dist``. TraceError
    without a T.rng_init above."""
    assert bit in (32, 64), f"T.rng_rand_float(bit={bit!r}); known: 32, 64"
    assert dist in ("uniform", "normal"), f"T.rng_rand_float(dist={dist!r}); known: uniform, normal"
    generator, dtype = _current("rng_rand_float"), float32 if bit == 32 else float64
    return generator.uniform(dtype) if dist == "uniform" else generator.normal(dtype)


__all__ = ["rng_init", "rng_rand", "rng_rand_float"]
