# SPDX-License-Identifier: Apache-2.0
"""kiln.Kernel over the real extension and a driver that copies words instead of running kernels. KILN_FAKE_DRIVER is that driver."""

import os
import pickle
import time

import numpy as np
import pytest

import kiln.language as T
from kiln import _proto
from kiln.kernel import Kernel

DRIVER = os.environ.get("KILN_FAKE_DRIVER", "")
if not os.path.exists(DRIVER):
    pytest.skip("SKIPPED, NOTHING WAS LAUNCHED: set KILN_FAKE_DRIVER to libkiln_fake_driver.so", allow_module_level=True)
_runtime = pytest.importorskip("kiln._runtime")
_runtime.use_driver("cuda", DRIVER)


@T.prim_func
def copy_words(x: T.Tensor((T.dynamic("n"),), "float32"), y: T.Tensor((8,), "float32")):
    with T.Kernel(8) as bx:
        y[bx] = x[bx]


def answer(alignment=16):
    """What a daemon answers for copy_words; artifacts hold no names."""
    pb = _proto.messages()
    f32, i32 = (pb.enums["DType"].values_by_name[n].number for n in ("F32", "I32"))
    reply = pb.CompileReply(key=b"\x12", origin=2)
    reply.artifact.target, reply.artifact.kind = "cuda:sm_80", 1
    reply.artifact.code = b".entry copy_words(.param .u64 x, .param .u64 y, .param .u32 n)"
    info = reply.artifact.launch
    info.symbols.add(dtype=i32)
    for name in "xy":
        param = info.params.add(dtype=f32, tensor=True, output=name == "y", written=name == "y", alignment=alignment)
        param.shape.add().nodes.add(op=1, value=0)
    launch = info.launches.add(entry="copy_words", threads=64)
    launch.grid.add().nodes.add(op=1, value=0)
    for kind, value in (("tensor", 0), ("tensor", 1), ("symbol", 0)):
        setattr(launch.args.add(), kind, value)
    return reply


class Daemon:
    """Answers for tensors of any alignment, and counts."""

    def __init__(self):
        self.asked = []

    def __call__(self, pointer_alignment):
        self.asked.append(pointer_alignment)
        return answer(pointer_alignment)


@pytest.fixture
def kernel():
    return Kernel(copy_words.with_outputs(1), answer(), None, Daemon())


class View:
    """Elements from `start` on of an Array."""

    def __init__(self, base, start, shape=(8,), bytes_off=0):
        self.base, self.shape, self.offset = base, shape, 4 * start + bytes_off

    @property
    def __cuda_array_interface__(self):
        whole = self.base.__cuda_array_interface__
        return {**whole, "data": (whole["data"][0] + self.offset, False), "shape": self.shape, "strides": None}


def test_numpy_in_and_out(kernel):
    x = np.arange(8, dtype=np.float32)
    y = kernel(x)
    assert isinstance(y, np.ndarray) and np.array_equal(x, y)
    out = np.zeros(8, np.float32)
    assert kernel(x, out) is None and np.array_equal(x, out)
    assert kernel.key == "12" and kernel.origin == "DISK" and "copy_words" in kernel.get_kernel_source()


def test_device_arrays(kernel):
    x = _runtime.Array((8,), "float32").copy_from(np.arange(8, dtype=np.float32))
    y = kernel(x)
    assert np.array_equal(y.numpy(), np.arange(8))


def test_arguments_are_checked(kernel):
    with pytest.raises(ValueError, match="copy_words.x.ndim is expected to equal 1"):
        kernel(np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match="copy_words.x.dtype is expected to be float32"):
        kernel(np.zeros(8, np.float64))
    with pytest.raises((TypeError, ValueError), match="num_args"):
        kernel()


def test_do_bench_without_torch(kernel, monkeypatch):
    import sys

    from kiln import bench

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(bench, "FLUSH_BYTES", 4096)
    x, y = _runtime.Array((8,), "float32"), _runtime.Array((8,), "float32")
    assert bench.do_bench(lambda: kernel(x, y), warmup=1, rep=1, n_repeat=3) >= 0
    low, high = bench.do_bench(lambda: kernel(x, y), n_warmup=1, n_repeat=5, quantiles=[0.2, 0.8])
    assert low <= high


def test_calls_of_a_loaded_kernel_add_little(kernel):
    """The Python layer over the extension, in empty calls on the same machine; the bound is loose, tests/bench has the figure."""
    x, y = _runtime.Array((8,), "float32"), _runtime.Array((8,), "float32")
    kernel(x, y)
    extension = kernel.loaded(0)

    def fastest(call):
        times = []
        for _ in range(200):
            start = time.perf_counter()
            for _ in range(20):
                call(x, y)
            times.append(time.perf_counter() - start)
        return min(times) / 20

    assert fastest(kernel) < fastest(extension) + 100 * fastest(lambda x, y: None)


def words(count):
    return _runtime.Array((count,), "float32").copy_from(np.arange(count, dtype=np.float32))


def test_offset_tensors(kernel):
    x, out = words(20), words(20)
    for start in (1, 2, 3, 4, 5, 2, 1):
        y = _runtime.Array((8,), "float32")
        kernel(View(x, start), y)
        assert np.array_equal(y.numpy(), np.arange(start, start + 8))
        assert np.array_equal(kernel(View(x, start)).numpy(), y.numpy())
    kernel(View(x, 4), View(out, 3))
    assert np.array_equal(out.numpy(), [0, 1, 2, *range(4, 12), *range(11, 20)])
    assert kernel._ask.asked == [4, 8]  # each once; multiples of 16 bytes are the kernel's own
    assert np.array_equal(kernel(x.numpy()[3:11]), np.arange(3, 11)) and kernel._ask.asked == [4, 8]  # numpy is copied to where it fits


def test_addresses_between_those_of_the_kernel():
    """Of a kernel that is launched by addresses, plain and pickled, the one for odd addresses is as well."""

    def endless(pointer_alignment=16):
        reply = answer(pointer_alignment)
        info = reply.artifact.launch
        reply.artifact.code = reply.artifact.code.replace(b"copy_words", b"nothing")  # for the memory of an address has no end
        info.launches[0].entry, info.symbols[0].dtype = "nothing", _proto.messages().enums["DType"].values_by_name["I64"].number
        info.launches[0].grid[0].nodes[0].op, info.launches[0].grid[0].nodes[0].value = 0, 1
        return reply

    plain = Kernel(copy_words, endless(), None, endless, by_address=True)
    for kernel in (plain, pickle.loads(pickle.dumps(plain))):
        kernel._ask = endless
        x, y = words(20), words(20)
        start = x.__cuda_array_interface__["data"][0]
        kernel(start + 4, y.__cuda_array_interface__["data"][0])
        assert kernel._less_aligned[4].by_address and not any(param.may_alias for param in kernel.artifact.launch.params)
        kernel(start + 4, start + 8)  # who passes them answers for what they overlap
        with pytest.raises(TypeError, match="copy_words.x is expected to be a tensor"):
            Kernel(copy_words, endless(), None, endless)(start, start)


def test_tensors_inside_elements_are_refused(kernel):
    with pytest.raises(ValueError, match="copy_words.x.data is expected to be aligned to 16 bytes"):
        kernel(View(words(20), 1, bytes_off=2))
    assert kernel._ask.asked == []


def test_without_a_daemon_offset_tensors_are_refused():
    kernel = Kernel(copy_words.with_outputs(1), answer())
    with pytest.raises(_runtime.AlignmentError, match="pointer_alignment = 4"):
        kernel(View(words(20), 1))


def test_offset_tensors_on_a_stream_and_threads(kernel):
    from concurrent.futures import ThreadPoolExecutor

    x = words(20)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: kernel(View(x, 1), stream=0).numpy(), range(32)))
    assert all(np.array_equal(r, np.arange(1, 9)) for r in results) and kernel._ask.asked == [4]


def test_names_are_the_programs_own(kernel):
    assert [p["name"] for p in kernel.loaded(0).params] == ["x", "y"]
    assert kernel.loaded(0).symbols(words(8)) == {"n": 8}
