// SPDX-License-Identifier: Apache-2.0
//
// kiln._runtime: loads artifacts and launches them from Python. One build for every CPython ≥ 3.11 (stable ABI); it needs
// neither protobuf nor numpy nor torch, and imports none of them unless an argument is one of theirs. The GPU driver is opened
// on the first call that needs one, so importing works everywhere.
//
//   load(artifact: bytes, device: int = 0, *, name: str = "", by_address: bool = False) -> Kernel
//       artifact: a serialized kiln.v1.Artifact. name: how error texts call the kernel; default: the first entry's name.
//       by_address: all tensors may be given as addresses, and who passes them answers for what they overlap.
//       Its code is loaded at once (PTX is compiled by the driver here unless the artifact holds a cubin that fits).
//       ValueError: the bytes are no artifact, or it is for another architecture than the device's. DriverError otherwise.
//
//   class Kernel
//       kernel(*args, stream: int | None = None)
//           args: either one for each parameter in order, or one for each parameter that is not an output. In the second form
//           the outputs are allocated and returned: one bare, several as a list. In the first form the result is None. They are made
//           by torch.empty, numpy.empty or Array, after the kind of the first tensor argument; where there is none, by torch.empty on
//           the kernel's device if the process has imported torch, else by Array.
//           Tensor arguments may be torch tensors (CUDA or ROCm), numpy arrays (copied to the device and, where the kernel
//           writes them, back; the call then waits), Array, objects with __dlpack_c_exchange_api__,
//           __cuda_array_interface__ or __dlpack__, DLPack capsules, or None where the tensor is
//           empty or no launch reads or writes it.
//           An int is an address on the kernel's device, of elements of the parameter's type without a known end. It is taken where the
//           parameter may overlap others and has one dimension, whose extent is then 2^40.
//           Scalars: int, bool, float, or anything with __index__ or __float__.
//           numpy has no bfloat16, tf32 or float8: arrays of uint16, float32 and uint8 are taken for them bit by bit, and
//           ml_dtypes' own types are recognised.
//           stream: a raw stream handle; None: torch's current stream where torch tensors are passed, else the default one.
//           Nothing is launched where the grid is empty. ValueError: an argument does not fit (texts as TileLang's);
//           TypeError: an argument is no tensor or number at all; DriverError: the driver refused.
//       kernel.output_shapes(*args) -> list[tuple[str, tuple[int, ...], str]]     (name, shape, dtype) of each output;
//           args: the parameters that are not outputs.
//       kernel.symbols(*args) -> dict[str, int]       the values that the run-time dimensions take for these arguments
//       kernel.measure(*args, stream=None, warmup=3, repeat=20) -> list[float]
//           microseconds on the device of `repeat` launches, one by one, by events; all parameters are given, none is numpy.
//       kernel.params: list[dict]      {"name", "dtype", "tensor": bool, "output": bool, "written": bool}
//       kernel.resources: list[dict]   one for each launch: {"entry", "registers", "local_bytes", "shared_bytes",
//                                      "dynamic_shared_bytes", "max_threads"}, as the driver says
//       kernel.log: str                what the driver's compiler printed while loading ("" for cubin and HSACO)
//       kernel.loaded_from: str        "ptx", "cubin" or "hsaco"
//       kernel.name, kernel.target: str; kernel.device: int
//
//   devices() -> list[dict]    {"index", "kind": "cuda" | "hip", "name", "arch": "cuda:sm_90a", "memory_bytes",
//                              "driver_version": "13.0"}; empty where there is no driver or no device
//   driver_problem(kind: str) -> str     why the "cuda" or "hip" driver cannot be used, with a hint; "" where it can
//   synchronize(device: int = 0, *, kind: str | None = None)     waits for all work on the device
//   use_driver(kind: str, path: str)     opens `path` as that driver in place of libcuda.so.1 or libamdhip64.so; before the
//                                        first use of that kind, else RuntimeError
//
//   class Array(shape, dtype: str, device: int = 0, *, kind: str | None = None)     device memory, uninitialised, row-major
//       .shape: tuple, .dtype: str, .nbytes: int, .device: int, .data_ptr() -> int, .__cuda_array_interface__
//       .copy_from(buffer)   any C-contiguous bytes-like object of nbytes bytes (a numpy array); waits. Returns self.
//       .copy_to(buffer)     into a writable one; waits. Returns the buffer.
//       .numpy()             a new numpy array (uint16 for bfloat16, uint8 for float8, float32 for tf32)
//       .fill(byte: int)     every byte
//   class Event(device: int = 0, *, kind: str | None = None)
//       .record(stream: int = 0); .synchronize(); .elapsed_ms(since: Event) -> float; .query() -> bool
//
//   class Launcher     the base of kiln.Kernel: a call of an instance is one of its `_launch`, and where that raises ValueError, of its
//                      `_refused(error, args, kwargs)`
//
//   class Calls(*, tensors, constants, empty, grad_enabled, watched)     calls of one function that were made before: those like them are
//                      launched here, where Python would take longer than the launch
//       tensors: the types whose objects are tensors; those without DLPack's C exchange table are none here. constants: types whose objects
//           are told apart by identity, and live for ever. empty(size, **keywords) -> a tensor, uninitialised. grad_enabled() -> bool.
//       watched: (function, method or None, usual) of each: function(), or function().method(), must give one of these numbers, or no call
//           is made here
//       .keep(arguments: tuple, kernel: Kernel, inputs: tuple, outputs: tuple) -> bool     how calls with such arguments are made: tensors of
//           the same types, shapes, strides and device, other arguments equal. inputs: (index of the argument, shape) for each parameter of
//           the kernel that is no output; the tensor, whose elements are dense, is passed in that shape. outputs: (size, keywords, shape) for
//           each other: made by empty(size, **keywords), and passed in that shape. False: such calls are not kept, because an argument is
//           something else, or a tensor is on the host, without elements or at an address that is no multiple of 16
//       .called(arguments: tuple)     the outputs, one bare, several as a tuple; NotImplemented where no such call was kept, a watched function
//           says something else, a tensor is a negated view, or a gradient is wanted
//       .launched(arguments: tuple)     the same without looking for what is in the way
//
//   class Launches(*, parameters, tensors, constants, descriptors)     launches of one function of Triton's that were made before: those like them
//           are made here
//       parameters: (name, flags, its default where it has one) of each. Flags: 1 it is compiled in; 2 a launch's kernel depends on whether it is 1;
//           4 and on whether 16 divides it, of a tensor its elements; 8 its annotation gives it a type; 16 a tensor is looked at in Python.
//           tensors: the types whose objects are tensors, as of Calls. constants: types whose objects are told apart by identity. descriptors: types
//           whose objects have .base, a tensor, .shape and .strides, and .block_shape and .padding, which are compiled in
//       .keep(args: tuple, kwargs: dict, settings, kernel: Kernel, result, sources: tuple, used: tuple, rank: int) -> bool     how such launches are
//           made, over a grid of ``rank`` sizes. settings: what they depend on beside that. sources: (0, part, 0), (1, part, bytes of an element that
//           it is seen as) or (2, which size of the grid, 0) for each parameter of the kernel. Parts are the arguments that are not compiled in,
//           a tuple's each by itself but for texts, and a descriptor's tensor, sizes and strides. used: (names, name, value) that must hold.
//           False: such launches are not kept
//       .launched(args, kwargs, grid, settings, only_found=False)     `result` of such a launch; NotImplemented where none was kept, a name means
//           something else, a tensor that is written shares memory with another, or the grid is empty. grid: numbers, or a function that makes them
//           of the arguments by name
//       .forget()
//
//   class AlignmentError(ValueError)    a tensor starts between the addresses that the kernel relies on.
//                                       .alignment: CompileOptions.pointer_alignment that takes these tensors
//   class DriverError(RuntimeError)     .name: the driver's name of the error ("CUDA_ERROR_ILLEGAL_ADDRESS"; "" where the
//                                       driver is absent), .operation: what was asked ("launch gemm_kernel")
//
// dtype names are the tile language's: "float16", "bfloat16", "float32", "float64", "tfloat32", "int8" … "uint64", "bool",
// "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "int4", "uint4". kind=None: CUDA where there is a CUDA
// device, else HIP.
#include "clients/runtime/python/python.h"

namespace kiln::runtime::py {
namespace {

constexpr DriverKind kKinds[] = {DriverKind::kCuda, DriverKind::kHip};

PyObject* DeviceDict(const DeviceInfo& info) {
  return Py_BuildValue("{s:i,s:s,s:s,s:s,s:K,s:s}", "index", info.index, "kind", std::string(Name(info.kind)).c_str(), "name", info.name.c_str(),
                       "arch", info.arch.c_str(), "memory_bytes", static_cast<unsigned long long>(info.memory_bytes), "driver_version",
                       info.driver_version.c_str());
}

PyObject* Devices(PyObject*, PyObject*) {
  Ref list(PyList_New(0));
  for (DriverKind kind : kKinds) {
    auto driver = OpenDriver(kind);
    if (!driver) continue;
    auto devices = ListDevices(**driver);
    if (!devices) continue;  // driver_problem says why
    for (const DeviceInfo& info : *devices) {
      Ref item(DeviceDict(info));
      if (!list || !item || PyList_Append(list.get(), item.get()) < 0) return nullptr;
    }
  }
  return list.release();
}

PyObject* DriverProblem(PyObject*, PyObject* name) {
  const auto kind = KindOf(name);
  if (!kind) return nullptr;
  auto driver = OpenDriver(*kind);
  if (!driver) return PyUnicode_FromString(driver.error().message.c_str());
  auto devices = ListDevices(**driver);
  if (!devices) return PyUnicode_FromString(devices.error().message.c_str());
  return PyUnicode_FromString(devices->empty() ? "the driver sees no device" : "");
}

PyObject* Synchronize(PyObject*, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"device", "kind", nullptr};
  int index = 0;
  PyObject* kind = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|i$O:synchronize", const_cast<char**>(keywords), &index, &kind)) return nullptr;
  auto device = DeviceOf(kind, index);
  if (!device) return nullptr;
  Result<void> waited;
  {
    WithoutGil released;
    waited = device->Synchronize();
  }
  if (!waited) return Raise(waited.error());
  Py_INCREF(Py_None);
  return Py_None;
}

PyObject* UseDriver(PyObject*, PyObject* args) {
  PyObject* name = nullptr;
  const char* path = nullptr;
  if (!PyArg_ParseTuple(args, "Us:use_driver", &name, &path)) return nullptr;
  const auto kind = KindOf(name);
  if (!kind) return nullptr;
  State& state = GetState();
  if (state.drivers[size_t(*kind)]) {
    PyErr_SetString(PyExc_RuntimeError, "this driver is open already; call use_driver before anything else");
    return nullptr;
  }
  state.library[size_t(*kind)] = path;
  Py_INCREF(Py_None);
  return Py_None;
}

PyCFunction WithKeywords(PyObject* (*function)(PyObject*, PyObject*, PyObject*)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef* Functions() {
  static PyMethodDef functions[] = {
      {"load", WithKeywords(LoadKernel), METH_VARARGS | METH_KEYWORDS,
       "load(artifact, device=0, *, name='', by_address=False): loads a serialized kiln.v1.Artifact; returns a Kernel."},
      {"devices", Devices, METH_NOARGS, "The devices there are, as dicts."},
      {"driver_problem", DriverProblem, METH_O, "Why the 'cuda' or 'hip' driver cannot be used; '' where it can."},
      {"synchronize", WithKeywords(Synchronize), METH_VARARGS | METH_KEYWORDS,
       "synchronize(device=0, *, kind=None): waits for all work on the device."},
      {"use_driver", UseDriver, METH_VARARGS, "use_driver(kind, path): opens that library as the driver."},
      {nullptr, nullptr, 0, nullptr}};
  return functions;
}

bool AddDriverError(PyObject* module) {
  PyObject* type = PyErr_NewExceptionWithDoc("kiln._runtime.DriverError",
                                             "The GPU driver is absent or refused. name: its own name for the error; operation: what "
                                             "was asked of it.",
                                             PyExc_RuntimeError, nullptr);
  GetState().driver_error = type;
  return type && PyModule_AddObjectRef(module, "DriverError", type) == 0;
}

bool AddArgumentError(PyObject* module) {
  Ref bases(PyTuple_Pack(2, PyExc_ValueError, PyExc_RuntimeError));
  if (!bases) return false;
  PyObject* type = PyErr_NewExceptionWithDoc("kiln._runtime.ArgumentError",
                                             "What a launch is given is not what the kernel takes, or not what it was compiled for. A "
                                             "RuntimeError as well, as TileLang's.",
                                             bases.get(), nullptr);
  GetState().argument_error = type;
  return type && PyModule_AddObjectRef(module, "ArgumentError", type) == 0;
}

bool AddAlignmentError(PyObject* module) {
  PyObject* type = PyErr_NewExceptionWithDoc("kiln._runtime.AlignmentError",
                                             "A tensor starts between the addresses that the kernel relies on. alignment: what "
                                             "CompileOptions.pointer_alignment must be to take these tensors.",
                                             GetState().argument_error, nullptr);
  GetState().alignment_error = type;
  return type && PyModule_AddObjectRef(module, "AlignmentError", type) == 0;
}

}  // namespace
}  // namespace kiln::runtime::py

PyMODINIT_FUNC PyInit__runtime() {
  using namespace kiln::runtime::py;
  static PyModuleDef definition = {
      PyModuleDef_HEAD_INIT, "kiln._runtime", "Loads Kiln's artifacts and launches them.", -1, Functions(), nullptr, nullptr, nullptr, nullptr};
  Ref module(PyModule_Create(&definition));
  if (!module || !AddDriverError(module.get()) || !AddArgumentError(module.get()) || !AddAlignmentError(module.get()) ||
      !AddKernelType(module.get()) || !AddLauncherType(module.get()) || !AddCallsType(module.get()) || !AddLaunchesType(module.get()) ||
      !AddArrayType(module.get()) || !AddEventType(module.get()))
    return nullptr;
  return module.release();
}
