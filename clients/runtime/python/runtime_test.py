# SPDX-License-Identifier: Apache-2.0
"""kiln._runtime over the fake driver. KILN_BUILD is the build folder; the messages come from its descriptor set."""

import ctypes
import gc
import os
import pathlib
import sys
import threading

import numpy as np
import pytest

BUILD = pathlib.Path(os.environ.get("KILN_BUILD", "build/release")).resolve()
FAKE = BUILD / "testing" / "libkiln_fake_driver.so"
if not FAKE.exists() or not (BUILD / "python" / "kiln" / "_runtime.abi3.so").exists():
    pytest.skip(f"{BUILD} holds no runtime extension and fake driver: build kiln_python_runtime and kiln_fake_driver", allow_module_level=True)


def _import_runtime():
    import importlib.util

    spec = importlib.util.spec_from_file_location("_runtime", BUILD / "python" / "kiln" / "_runtime.abi3.so")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _messages():
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString((BUILD / "proto" / "kiln.desc").read_bytes()).file
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindMessageTypeByName("kiln.v1.Artifact")
    dtypes = {v.name: v.number for v in pool.FindEnumTypeByName("kiln.v1.DType").values}
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor), dtypes
    return message_factory.MessageFactory(pool).GetPrototype(descriptor), dtypes


runtime = _import_runtime()
Artifact, DTYPE = _messages()
runtime.use_driver("cuda", str(FAKE))
runtime.use_driver("hip", str(FAKE))
fake = ctypes.CDLL(str(FAKE))


class Launch(ctypes.Structure):
    _fields_ = [("entry", ctypes.c_char * 128), ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3),
                ("shared_bytes", ctypes.c_uint32), ("cluster", ctypes.c_uint32 * 3), ("cooperative", ctypes.c_uint32), ("stream", ctypes.c_uint64),
                ("param_count", ctypes.c_uint32), ("params", ctypes.c_uint64 * 64)]


fake.kiln_fake_launch.restype = ctypes.POINTER(Launch)
fake.kiln_fake_live_allocations.restype = ctypes.c_int64


def last_launch():
    return fake.kiln_fake_launch(fake.kiln_fake_launch_count() - 1).contents


def symbol(expr, index):
    expr.nodes.add(op=1, value=index)


def copy_artifact(dtype="F32", output=True, scalars=(), target="cuda:sm_80", strided=False):
    """y[n] = x[n], which the fake driver carries out where an element has 32 bits."""
    artifact = Artifact(target=target, kind=1 if target.startswith("cuda") else 2)
    params = "".join(f", .param .{'f32' if s == 'F32' else 'u64' if s == 'U64' else 'u32'} s{i}" for i, s in enumerate(scalars))
    artifact.code = f".entry copy_words(.param .u64 x, .param .u64 y, .param .u32 n{params})".encode()
    info = artifact.launch
    info.symbols.add(name="n", dtype=DTYPE["I32"])
    x = info.params.add(name="x", dtype=DTYPE[dtype], tensor=True)
    y = info.params.add(name="y", dtype=DTYPE[dtype], tensor=True, output=output, written=True)
    symbol(x.shape.add(), 0)
    symbol(y.shape.add(), 0)
    if strided:
        info.symbols.add(name="step", dtype=DTYPE["I64"])
        symbol(x.strides.add(), 1)
    launch = info.launches.add(entry="copy_words", threads=64)
    symbol(launch.grid.add(), 0)
    launch.args.add(tensor=0)
    launch.args.add(tensor=1)
    launch.args.add(symbol=0)
    for index, scalar in enumerate(scalars):
        info.params.add(name=f"s{index}", dtype=DTYPE[scalar])
        launch.args.add(scalar=2 + index)
    return artifact


@pytest.fixture
def kernel():
    fake.kiln_fake_reset()
    return runtime.load(copy_artifact().SerializeToString())


def test_devices():
    devices = runtime.devices()
    assert [d["kind"] for d in devices] == ["cuda", "cuda", "hip"]
    assert devices[0]["arch"] == "cuda:sm_90a" and devices[0]["driver_version"] == "13.0"
    assert runtime.driver_problem("cuda") == "" and runtime.driver_problem("hip") == ""
    with pytest.raises(ValueError, match="'cuda' or 'hip', but got 'metal'"):
        runtime.driver_problem("metal")
    with pytest.raises(RuntimeError, match="open already"):
        runtime.use_driver("cuda", "/nowhere")
    runtime.synchronize()
    runtime.synchronize(1, kind="cuda")


def test_what_a_kernel_tells(kernel):
    assert kernel.name == "copy_words" and kernel.target == "cuda:sm_80" and kernel.device == 0 and kernel.loaded_from == "ptx"
    assert kernel.params[1] == {"name": "y", "dtype": "float32", "tensor": True, "output": True, "written": True}
    assert kernel.resources[0]["registers"] == 24 and "Used 24 registers" in kernel.log
    assert runtime.load(copy_artifact().SerializeToString(), 1, name="mine").name == "mine"


def test_numpy_round_trip(kernel):
    x = np.random.default_rng().standard_normal(1000).astype(np.float32)
    y = kernel(x)
    assert isinstance(y, np.ndarray) and y.dtype == np.float32 and np.array_equal(x, y)
    assert tuple(last_launch().grid) == (1000, 1, 1) and tuple(last_launch().block) == (64, 1, 1)
    out = np.full(1000, np.nan, np.float32)
    assert kernel(x, out) is None and np.array_equal(out, x)


def test_numpy_memory_is_given_back(kernel):
    before = fake.kiln_fake_live_allocations()
    for _ in range(10):
        kernel(np.zeros(100, np.float32))
    with pytest.raises(ValueError):
        kernel(np.zeros(100, np.float32), np.zeros(99, np.float32))
    assert fake.kiln_fake_live_allocations() == before


def test_read_only_and_wrong_numpy(kernel):
    x, out = np.zeros(8, np.float32), np.zeros(8, np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"copy_words.y: the kernel writes this tensor, but it is read-only"):
        kernel(x, out)
    with pytest.raises(ValueError, match="x.dtype is expected to be float32, but got float64"):
        kernel(np.zeros(8))
    with pytest.raises(ValueError, match="native byte order"):
        kernel(np.zeros(8, ">f4"))
    with pytest.raises(ValueError, match=r"x.strides\[0\] has an unsatisfied constraint: 1 == 2"):
        kernel(np.zeros(16, np.float32)[::2])
    with pytest.raises(ValueError, match="ndim is expected to equal 1, but got 2"):
        kernel(np.zeros((2, 4), np.float32))


def test_strided_numpy_keeps_its_strides():
    kernel = runtime.load(copy_artifact(strided=True).SerializeToString())
    base = np.arange(40, dtype=np.float32)
    view = base[4:34:3]
    y = kernel(view)
    assert np.array_equal(y, base[4:14])  # the fake copies words from the view's first element on
    assert kernel.symbols(view) == {"n": 10, "step": 3}


def test_bits_stand_for_types_that_numpy_lacks():
    kernel = runtime.load(copy_artifact("BF16").SerializeToString())
    assert kernel.output_shapes(np.zeros(8, np.uint16)) == [("y", (8,), "bfloat16")]
    with pytest.raises(ValueError, match="expected to be bfloat16, but got int16"):
        kernel.output_shapes(np.zeros(8, np.int16))


def test_array(kernel):
    a = runtime.Array((1000,), "float32").copy_from(np.arange(1000, dtype=np.float32))
    out = kernel(a)
    assert isinstance(out, runtime.Array) and out.shape == (1000,) and out.dtype == "float32" and out.nbytes == 4000
    assert np.array_equal(out.numpy(), np.arange(1000, dtype=np.float32))
    assert out.__cuda_array_interface__["data"] == (out.data_ptr(), False)
    assert (out.fill(0xFF).numpy().view(np.uint8) == 255).all()
    buffer = np.empty(1000, np.float32)
    assert a.copy_to(buffer) is buffer and buffer[999] == 999
    with pytest.raises(ValueError, match="4000 bytes and a buffer of 8"):
        a.copy_from(np.zeros(1))
    with pytest.raises(ValueError, match="'float99' is no dtype"):
        runtime.Array(3, "float99")
    with pytest.raises(ValueError, match="cannot be made"):
        runtime.Array((1 << 40, 1 << 40), "int8")
    with pytest.raises(ValueError, match=r"shape\[0\] has an unsatisfied constraint: n == 999, with n = 1000"):
        kernel(a, runtime.Array(999, "float32"))


def test_an_address_is_memory_without_an_end():
    artifact = copy_artifact("BF16", output=False)
    artifact.launch.symbols[0].dtype, node = DTYPE["I64"], artifact.launch.launches[0].grid[0].nodes[0]
    node.op, node.value = 0, 1
    with pytest.raises(TypeError, match="is expected to be a tensor"):
        runtime.load(artifact.SerializeToString()).symbols(4096, 8192)
    assert runtime.load(artifact.SerializeToString(), by_address=True).symbols(4096, 4096) == {"n": 1 << 40}
    for param in artifact.launch.params:
        param.may_alias = True
    kernel = runtime.load(artifact.SerializeToString())
    assert kernel.symbols(4096, 8192) == kernel.symbols(4096, 0) == {"n": 1 << 40}  # 0: a kernel may not look there
    with pytest.raises(OverflowError):
        kernel.symbols(-1, 4096)


def test_empty_tensors_launch_nothing(kernel):
    assert kernel(np.zeros(0, np.float32)).shape == (0,)
    assert kernel(runtime.Array(0, "float32"), runtime.Array(0, "float32")) is None
    assert fake.kiln_fake_launch_count() == 0


def test_scalars():
    fake.kiln_fake_reset()
    kernel = runtime.load(copy_artifact(output=False, scalars=("F32", "I32", "BOOL", "U64")).SerializeToString())
    a, b = runtime.Array(4, "float32"), runtime.Array(4, "float32")
    kernel(a, b, np.float64(0.5), np.int8(-3), True, 2**64 - 1)
    launch = last_launch()
    assert launch.params[3] == 0x3F000000 and launch.params[4] == 0xFFFFFFFD and launch.params[5] == 1 and launch.params[6] == 2**64 - 1
    kernel(a, b, 1, 7, False, 0)
    assert last_launch().params[3] == 0x3F800000
    with pytest.raises(ValueError, match=r"s1: Expect arg\[3\] to be int"):
        kernel(a, b, 0.5, 1.5, True, 0)
    with pytest.raises(ValueError, match="does not fit int32"):
        kernel(a, b, 0.5, 1 << 31, True, 0)
    with pytest.raises(ValueError, match="does not fit 64 bits"):
        kernel(a, b, 0.5, 1 << 90, True, 0)
    with pytest.raises(TypeError):
        kernel(a, b, "text", 1, True, 0)


def test_counts_and_keywords(kernel):
    with pytest.raises(ValueError, match=r"num_args should be 2 \(1 without the outputs\), but got 3"):
        kernel(1, 2, 3)
    with pytest.raises(TypeError, match="the only keyword is stream"):
        kernel(np.zeros(4, np.float32), out=1)
    with pytest.raises(TypeError, match="expected to be a tensor .* but got str"):
        kernel("text")
    kernel(runtime.Array(4, "float32"), runtime.Array(4, "float32"), stream=0x1234)
    assert last_launch().stream == 0x1234


class DlTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DlTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


TENSOR, USED_TENSOR, EXCHANGE = b"dltensor", b"used_dltensor", b"dlpack_exchange_api"  # a capsule keeps the pointer


def new_capsule(address, name):
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(address, name, None)


class Described:
    """A view of an Array as DLPack describes it."""

    def __init__(self, array, offset=0, code=2, bits=32, device_type=2, length=None):
        self.array = array
        self.shape = (ctypes.c_int64 * 1)(array.shape[0] - offset if length is None else length)
        self.raw = DlTensor(array.data_ptr(), device_type, 0, 1, code, bits, 1, self.shape, None, 4 * offset)


class WithDlpack(Described):
    def __dlpack__(self, stream=None):
        self.asked = stream
        self.managed = Managed(self.raw, None, None)
        return new_capsule(ctypes.addressof(self.managed), TENSOR)


class ExchangeApi(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
                ("managed_from", ctypes.c_void_p), ("managed_to", ctypes.c_void_p),
                ("view", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DlTensor))),
                ("stream", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)))]


def _view(tensor, out):
    out[0] = tensor.raw
    return 0


def _stream(device_type, device_id, out):
    out[0] = 0xABCD
    return 0


API = ExchangeApi(1, 3, None, None, None, None, ExchangeApi._fields_[6][1](_view), ExchangeApi._fields_[7][1](_stream))
NEWER = ExchangeApi(2, 0, ctypes.addressof(API))


class WithExchange(Described):
    __dlpack_c_exchange_api__ = new_capsule(ctypes.addressof(NEWER), EXCHANGE)


def test_dlpack(kernel):
    source = runtime.Array(16, "float32").copy_from(np.arange(16, dtype=np.float32))
    tensor = WithDlpack(source, offset=4)
    out = kernel(tensor)
    assert np.array_equal(out.numpy(), np.arange(4, 16, dtype=np.float32)) and tensor.asked == 1
    assert np.array_equal(kernel(tensor.__dlpack__()).numpy(), out.numpy())  # a bare capsule
    with pytest.raises(ValueError, match="holds no DLPack tensor"):
        kernel(new_capsule(ctypes.addressof(tensor.managed), USED_TENSOR))
    with pytest.raises(ValueError, match=r"device_type mismatch \[expected: 2 \(cuda\)\], but got 1 \(cpu\)"):
        kernel(WithDlpack(source, device_type=1))
    with pytest.raises(ValueError, match="DLPack type code 5 of 64 bits"):
        kernel(WithDlpack(source, code=5, bits=64))


def test_exchange_table_and_its_stream(kernel):
    source = runtime.Array(16, "float32").copy_from(np.arange(16, dtype=np.float32))
    for length in (16, 16, 8):
        out = kernel(WithExchange(source, length=length))
        assert np.array_equal(out.numpy(), np.arange(length, dtype=np.float32))
        assert last_launch().stream == 0xABCD
    kernel(WithExchange(source), runtime.Array(16, "float32"), stream=0x99)
    assert last_launch().stream == 0x99


class TorchLike:
    """As torch without the exchange table."""

    def __init__(self, array, cuda=True):
        self.array, self.shape, self.dtype, self._cuda = array, array.shape, "torch." + array.dtype, cuda

    is_cuda = property(lambda self: self._cuda)

    def data_ptr(self):
        return self.array.data_ptr()

    def stride(self):
        return (1,)

    def get_device(self):
        return 0


def test_torch_attributes(kernel):
    source = runtime.Array(16, "float32").copy_from(np.arange(16, dtype=np.float32))
    out = runtime.Array(16, "float32")
    kernel(TorchLike(source), TorchLike(out), stream=0)
    assert np.array_equal(out.numpy(), source.numpy())
    with pytest.raises(ValueError, match=r"but got 1 \(cpu\)"):
        kernel(TorchLike(source, cuda=False), out, stream=0)


def without_inputs(dtype="F32"):
    """y[16] of a program that does not read its x[n]; an empty grid."""
    artifact = copy_artifact(dtype)
    x, y = artifact.launch.params
    x.unused = True
    y.shape[0].nodes[0].op, y.shape[0].nodes[0].value = 0, 16
    return runtime.load(artifact.SerializeToString())


def test_an_unused_tensor_may_be_absent():
    out = without_inputs()(None)
    assert isinstance(out, runtime.Array) and out.shape == (16,)
    used = runtime.load(copy_artifact(output=False).SerializeToString())
    with pytest.raises(ValueError, match="x is expected to have non-NULL pointer"):
        used(None, runtime.Array(16, "float32"))


@pytest.mark.parametrize("sees_a_gpu", [True, False])
def test_outputs_are_of_torch_where_it_is_loaded(monkeypatch, sees_a_gpu):
    made = []

    def empty(shape, dtype, device):
        made.append((shape, dtype, device))
        return TorchLike(runtime.Array(shape, "float32"))

    class FakeTorch:
        cuda = type("cuda", (), {"is_available": staticmethod(lambda: sees_a_gpu)})
        float32 = "torch.float32"

    FakeTorch.empty = staticmethod(empty)
    monkeypatch.setitem(sys.modules, "torch", FakeTorch)
    out = without_inputs()(None, stream=0)
    assert isinstance(out, TorchLike if sees_a_gpu else runtime.Array)
    assert made == ([((16,), "torch.float32", "cuda:0")] if sees_a_gpu else [])


def test_cuda_array_interface(kernel):
    class Foreign:
        def __init__(self, array):
            self.__cuda_array_interface__ = array.__cuda_array_interface__

        __cuda_array_interface__ = None

    source = runtime.Array(16, "float32").copy_from(np.arange(16, dtype=np.float32))
    assert np.array_equal(kernel(Foreign(source)).numpy(), source.numpy())


def test_hip():
    fake.kiln_fake_reset()
    kernel = runtime.load(copy_artifact(target="hip:gfx942").SerializeToString())
    x = np.arange(9, dtype=np.float32)
    assert np.array_equal(kernel(x), x)
    assert runtime.Array(4, "int8", kind="hip").nbytes == 4


def test_driver_errors_carry_their_name(kernel):
    a, out = runtime.Array(16, "float32"), runtime.Array(16, "float32")
    fake.kiln_fake_fail(b"cuLaunchKernel", 700)
    with pytest.raises(runtime.DriverError, match="went outside a tensor") as caught:
        kernel(a, out)
    assert caught.value.name == "CUDA_ERROR_ILLEGAL_ADDRESS" and caught.value.operation == "launch copy_words"
    assert isinstance(caught.value, RuntimeError)
    with pytest.raises(runtime.DriverError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        runtime.Array(1 << 40, "int8")
    kernel(a, out)


def test_tensors_that_no_tensor_map_holds():
    fake.kiln_fake_reset()
    artifact = Artifact(target="cuda:sm_90a", kind=1)
    artifact.code = b".entry copies(.param .align 64 .b8 map[128])"
    info = artifact.launch
    info.symbols.add(name="n", dtype=DTYPE["I32"])
    x = info.params.add(name="x", dtype=DTYPE["F32"], tensor=True, alignment=16)
    symbol(x.shape.add(), 0)
    info.tensor_maps.add(tensor=0, box=[32], swizzle_bytes=128)
    launch = info.launches.add(entry="copies", threads=32)
    launch.grid.add().nodes.add(op=0, value=1)
    launch.args.add(tensor_map=0)
    kernel = runtime.load(artifact.SerializeToString())
    for _ in range(2):
        kernel(runtime.Array(64, "float32"))
    assert fake.kiln_fake_launch_count() == 2
    with pytest.raises(runtime.AlignmentError, match="x cannot be moved by tensor copies") as caught:
        kernel(runtime.Array(0, "float32"))
    assert caught.value.alignment == 8


def test_bad_artifacts():
    for data in (b"", b"junk", copy_artifact().SerializeToString()[:-3]):
        with pytest.raises(ValueError, match="no kiln.v1.Artifact"):
            runtime.load(data)
    with pytest.raises(ValueError, match="compile it for cuda:sm_90a"):
        runtime.load(copy_artifact(target="cuda:sm_100a").SerializeToString())
    with pytest.raises(ValueError, match="runs on no GPU"):
        runtime.load(copy_artifact(target="emu:sm_90a").SerializeToString())
    with pytest.raises(ValueError, match="there is no cuda device 7"):
        runtime.load(copy_artifact().SerializeToString(), 7)
    broken = copy_artifact()
    broken.code = b"not ptx"
    with pytest.raises(runtime.DriverError, match="no entry"):
        runtime.load(broken.SerializeToString())


def test_measure_and_events(kernel):
    a, out = runtime.Array(16, "float32"), runtime.Array(16, "float32")
    times = kernel.measure(a, out, repeat=5, warmup=2)
    assert len(times) == 5 and all(t >= 0 for t in times) and fake.kiln_fake_launch_count() == 7
    with pytest.raises(ValueError, match="pass Array or torch tensors"):
        kernel.measure(np.zeros(4, np.float32), np.zeros(4, np.float32))
    start, end = runtime.Event(), runtime.Event()
    assert not end.query()
    start.record()
    kernel(a, out)
    end.record(stream=0)
    end.synchronize()
    assert end.query() and end.elapsed_ms(start) >= 0
    with pytest.raises(TypeError):
        end.elapsed_ms(3)


def test_threads(kernel):
    failures = []

    def launch(length):
        a = runtime.Array(length, "float32").copy_from(np.full(length, length, np.float32))
        for _ in range(200):
            if not (kernel(a).numpy() == length).all():
                failures.append(length)

    threads = [threading.Thread(target=launch, args=(n,)) for n in (10, 20, 30, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_nothing_leaks(kernel):
    import sys

    a, out = runtime.Array(16, "float32"), runtime.Array(16, "float32")
    exchange = WithExchange(a)
    counts = [sys.getrefcount(o) for o in (a, out, exchange, kernel, None)]
    for _ in range(1000):
        kernel(a, out)
        kernel(exchange, out)
        kernel.params
    for failing in ("text", 3):
        with pytest.raises(TypeError):
            kernel(failing)
    gc.collect()
    after = [sys.getrefcount(o) for o in (a, out, exchange, kernel, None)]
    assert all(abs(x - y) < 500 for x, y in zip(counts, after)), (counts, after)


class Refusing(runtime.Launcher):
    """Calls go to a function of its own, in place of a loaded kernel."""

    def __init__(self, launch):
        self._launch = launch
        self.refused = []

    def _refused(self, error, args, kwargs):
        self.refused.append((str(error), args, kwargs))
        return "another way"


def test_a_launcher_passes_calls_on():
    calls = []
    launcher = Refusing(lambda *args, **kwargs: calls.append((args, kwargs)) or len(calls))
    assert launcher(1, "two", stream=3) == 1 and launcher() == 2
    assert calls == [((1, "two"), {"stream": 3}), ((), {})]
    assert not launcher.refused


def test_what_a_launcher_refuses_goes_another_way():
    def refuse(*_, **__):
        raise ValueError("not these")

    launcher = Refusing(refuse)
    assert launcher(1, stream=2) == "another way" and launcher() == "another way"
    assert launcher.refused == [("not these", (1,), {"stream": 2}), ("not these", (), {})]
    launcher._launch = lambda *_: {}["other errors"]
    with pytest.raises(KeyError):
        launcher()
    del launcher._launch
    with pytest.raises(AttributeError):
        launcher()


def test_a_launcher_that_holds_itself_is_collected():
    import weakref

    launcher = Refusing(None)
    launcher._launch = launcher._refused
    seen = weakref.ref(launcher)
    del launcher
    gc.collect()
    assert seen() is None
