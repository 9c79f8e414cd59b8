# SPDX-License-Identifier: Apache-2.0
"""T.rng_init and what draws from it: the bits are those of cuRAND's device generators (curand_kernel.h of CUDA 13, compiled for the host)."""

import numpy as np
import pytest

import kiln
import kiln.language as T
from kiln.client import Client
from kiln.language import rng
from needs import needs_kilnd as emulated

PHILOX, XORWOW, MRG = "curandStatePhilox4_32_10_t", "curandStateXORWOW_t", "curandStateMRG32k3a_t"
FAR = (0x123456789ABCDEF, 0xFEDCBA987, 0x1234567890)
# (generator, (seed, sequence, offset)): six times curand().
BITS = {
    (PHILOX, (42, 0, 0)): [2632642643, 2012563771, 314527917, 1463989207, 4242219303, 1404726525],
    (PHILOX, (42, 0, 1023)): [917050096, 2595972184, 2577017239, 1835001195, 1992848881, 1846364006],
    (PHILOX, (123, 3, 7)): [2066276520, 32587556, 2190990807, 2521837461, 2910785061, 266491026],
    (PHILOX, FAR): [623107425, 3180038904, 1922008502, 189027960, 3262869579, 3046524025],
    (XORWOW, (42, 0, 0)): [300737663, 2363150160, 799977142, 2317951200, 1151197823, 3621806847],
    (XORWOW, (42, 0, 1023)): [628482242, 3449662655, 2232048926, 315558301, 3598845423, 1158800735],
    (XORWOW, (123, 3, 7)): [1825886224, 1758668980, 700210350, 880090376, 1950637740, 3809514630],
    (XORWOW, FAR): [2332553976, 150811353, 1828222236, 4254626620, 173859384, 1337580740],
    (MRG, (42, 0, 0)): [994013773, 4154291561, 3812527821, 1283817913, 664973188, 3645448362],
    (MRG, (42, 0, 1023)): [2919582841, 1534531473, 3525882241, 1948659003, 4093588840, 1507753199],
    (MRG, (123, 3, 7)): [1517860875, 3552246926, 4181410220, 423193826, 4046783770, 1598543377],
    (MRG, FAR): [3119039350, 834243672, 4024562431, 1188139148, 2111929960, 584525772],
}
# The same: two of curand_uniform(), curand_uniform_double(), three of curand_normal(), curand_normal_double(), then curand().
FLOATS = {
    (PHILOX, (42, 0, 0)): ([0.612959862, 0.468586504, 0.139137551, -0.0731815323, 0.326682925],
        [0.073231737595051527, 0.34086154960095882, -0.90438682055941433, 0.13500668202983915, 0.61548271881036831], 1401955260),
    (PHILOX, (42, 0, 1023)): ([0.213517368, 0.604421854, 0.528423846, -1.12094855, 0.191123754],
        [0.60000858269631863, 0.42724450957030058, -0.19463140608996385, 1.1863344365939639, -0.055359543843343829], 3812149050),
    (PHILOX, (123, 3, 7)): ([0.481092483, 0.00758738164, 0.335233003, 0.815880597, -0.074605763],
        [0.51012980006635189, 0.58716103946790099, 1.9481663623842855, 1.3199895739637006, -0.32529957548687138], 380402349),
    (PHILOX, FAR): ([0.14507851, 0.740410507, -0.717318058, -0.187426314, 0.192517757],
        [0.44750247686170042, 0.044011501828208566, -0.95589253811463948, -0.93845060608842579, 0.013319045354957225], 3503415602),
    (XORWOW, (42, 0, 0)): ([0.0700209439, 0.550213754, -0.466425419, 0.692371428, -0.398769498],
        [0.53969011396608013, 0.84326749200324969, -0.13588347249672117, -0.66399297335712681, 1.255407518951684], 572583503),
    (XORWOW, (42, 0, 1023)): ([0.146329924, 0.803187191, 0.522759557, -0.113283314, -0.0482485145],
        [0.073471886414072263, 0.26980423439834839, -0.25956006470886611, -0.054062965489752993, -0.37940691897025547], 342396766),
    (XORWOW, (123, 3, 7)): ([0.425122261, 0.409472018, 0.785773635, 0.650172412, 1.06867361],
        [0.20491196352204161, 0.88697189934005882, 0.54462299444848705, 0.56459602741307602, 1.3095415456964534], 3835831259),
    (XORWOW, FAR): ([0.543090045, 0.035113506, 0.95914036, 0.565083742, 1.75146508],
        [0.99060728302325485, 0.31142977413316603, -0.19464405902130535, 0.026168865738521799, 0.31689831128361545], 796481509),
    (MRG, (42, 0, 0)): ([0.231436864, 0.967246354, -1.57137334, 1.12325001, -0.569059074],
        [0.8876733066336534, 0.29891215112820263, 0.5780063495276937, 0.053603163469130112, 0.20493972125669147], 2660012272),
    (MRG, (42, 0, 1023)): ([0.679768324, 0.357285947, 0.249513403, -0.183812097, 0.48727119],
        [0.82093343175367628, 0.45370753012245379, 0.6262437792004405, 1.8239674129790691, -0.1330206179667367], 3685645267),
    (MRG, (123, 3, 7)): ([0.353404522, 0.827071965, 0.248239726, -0.239624813, 0.0813402012],
        [0.97356043301386075, 0.09853249103605996, 1.7124806740777117, -0.93451926984502331, -2.1068176912565519], 2988029117),
    (MRG, FAR): ([0.726207912, 0.194237486, 0.899163425, 0.781785548, 0.869878173],
        [0.93704146143087785, 0.27663520276936643, -0.61705614317255553, 0.82391380487814259, 0.32158323926459192], 3720000228),
}


@pytest.fixture(scope="module")
def client(address):
    with Client(address) as client:
        yield client


def drawn(generator, seed, sequence, offset):
    """As constants of the program."""

    @T.prim_func
    def main(A: T.Tensor((6,), T.uint32), F: T.Tensor((5,), T.float32), D: T.Tensor((5,), T.float64), L: T.Tensor((1,), T.uint32)):
        with T.Kernel(1, threads=1):
            T.rng_init(T.uint64(seed), T.uint64(sequence), T.uint64(offset), generator=generator)
            for i in T.serial(6):
                A[i] = T.rng_rand()
            T.rng_init(T.uint64(seed), T.uint64(sequence), T.uint64(offset), generator=generator)
            for i in T.serial(2):
                F[i] = T.rng_rand_float()
            for i in T.serial(2):
                D[i] = T.rng_rand_float(64)
            for i in T.serial(3):
                F[2 + i] = T.rng_rand_float(32, "normal")
            for i in T.serial(3):
                D[2 + i] = T.rng_rand_float(bit=64, dist="normal")
            L[0] = T.rng_rand()

    return main


@emulated
@pytest.mark.parametrize("generator, start", list(BITS))
def test_the_bits_are_curands(client, generator, start):
    a, f, d, last = np.zeros(6, "uint32"), np.zeros(5, "float32"), np.zeros(5), np.zeros(1, "uint32")
    kernel = kiln.compile(drawn(generator, *start), target="emu:sm_90a", client=client)
    with kiln.emulation(check=True):
        kernel(a, f, d, last)
    floats, doubles, after = FLOATS[generator, start]
    assert a.tolist() == BITS[generator, start] and last[0] == after
    np.testing.assert_array_equal(f[:2], np.float32(floats[:2]))
    np.testing.assert_array_equal(d[:2], doubles[:2])
    np.testing.assert_allclose(f[2:], floats[2:], rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(d[2:], doubles[2:], rtol=1e-14, atol=1e-14)


@emulated
@pytest.mark.parametrize("target", ["emu:sm_80", "emu:gfx1100"])
@pytest.mark.parametrize("generator", [PHILOX, XORWOW, MRG])
def test_where_a_block_begins_follows_from_its_number(client, target, generator):
    """Offsets known at run time, in a branch, drawn in parallel loops: blocks of one thread give one long row of numbers."""

    @T.prim_func
    def main(A: T.Tensor((64,), T.uint32), n: T.int32):
        with T.Kernel(4, threads=1) as bx:
            if bx < n:
                T.rng_init(42, 0, bx * 16, generator=generator)
            for i in T.Parallel(16):
                if bx < n:
                    A[bx * 16 + i] = T.rng_rand()

    a = np.full(64, 7, "uint32")
    kernel = kiln.compile(main, target=target, client=client)
    with kiln.emulation(check=True):
        kernel(a, 3)
    assert a[:6].tolist() == BITS[generator, (42, 0, 0)] and len(set(a[:48].tolist())) == 48 and (a[48:] == 7).all()
    b = np.zeros(64, "uint32")
    with kiln.emulation():
        kernel(b, 4)
    assert (a[:48] == b[:48]).all()


@emulated
def test_threads_draw_in_turns(client):
    """Iterations of a parallel loop go to the threads by number; 40 of 16 threads, some of which have two, some three."""

    @T.prim_func
    def main(A: T.Tensor((5, 8), T.uint32), B: T.Tensor((16, 3), T.uint32)):
        with T.Kernel(1, threads=16):
            tx = T.get_thread_binding()
            T.rng_init(9, tx)
            for i, j in T.Parallel(5, 8):
                A[i, j] = T.rng_rand()
            T.rng_init(9, tx)
            for i in T.serial(3):
                B[tx, i] = T.rng_rand()

    a, b = np.zeros((5, 8), "uint32"), np.zeros((16, 3), "uint32")
    kernel = kiln.compile(main, target="emu:sm_90a", client=client)
    with kiln.emulation(check=True):
        kernel(a, b)
    assert (a.reshape(-1) == b.T.reshape(-1)[:40]).all() and len(set(b.reshape(-1).tolist())) == 48


def test_each_thread_has_a_sequence_of_its_own_by_default():
    @T.prim_func
    def main(A: T.Tensor((64,), T.uint32)):
        with T.Kernel(2, threads=32) as bx:
            T.rng_init(42)
            A[bx * 32 + T.get_thread_binding()] = T.rng_rand()

    assert "uint32(uint64((tx + (bx * 32))))" in main.script()


def test_polynomials():
    assert rng._xorwow_polynomial().bit_length() == 161 and rng._xorwow_power(3) == 1 << 8


def traced(body):
    @T.prim_func
    def main(A: T.Tensor((8,), T.float32)):
        with T.Kernel(1, threads=32):
            body()


def test_what_is_refused():
    for draw in (T.rng_rand, T.rng_rand_float):
        with pytest.raises(T.TraceError, match="call T.rng_init above it"):
            traced(draw)
    for call, known in ((lambda: T.rng_init(1, generator="mt19937"), "curandStateXORWOW_t"), (lambda: T.rng_rand_float(16), "32, 64"),
                        (lambda: T.rng_rand_float(32, "cauchy"), "uniform, normal")):
        with pytest.raises(AssertionError, match=known):
            traced(call)
