# SPDX-License-Identifier: Apache-2.0
"""On AMD's GPUs the loop of a product overlaps what it does, as its instructions show: loads of the next step are under way while matrix
instructions run, sums stay where they are, and operands come from LDS by 64 bits and more, whichever of their dimensions is contiguous."""

import pytest

import amd_loops
from daemon import Daemon, socket_folder

CDNA = ("hip:gfx90a", "hip:gfx942", "hip:gfx950")
RDNA = ("hip:gfx1100", "hip:gfx1201")
ORDERS = {"nn": (False, False), "nt": (False, True), "tn": (True, False), "tt": (True, True)}
# Types that the target's matrix instructions multiply.
TYPES = {"hip:gfx90a": ("float16", "bfloat16", "int8", "float32"),
         "hip:gfx942": ("float16", "bfloat16", "int8", "float8_e4m3fnuz", "float32"),
         "hip:gfx950": ("float16", "bfloat16", "int8", "float8_e4m3fn", "float32"),
         "hip:gfx1100": ("float16", "bfloat16", "int8"),
         "hip:gfx1201": ("float16", "bfloat16", "int8", "float8_e4m3fn")}
PRODUCTS = [(target, dtype) for target, dtypes in TYPES.items() for dtype in dtypes]
# Bytes whose rows are not contiguous along k come as many at once as a warp has instructions along the rows, which is four of eight in one
# dimension of a result of 128 × 128 by waves of 64, and two by waves of 32 and where one instruction of gfx950 has 32 rows. Its sums would not
# fit into fewer waves.
NARROW_BYTES = {64: 32, 32: 16}
OF_32_ROWS = {("hip:gfx950", "int8")}
# Attention whose values do not all fit into the half of the registers that are no accumulators.
IN_ACCUMULATORS = {("hip:gfx950", 128)}
# Heads for which the library asks for copies that run ahead.
HEADS = [(target, dim) for target in (*CDNA, *RDNA) for dim in (64, 128)]


def compiled(served, program, target, options=None):
    """The artifact and its loop."""
    reply = served.compile(program, target, options, explain={"assembly": True})
    text, = (dump.text for dump in reply.dumps if getattr(dump, "pass") == "assembly")
    return reply.artifact, amd_loops.read(text)


def product(target, dtype, order):
    from kiln.library.programs.gemm import gemm

    trans_a, trans_b = ORDERS[order]
    out = {"int8": None, "float32": None}.get(dtype, "float32")
    return gemm(1024, 1024, 1024, in_dtype=dtype, out_dtype=out, trans_a=trans_a, trans_b=trans_b, target=target)


def check(artifact, loop, least=64, exchanged=0, accumulators=False):
    """`least`: bits of the narrowest reads of operands; `exchanged`: reads of 32 bits by which warps tell each other sums of rows."""
    assert loop.loads > 0 and len(loop.covered) == loop.loads, "some loads are never waited for: they are no part of a pipeline"
    assert min(loop.covered) == loop.matrix, f"loads are waited for after {loop.covered} of {loop.matrix} matrix instructions"
    assert loop.copies == 0 or accumulators, f"{loop.copies} copies between AGPRs and VGPRs"
    narrow = {bits: count for bits, count in loop.lds_bits.items() if bits < least and (bits, count) != (32, exchanged)}
    assert not narrow, f"LDS reads of {narrow} bits, and of {loop.lds_bits} in all"
    assert sum(kernel.spill_bytes for kernel in artifact.report.kernels) == 0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("target, dtype", PRODUCTS)
def test_product(served, target, dtype, order):
    is_bytes = order == "tn" and dtype.startswith(("int8", "float8"))
    lanes = 64 if target in CDNA and (target, dtype) not in OF_32_ROWS else 32
    check(*compiled(served, product(target, dtype, order), target), NARROW_BYTES[lanes] if is_bytes else 64)


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("target, dim", HEADS)
def test_attention(served, target, dim, causal):
    from kiln import library

    q = library.Spec((2, 1000, 8, dim), "float16")
    plan = library.plan("attention", q, q, q, causal, None, target=target)
    check(*compiled(served, plan.program.trace(), target, dict(plan.options)), exchanged=2, accumulators=(target, dim) in IN_ACCUMULATORS)


@pytest.mark.parametrize("target", ("hip:gfx942", "hip:gfx1100"))
def test_same_bytes(served, target, tmp_path_factory):
    first, _ = compiled(served, product(target, "float16", "tn"), target)
    with socket_folder() as sockets:
        other = Daemon(tmp_path_factory.mktemp("k") / "state", sockets)
        other.start()
        second, _ = compiled(other.client(), product(target, "float16", "tn"), target)
        other.end()
    assert first.code == second.code


LOOP = """
\tv_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]
.LBB0_1:
\tglobal_load_dwordx4 v[0:3], v[4:5], off
\ts_cbranch_scc1 .LBB0_3
\ts_waitcnt lgkmcnt(0)
.LBB0_3:
\tds_read_u16 v6, v7
\tds_read2st64_b32 v[8:9], v7 offset1:1
\tds_read_b128 v[8:11], v7
\tv_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]
\ts_waitcnt vmcnt(0)
\tv_accvgpr_read_b32 v0, a0
\tv_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]
\ts_cbranch_vccnz .LBB0_1
\ts_endpgm
"""


def test_what_is_read_of_a_loop():
    loop = amd_loops.read(LOOP)
    assert (loop.matrix, loop.loads, loop.covered, loop.copies) == (2, 1, [1], 1)
    assert loop.lds_bits == {16: 1, 64: 1, 128: 1}
    with pytest.raises(AssertionError, match="no loop"):
        amd_loops.read("\tv_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[8:15], v[0:7]\n\ts_endpgm\n")
