# SPDX-License-Identifier: Apache-2.0
"""Launches like earlier ones, which the extension makes at once: each result is right, and what is different is no known launch. Needs a GPU and
torch (KILN_TRITON_TARGET=cuda:sm_90a); clients/runtime/python/launches_test.py has the rest over a driver that is not one."""

import threading

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    pytest.skip("known launches need a GPU, and a torch with DLPack's C exchange table", allow_module_level=True)

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from kiln.triton.launches import settings  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

FACTOR = tl.constexpr(3)


@triton.jit
def scaled(x_ptr, y_ptr, bias_ptr, n, stride, alpha, wide: tl.int64, BLOCK: tl.constexpr, ROUNDS: tl.constexpr = 1):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at * stride, mask=at < n, other=0.0)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + at, mask=at < n, other=0.0)
    for _ in tl.static_range(ROUNDS):
        x = x * alpha + wide
    tl.store(y_ptr + at, x * FACTOR, mask=at < n)


def wanted(x, bias, n, stride, alpha, wide, rounds=1, factor=3):
    r = x.double().flatten()[: (n - 1) * stride + 1: stride].clone()
    r += 0 if bias is None else bias.double()[:n]
    for _ in range(rounds):
        r = r * alpha + wide
    return r * factor


def room(elements):
    """So many that 16 does not divide them."""
    return elements // 16 * 16 + 17


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def check(n, stride, alpha, wide, bias=False, dtype=torch.float32, offset=0, block=64, rounds=1, known=None, factor=3, **options):
    x = torch.randn(offset + room(n * stride), device="cuda").to(dtype)[offset:]
    y = torch.full((room(n),), float("nan"), device="cuda", dtype=torch.float32)
    b = torch.randn(room(n), device="cuda") if bias else None
    found = []
    if known is not None:
        launches = scaled._launches
        if launches is None:
            assert not known
        else:
            found.append(launches.launched((x, y, b, n, stride, alpha, wide, block), {"ROUNDS": rounds, **options}, grid,
                                           settings(scaled)))
    scaled[grid](x, y, b, n, stride, alpha, wide, block, ROUNDS=rounds, **options)
    torch.testing.assert_close(y[:n].double(), wanted(x, b, n, stride, alpha, wide, rounds, factor), rtol=2e-2 if dtype != torch.float32 else 1e-4,
                               atol=1e-3)
    assert y[n:].isnan().all()
    if known is not None and found:
        assert (found[0] is not NotImplemented) == known


def test_known_and_unknown_launches():
    check(100, 2, 0.5, 7)
    check(101, 3, -0.25, 5, known=True)
    check(5000, 2, 1.5, 2**40, known=False)  # as many bits as before are needed
    check(33, 1, 0.5, 7, known=False)
    check(112, 2, 0.5, 7, known=False)
    check(100, 2, 0.5, 7, bias=True, known=False)
    check(90, 5, 0.5, 6, bias=True, known=True)
    check(100, 2, 0.5, 7, dtype=torch.float16, known=False)
    check(100, 2, 0.5, 7, block=128, known=False)
    check(100, 2, 0.5, 7, rounds=2, known=False)
    check(100, 2, 0.5, 7, num_warps=2, known=False)
    check(90, 3, 0.25, 5, num_warps=2, known=True)


@pytest.mark.parametrize("seed", range(40))
def test_random_launches(seed):
    generator = torch.Generator().manual_seed(seed)

    def one(values):
        return values[int(torch.randint(len(values), (), generator=generator))]

    for _ in range(8):
        check(one((1, 16, 31, 100, 1000)), one((1, 2, 16, 3)), one((0.5, -2.0, 1.0)), one((0, 1, 16, -7, 2**33)), one((True, False)),
              one((torch.float32, torch.float16, torch.bfloat16)), one((0, 1, 4, 7)), one((64, 256)), one((1, 3)))


def test_a_global_that_changes():
    global FACTOR
    check(50, 2, 0.5, 7)
    FACTOR = tl.constexpr(5)
    try:
        check(50, 2, 0.5, 7, factor=5)
        check(50, 2, 0.5, 7, factor=5)
    finally:
        FACTOR = tl.constexpr(3)
    check(50, 2, 0.5, 7)


@triton.jit
def shifted(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


def test_memory_that_overlaps():
    for _ in range(3):
        x = torch.arange(512, device="cuda", dtype=torch.float32)
        y = torch.empty(512, device="cuda")
        shifted[(1,)](x, y, 500, 512)
        assert (y[:500] == x[:500] + 1).all()
        before = x.clone()
        shifted[(1,)](x, x[3:], 500, 512)
        assert (x[3:503] == before[:500] + 1).all()
        shifted[(1,)](x, x, 500, 512)


@triton.jit
def raised(x_desc, y_desc, values, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK
    y_desc.store([row, 0], x_desc.load([row, 0]) + values[0] * values[1])


def test_descriptors_and_tuples():
    for rows, value, known in ((64, 3, False), (64, 5, True), (96, 7, True), (90, 7, False), (64, 1, False), (64, 5, True)):
        x, y = torch.randn(rows, 64, device="cuda"), torch.full((rows + 1, 64), float("nan"), device="cuda")
        args = (TensorDescriptor.from_tensor(x, [32, 64]), TensorDescriptor.from_tensor(y[:rows], [32, 64]), (value, 0.5), 32)
        size = (triton.cdiv(rows, 32),)
        found = NotImplemented if raised._launches is None else raised._launches.launched(args, {}, size, settings(raised))
        assert (found is not NotImplemented) == known, (rows, value)
        if not known:
            raised[size](*args)
        torch.testing.assert_close(y[:rows], x + value * 0.5)
        assert y[rows:].isnan().all()


def test_streams_and_threads():
    x, problems = torch.randn(4096, device="cuda"), []

    def work():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(200):
                    y = torch.empty(4096, device="cuda")
                    shifted[(1,)](x, y, 4000, 4096)
                    assert (y[:4000] == x[:4000] + 1).all()
        except BaseException as problem:
            problems.append(problem)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_graphs():
    x, y = torch.randn(4096, device="cuda"), torch.zeros(4096, device="cuda")
    shifted[(1,)](x, y, 4000, 4096)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        shifted[(1,)](x, y, 4000, 4096)
    for _ in range(2):
        x.copy_(torch.randn(4096, device="cuda"))
        graph.replay()
        assert (y[:4000] == x[:4000] + 1).all()
