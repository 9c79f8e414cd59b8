// SPDX-License-Identifier: Apache-2.0
//
// The type Kernel; runtime_module.cc says what it does.
#include <fmt/format.h>

#include <cstring>

#include "clients/runtime/python/arguments.h"
#include "clients/runtime/timing.h"

namespace kiln::runtime::py {
namespace {

struct KernelObject {
  PyObject ob_base;
  struct Body {
    std::unique_ptr<Kernel> kernel;
    size_t outputs = 0;
    // The outputs' shapes for the last key; decoding them takes as long as a launch.
    std::vector<uint64_t> key;
    std::vector<OutputShape> shapes;
  }* body;
};

KernelObject::Body& BodyOf(PyObject* self) { return *reinterpret_cast<KernelObject*>(self)->body; }
const Kernel& Loaded(PyObject* self) { return *BodyOf(self).kernel; }

void Dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  {
    KernelObject::Body* body = reinterpret_cast<KernelObject*>(self)->body;
    WithoutGil released;  // unloading waits for the device
    delete body;
  }
  PyObject_Free(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

// --- outputs

// numpy, torch and Array name some types after what holds their bits.
const DTypeInfo& Storage(const DTypeInfo& dtype, bool torch) {
  if (dtype.dtype == DType::kTF32) return *Find(DType::kF32);
  if (dtype.dtype == DType::kI4) return *Find(DType::kI8);
  if (dtype.dtype == DType::kU4) return *Find(DType::kU8);
  return torch ? dtype : *FindDTypeOfArray(dtype.array);
}

// As the module, torch or numpy, calls the type of an array that holds such elements.
std::string NameIn(PyObject* module, const DTypeInfo& dtype, bool torch) {
  if (torch && dtype.dtype == DType::kF4E2M1) return PyObject_HasAttrString(module, "float4_e2m1fn_x2") ? "float4_e2m1fn_x2" : "int8";
  const std::string name(Storage(dtype, torch).name);
  return name == "bool" && !torch ? "bool_" : name;
}

// torch where the process has imported it and torch sees a GPU, else nothing; no exception is set.
Ref LoadedTorch() {
  PyObject* modules = PyImport_GetModuleDict();  // borrowed
  Ref torch = Ref::Borrow(modules ? PyDict_GetItemString(modules, "torch") : nullptr);
  Ref cuda = torch ? Attribute(torch.get(), "cuda") : Ref();
  if (!cuda || !Attribute(torch.get(), "empty")) return Ref();
  Ref available(PyObject_CallMethod(cuda.get(), "is_available", nullptr));
  if (available && PyObject_IsTrue(available.get()) == 1) return torch;
  PyErr_Clear();
  return Ref();
}

// After the first tensor argument; where there is none, of torch if it is loaded.
Ref Allocate(const Arguments& arguments, const Kernel& kernel, const OutputShape& output) {
  const DTypeInfo& dtype = *Find(output.dtype);
  std::vector<int64_t> shape = output.shape;
  if (dtype.bits < 8 && !shape.empty()) shape.back() = (shape.back() + 1) / 2;
  const Source source = arguments.first_source();
  PyObject* like = arguments.first_tensor();
  const DeviceInfo& device = kernel.device().info();
  Ref loaded = like ? Ref() : LoadedTorch();
  const bool alike = like && (source == Source::kExchange || source == Source::kTorch) && PyObject_HasAttrString(like, "new_empty");
  const bool torch = alike || loaded;
  if (!torch && source != Source::kHost) return Ref(NewArray(OpenDevice(device.kind, device.index).value(), output.shape, dtype));
  Ref extents(ShapeTuple(shape));
  Ref module(loaded ? std::move(loaded) : Ref(PyImport_ImportModule(torch ? "torch" : "numpy")));
  if (!extents || !module) return Ref();
  Ref type(PyObject_GetAttrString(module.get(), NameIn(module.get(), dtype, torch).c_str()));
  if (!type) return Ref();
  Ref function(alike ? PyObject_GetAttrString(like, "new_empty") : PyObject_GetAttrString(module.get(), "empty"));
  Ref args(PyTuple_Pack(1, extents.get()));
  Ref kwargs(torch && !alike ? Py_BuildValue("{s:O,s:s}", "dtype", type.get(), "device", fmt::format("cuda:{}", device.index).c_str())
                             : Py_BuildValue("{s:O}", "dtype", type.get()));
  if (!function || !args || !kwargs) return Ref();
  return Ref(PyObject_Call(function.get(), args.get(), kwargs.get()));
}

// The shapes for these inputs; args holds all parameters, the outputs still absent.
Result<std::span<const OutputShape>> OutputShapes(KernelObject::Body& body, std::span<const Arg> args) {
  const Binder& binder = body.kernel->binder();
  uint64_t words[256];
  size_t used = 0;
  const bool keyed = binder.Key(args, words, used);
  if (keyed && body.key.size() == used && used > 0 && std::memcmp(body.key.data(), words, used * sizeof *words) == 0)
    return std::span<const OutputShape>(body.shapes);
  std::vector<Arg> inputs;
  for (size_t i = 0; i < args.size(); ++i)
    if (!binder.info().params[i].output) inputs.push_back(args[i]);
  auto shapes = binder.Outputs(inputs);
  if (!shapes) return std::unexpected(shapes.error());
  body.shapes = std::move(*shapes);
  body.key.assign(words, words + (keyed ? used : 0));
  return std::span<const OutputShape>(body.shapes);
}

// Allocates the outputs and returns what the call returns: one bare, several as a list.
Ref MakeOutputs(KernelObject::Body& body, Arguments& arguments) {
  auto found = OutputShapes(body, arguments.args());
  if (!found) return Ref(Raise(found.error()));
  const std::vector<OutputShape> shapes(found->begin(), found->end());  // allocating runs Python, which may call this kernel
  Ref list(PyList_New(0));
  for (const OutputShape& shape : shapes) {
    Ref output = Allocate(arguments, *body.kernel, shape);
    if (!output || !list || PyList_Append(list.get(), output.get()) < 0) return Ref();
    if (!arguments.ReadOutput(shape.param, output.get())) return Ref();
  }
  return shapes.size() == 1 ? Ref::Borrow(PyList_GetItem(list.get(), 0)) : std::move(list);
}

// --- calls

// The stream keyword's value; null where it is absent or None. False with an exception set.
bool StreamKeyword(PyObject* kwargs, PyObject** stream) {
  *stream = nullptr;
  if (!kwargs || PyDict_Size(kwargs) == 0) return true;
  *stream = PyDict_GetItemString(kwargs, "stream");
  if (PyDict_Size(kwargs) != (*stream != nullptr)) {
    PyErr_SetString(PyExc_TypeError, "a kernel takes its arguments by position; the only keyword is stream");
    return false;
  }
  if (*stream == Py_None) *stream = nullptr;
  return true;
}

bool ResolveStream(const Arguments& arguments, PyObject* given, void** stream) {
  if (!given) return arguments.CurrentStream(stream);
  *stream = PyLong_AsVoidPtr(given);
  return !PyErr_Occurred();
}

Result<void> LaunchAndCopy(Kernel& kernel, Arguments& arguments, void* stream) {
  if (!arguments.has_host()) return kernel.Launch(arguments.args(), stream);
  if (auto ok = arguments.CopyIn(stream); !ok) return ok;
  if (auto ok = kernel.Launch(arguments.args(), stream); !ok) return ok;
  return arguments.CopyOut(stream);
}

bool RaiseCount(const Binder& binder, size_t given) {
  const size_t all = size_t(binder.info().params.size());
  const std::string hint = binder.output_count() ? fmt::format(" ({} without the outputs)", all - binder.output_count()) : "";
  PyErr_SetString(PyExc_ValueError, fmt::format("{}: num_args should be {}{}, but got {}", binder.name(), all, hint, given).c_str());
  return false;
}

PyObject* Call(PyObject* self, PyObject* args, PyObject* kwargs) {
  KernelObject::Body& body = BodyOf(self);
  Kernel& kernel = *body.kernel;
  const size_t given = size_t(PyTuple_Size(args)), all = size_t(kernel.binder().info().params.size());
  const bool allocate = body.outputs > 0 && given + body.outputs == all;
  if (given != all && !allocate) {
    RaiseCount(kernel.binder(), given);
    return nullptr;
  }
  PyObject* given_stream = nullptr;
  if (!StreamKeyword(kwargs, &given_stream)) return nullptr;
  Arguments arguments(kernel);
  if (!arguments.Read(args, allocate)) return nullptr;
  Ref result = allocate ? MakeOutputs(body, arguments) : Ref::Borrow(Py_None);
  if (!result) return nullptr;
  void* stream = nullptr;
  if (!ResolveStream(arguments, given_stream, &stream)) return nullptr;
  Result<void> launched;
  {
    WithoutGil released;
    launched = LaunchAndCopy(kernel, arguments, stream);
  }
  if (!launched) return Raise(launched.error());
  return result.release();
}

PyObject* OutputShapesMethod(PyObject* self, PyObject* args) {
  KernelObject::Body& body = BodyOf(self);
  const Binder& binder = body.kernel->binder();
  const size_t given = size_t(PyTuple_Size(args));
  if (given + body.outputs != size_t(binder.info().params.size())) {
    RaiseCount(binder, given);
    return nullptr;
  }
  Arguments arguments(*body.kernel);
  if (!arguments.Read(args, true)) return nullptr;
  auto shapes = OutputShapes(body, arguments.args());
  if (!shapes) return Raise(shapes.error());
  Ref list(PyList_New(0));
  for (const OutputShape& shape : *shapes) {
    Ref extents(ShapeTuple(shape.shape));
    if (!extents || !list) return nullptr;
    Ref item(Py_BuildValue("(sOs)", shape.name.c_str(), extents.get(), std::string(Name(shape.dtype)).c_str()));
    if (!item || PyList_Append(list.get(), item.get()) < 0) return nullptr;
  }
  return list.release();
}

PyObject* SymbolsMethod(PyObject* self, PyObject* args) {
  const Kernel& kernel = Loaded(self);
  const size_t given = size_t(PyTuple_Size(args)), all = size_t(kernel.binder().info().params.size());
  Arguments arguments(kernel);
  if (given != all && given + BodyOf(self).outputs != all) {
    RaiseCount(kernel.binder(), given);
    return nullptr;
  }
  if (!arguments.Read(args, given != all)) return nullptr;
  auto binding = kernel.binder().Bind(arguments.args());
  if (!binding) return Raise(binding.error());
  Ref dict(PyDict_New());
  for (size_t i = 0; i < binding->symbols.size(); ++i) {
    Ref value(PyLong_FromLongLong(binding->symbols[i]));
    if (!dict || !value) return nullptr;
    if (PyDict_SetItemString(dict.get(), kernel.binder().info().symbols[i].name.c_str(), value.get()) < 0) return nullptr;
  }
  return dict.release();
}

// Takes an int keyword out of a copy of kwargs.
bool TakeInt(PyObject* kwargs, const char* name, int low, int* value) {
  PyObject* given = PyDict_GetItemString(kwargs, name);
  if (!given) return true;
  const long number = PyLong_AsLong(given);
  if (number == -1 && PyErr_Occurred()) return false;
  if (number < low || number > 1'000'000) {
    PyErr_Format(PyExc_ValueError, "%s is expected to be between %d and 1000000, but got %ld", name, low, number);
    return false;
  }
  *value = int(number);
  return PyDict_DelItemString(kwargs, name) == 0;
}

PyObject* Measure(PyObject* self, PyObject* args, PyObject* kwargs) {
  Kernel& kernel = *BodyOf(self).kernel;
  Ref rest(kwargs ? PyDict_Copy(kwargs) : PyDict_New());
  int warmup = 3, repeat = 20;
  PyObject* given_stream = nullptr;
  if (!rest || !TakeInt(rest.get(), "warmup", 0, &warmup) || !TakeInt(rest.get(), "repeat", 1, &repeat)) return nullptr;
  if (!StreamKeyword(rest.get(), &given_stream)) return nullptr;
  if (size_t(PyTuple_Size(args)) != kernel.binder().info().params.size()) {
    RaiseCount(kernel.binder(), size_t(PyTuple_Size(args)));
    return nullptr;
  }
  Arguments arguments(kernel);
  if (!arguments.Read(args, false)) return nullptr;
  if (arguments.has_host()) {
    PyErr_SetString(PyExc_ValueError, "measure takes tensors on the device: pass Array or torch tensors in place of numpy arrays");
    return nullptr;
  }
  void* stream = nullptr;
  if (!ResolveStream(arguments, given_stream, &stream)) return nullptr;
  Result<std::vector<double>> times;
  {
    WithoutGil released;
    times = MeasureLaunches(kernel, arguments.args(), stream, warmup, repeat);
  }
  if (!times) return Raise(times.error());
  Ref list(PyList_New(0));
  for (double microseconds : *times) {
    Ref value(PyFloat_FromDouble(microseconds));
    if (!list || !value || PyList_Append(list.get(), value.get()) < 0) return nullptr;
  }
  return list.release();
}

// --- attributes

PyObject* ToText(std::string_view text) { return PyUnicode_FromStringAndSize(text.data(), Py_ssize_t(text.size())); }
PyObject* GetName(PyObject* self, void*) { return ToText(Loaded(self).binder().name()); }
PyObject* GetTarget(PyObject* self, void*) { return ToText(Loaded(self).target()); }
PyObject* GetLog(PyObject* self, void*) { return ToText(Loaded(self).module().log()); }
PyObject* GetLoadedFrom(PyObject* self, void*) { return ToText(Loaded(self).module().loaded_from()); }
PyObject* GetDevice(PyObject* self, void*) { return PyLong_FromLong(Loaded(self).device().info().index); }

PyObject* GetParams(PyObject* self, void*) {
  Ref list(PyList_New(0));
  for (const auto& param : Loaded(self).binder().info().params) {
    Ref item(Py_BuildValue("{s:s,s:s,s:O,s:O,s:O}", "name", param.name.c_str(), "dtype", std::string(Name(param.dtype)).c_str(), "tensor",
                           param.tensor ? Py_True : Py_False, "output", param.output ? Py_True : Py_False, "written",
                           param.written ? Py_True : Py_False));
    if (!list || !item || PyList_Append(list.get(), item.get()) < 0) return nullptr;
  }
  return list.release();
}

PyObject* GetResources(PyObject* self, void*) {
  Ref list(PyList_New(0));
  for (const EntryResources& r : Loaded(self).module().resources()) {
    Ref item(Py_BuildValue("{s:s,s:i,s:i,s:i,s:i,s:i}", "entry", r.entry.c_str(), "registers", r.registers, "local_bytes", r.local_bytes,
                           "shared_bytes", r.shared_bytes, "dynamic_shared_bytes", r.dynamic_shared_bytes, "max_threads", r.max_threads));
    if (!list || !item || PyList_Append(list.get(), item.get()) < 0) return nullptr;
  }
  return list.release();
}

PyMethodDef kMethods[] = {{"output_shapes", OutputShapesMethod, METH_VARARGS, "(name, shape, dtype) of each output for these inputs."},
                          {"symbols", SymbolsMethod, METH_VARARGS, "The values of the run-time dimensions for these arguments."},
                          {"measure", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Measure)), METH_VARARGS | METH_KEYWORDS,
                           "measure(*args, stream=None, warmup=3, repeat=20): microseconds of each launch on the device."},
                          {nullptr, nullptr, 0, nullptr}};
PyGetSetDef kAttributes[] = {{"name", GetName, nullptr, "What error texts call the kernel.", nullptr},
                             {"target", GetTarget, nullptr, "What it was compiled for.", nullptr},
                             {"device", GetDevice, nullptr, "Index of the device it was loaded on.", nullptr},
                             {"log", GetLog, nullptr, "What the driver's compiler printed.", nullptr},
                             {"loaded_from", GetLoadedFrom, nullptr, "'ptx', 'cubin' or 'hsaco'.", nullptr},
                             {"params", GetParams, nullptr, "The parameters, in order.", nullptr},
                             {"resources", GetResources, nullptr, "Registers and memory of each launch.", nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot kSlots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
                        {Py_tp_call, reinterpret_cast<void*>(Call)},
                        {Py_tp_methods, kMethods},
                        {Py_tp_getset, kAttributes},
                        {Py_tp_doc, const_cast<char*>("A loaded artifact: kernel(*args, stream=None) launches it.")},
                        {0, nullptr}};
PyType_Spec kSpec = {"kiln._runtime.Kernel", sizeof(KernelObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, kSlots};

}  // namespace

bool AddKernelType(PyObject* module) {
  PyObject* type = PyType_FromSpec(&kSpec);
  if (!type) return false;
  GetState().kernel_type = reinterpret_cast<PyTypeObject*>(type);
  return PyModule_AddObjectRef(module, "Kernel", type) == 0;
}

Kernel* KernelOf(PyObject* object) { return Py_TYPE(object) == GetState().kernel_type ? BodyOf(object).kernel.get() : nullptr; }

PyObject* LoadKernel(PyObject*, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"artifact", "device", "name", "by_address", nullptr};
  const char* bytes = nullptr;
  const char* name = "";
  Py_ssize_t size = 0;
  int index = 0, by_address = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#|i$sp:load", const_cast<char**>(keywords), &bytes, &size, &index, &name, &by_address)) {
    return nullptr;
  }
  auto artifact = DecodeArtifact({bytes, size_t(size)});
  if (!artifact) return Raise(artifact.error());
  for (LaunchParam& param : artifact->launch.params) param.by_address = by_address && param.tensor;
  const bool hip = artifact->target.starts_with("hip:");
  if (!hip && !artifact->target.starts_with("cuda:")) return Raise(ArtifactError(fmt::format("target {} runs on no GPU", artifact->target)).error());
  auto device = OpenDevice(hip ? DriverKind::kHip : DriverKind::kCuda, index);
  if (!device) return Raise(device.error());
  Result<std::unique_ptr<Kernel>> kernel;
  {
    WithoutGil released;
    kernel = Kernel::Load(*artifact, *device, name);
  }
  if (!kernel) return Raise(kernel.error());
  auto* object = PyObject_New(KernelObject, GetState().kernel_type);
  if (!object) return nullptr;
  object->body = new KernelObject::Body;
  object->body->outputs = (*kernel)->binder().output_count();
  object->body->kernel = std::move(*kernel);
  return reinterpret_cast<PyObject*>(object);
}

}  // namespace kiln::runtime::py
