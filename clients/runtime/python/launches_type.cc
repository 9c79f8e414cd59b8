// SPDX-License-Identifier: Apache-2.0
//
// The type Launches; runtime_module.cc says what it does. As in calls_type.cc, a launch that is being made holds its Known.
#include <algorithm>

#include "clients/runtime/python/arguments.h"
#include "clients/runtime/python/known_launch.h"
#include "clients/runtime/python/launch_arguments.h"

namespace kiln::runtime::py {
namespace {

constexpr size_t kMostLaunches = 4096;  // that an object knows

using Given = LaunchArguments;

// Where a kernel's parameter comes from.
struct Source {
  enum class Kind : uint8_t { kArgument, kView, kSize } kind;
  size_t index;   // of the launch's parts, or of the grid's sizes
  int64_t width;  // of a view's elements
};

struct Known {
  struct Use {
    Ref names, name, value;
  };
  Ref kernel, result;
  std::vector<Source> sources;
  std::vector<uint8_t> written;  // by part of the launch
  std::vector<Use> used;
  std::vector<Ref> constants;  // whose addresses are in the key
  size_t rank;
};

struct LaunchesObject {
  PyObject ob_base;
  struct Body : LaunchParameters {
    ByWords<Known> known;
  }* body;
};
using Body = LaunchesObject::Body;

Body& BodyOf(PyObject* self) { return *reinterpret_cast<LaunchesObject*>(self)->body; }

// --- what keeps a launch from being made at once

// Whether the names that the kernel was made with mean what they did.
bool NamesHold(const Known& known) {
  return std::ranges::all_of(known.used, [](const Known::Use& use) {
    const Ref found(PyObject_GetItem(use.names.get(), use.name.get()));
    return found.get() == use.value.get();
  });
}

// Whether what the kernel writes is in no memory that another argument has.
bool Apart(const Known& known, const Given& given) {
  for (size_t i = 0; i < given.part_count; ++i) {
    if (!known.written[i]) continue;
    const Memory& written = given.tensors[given.tensor_of[i]];
    for (size_t other = 0; other < given.count; ++other) {
      const Memory& memory = given.tensors[other];
      if (other != given.tensor_of[i] && written.address < memory.end && memory.address < written.end) return false;
    }
  }
  return true;
}

// --- launching

// The grid, or what a function makes of the arguments by name; null with its exception.
Ref GridOf(const Body& body, PyObject* grid, const Given& given) {
  if (!PyCallable_Check(grid)) return Ref::Borrow(grid);
  const Ref names(PyDict_New());
  for (size_t i = 0; names && i < body.names.size(); ++i)
    if (PyDict_SetItem(names.get(), body.names[i], given.values[i]) < 0) return Ref();
  return Ref(names ? PyObject_CallFunctionObjArgs(grid, names.get(), nullptr) : nullptr);
}

// The numbers of programs: a number, or some in a tuple. Not where one of them is 0.
bool ReadGrid(const Ref& made, size_t rank, int64_t (&sizes)[3]) {
  const bool single = PyLong_CheckExact(made.get());
  if (!single && !PyTuple_Check(made.get())) return false;
  if ((single ? 1 : size_t(PyTuple_Size(made.get()))) != rank) return false;
  for (size_t i = 0; i < rank; ++i) {
    PyObject* size = single ? made.get() : PyTuple_GetItem(made.get(), Py_ssize_t(i));
    sizes[i] = PyLong_CheckExact(size) ? PyLong_AsLongLong(size) : 0;
    if (sizes[i] <= 0) return false;
  }
  return true;
}

Tensor TensorOf(const Memory& memory, DType dtype, const int64_t& count) {
  return {.data = memory.address,
          .dtype = dtype,
          .place = Place{uint8_t(memory.device.type)},
          .device = memory.device.index,
          .shape = {&count, 1},
          .strides = nullptr};
}

bool ReadNumber(PyObject* object, DType dtype, Arg& arg) {
  if (IsFloat(dtype)) arg = Arg::Of(PyFloat_AsDouble(object));
  else arg = Arg::Of(int64_t(PyLong_AsLongLong(object)));
  return !PyErr_Occurred();
}

PyObject* Make(const Known& known, const Given& given, const int64_t (&sizes)[3]) {
  Kernel& kernel = *KernelOf(known.kernel.get());
  const auto& params = kernel.binder().info().params;
  Arg args[kMostParameters];
  int64_t counts[kMostParameters];
  for (size_t i = 0; i < params.size(); ++i) {
    const Source& from = known.sources[i];
    if (from.kind == Source::Kind::kSize) {
      args[i] = Arg::Of(sizes[from.index]);
    } else if (!params[i].tensor) {
      if (!ReadNumber(given.parts[from.index], params[i].dtype, args[i])) return NotKnown();
    } else {
      const Memory& memory = given.tensors[given.tensor_of[from.index]];
      const bool view = from.kind == Source::Kind::kView;
      counts[i] = view ? memory.count * memory.width / from.width : memory.count;
      args[i] = Arg::Of(TensorOf(memory, view ? params[i].dtype : memory.dtype, counts[i]));
    }
  }
  return LaunchKnown(kernel, {args, params.size()}, *given.exchange, given.tensors[0].device, Ref::Borrow(known.result.get()));
}

PyObject* Launched(PyObject* self, PyObject* arguments) {
  const Body& body = BodyOf(self);
  PyObject *args = nullptr, *kwargs = nullptr, *grid = nullptr, *settings = nullptr;
  int only_found = 0;
  if (!PyArg_ParseTuple(arguments, "O!O!OO|p:launched", &PyTuple_Type, &args, &PyDict_Type, &kwargs, &grid, &settings, &only_found)) return nullptr;
  Given given;
  if (body.known.empty() || !ReadLaunch(body, args, kwargs, settings, given)) return NotKnown();
  const auto found = body.known.find(given.words());
  if (found == body.known.end()) return NotKnown();
  const std::shared_ptr<const Known> known = found->second;
  int64_t sizes[3] = {1, 1, 1};
  if (!NamesHold(*known) || !Apart(*known, given)) return NotKnown();
  PyErr_Clear();  // of a name that is gone
  const Ref made = GridOf(body, grid, given);
  if (!made) return nullptr;
  if (!ReadGrid(made, known->rank, sizes)) return NotKnown();
  return only_found ? Ref::Borrow(known->result.get()).release() : Make(*known, given, sizes);
}

// --- knowing

bool ReadSources(PyObject* sources, const Given& given, Known& known) {
  const auto& params = KernelOf(known.kernel.get())->binder().info().params;
  if (size_t(PyTuple_Size(sources)) != params.size() || params.size() > kMostParameters) return false;
  known.written.resize(given.part_count);
  for (size_t i = 0; i < params.size(); ++i) {
    int kind = 0;
    Py_ssize_t index = 0, width = 0;
    if (!PyArg_ParseTuple(PyTuple_GetItem(sources, Py_ssize_t(i)), "inn", &kind, &index, &width)) return false;
    const Source source{Source::Kind(kind), size_t(index), width};
    const bool is_size = source.kind == Source::Kind::kSize;
    if (kind < 0 || kind > 2 || source.index >= (is_size ? known.rank : given.part_count)) return false;
    PyObject* value = is_size ? nullptr : given.parts[source.index];
    const bool tensor = value != nullptr && !PyLong_Check(value) && !PyFloat_CheckExact(value) && value != Py_None;
    if (params[i].tensor != tensor || (source.kind == Source::Kind::kView && (!tensor || width <= 0))) return false;
    if (tensor) known.written[source.index] |= params[i].written;
    known.sources.push_back(source);
  }
  return true;
}

bool ReadUses(PyObject* used, Known& known) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(used); ++i) {
    PyObject *names = nullptr, *name = nullptr, *value = nullptr;
    if (!PyArg_ParseTuple(PyTuple_GetItem(used, i), "OOO", &names, &name, &value)) return false;
    known.used.push_back({Ref::Borrow(names), Ref::Borrow(name), Ref::Borrow(value)});
  }
  return true;
}

PyObject* Keep(PyObject* self, PyObject* arguments) {
  Body& body = BodyOf(self);
  PyObject *args = nullptr, *kwargs = nullptr, *settings = nullptr, *kernel = nullptr, *result = nullptr, *sources = nullptr, *used = nullptr;
  Py_ssize_t rank = 0;
  if (!PyArg_ParseTuple(arguments, "O!O!OOOO!O!n:keep", &PyTuple_Type, &args, &PyDict_Type, &kwargs, &settings, &kernel, &result, &PyTuple_Type,
                        &sources, &PyTuple_Type, &used, &rank))
    return nullptr;
  if (!KernelOf(kernel) || rank < 1 || rank > 3) {
    PyErr_SetString(PyExc_TypeError, "keep takes a kernel of this module, and a grid of one to three sizes");
    return nullptr;
  }
  Given given;
  if (!ReadLaunch(body, args, kwargs, settings, given) || !given.exchange->current_stream) {
    PyErr_Clear();
    return PyBool_FromLong(false);
  }
  auto known = std::make_shared<Known>();
  known->kernel = Ref::Borrow(kernel), known->result = Ref::Borrow(result), known->rank = size_t(rank);
  if (!ReadSources(sources, given, *known) || !ReadUses(used, *known)) return PyErr_Occurred() ? nullptr : PyBool_FromLong(false);
  for (size_t i = 0; i < body.names.size(); ++i)
    if (body.flags[i] & kCompiledIn) known->constants.push_back(Ref::Borrow(given.values[i]));
  Py_ssize_t at = 0;
  PyObject *name = nullptr, *value = nullptr;
  while (PyDict_Next(kwargs, &at, &name, &value)) known->constants.push_back(Ref::Borrow(value));
  ByWords<Known> forgotten;  // whose end may run Python
  if (body.known.size() >= kMostLaunches) forgotten.swap(body.known);
  body.known.insert_or_assign(given.Copy(), std::move(known));
  return PyBool_FromLong(true);
}

PyObject* Forget(PyObject* self, PyObject*) {
  ByWords<Known> known;
  known.swap(BodyOf(self).known);  // whose end may run Python
  Py_RETURN_NONE;
}

// --- making

PyObject* New(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"parameters", "tensors", "constants", "descriptors", nullptr};
  PyObject *parameters = nullptr, *tensors = nullptr, *constants = nullptr, *descriptors = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O!O!O!O!:Launches", const_cast<char**>(keywords), &PyTuple_Type, &parameters, &PyTuple_Type,
                                   &tensors, &PyTuple_Type, &constants, &PyTuple_Type, &descriptors))
    return nullptr;
  auto body = std::make_unique<Body>();
  for (Py_ssize_t i = 0; i < PyTuple_Size(parameters); ++i) {
    PyObject *name = nullptr, *otherwise = nullptr;
    int flags = 0;
    if (!PyArg_ParseTuple(PyTuple_GetItem(parameters, i), "Ui|O", &name, &flags, &otherwise)) return nullptr;
    body->names.push_back(body->Keep(name));
    body->flags.push_back(uint8_t(flags));
    body->defaults.push_back(otherwise == nullptr ? nullptr : body->Keep(otherwise));
  }
  if (body->names.size() > kMostParameters) {
    PyErr_SetString(PyExc_ValueError, "too many parameters");
    return nullptr;
  }
  for (Py_ssize_t i = 0; i < PyTuple_Size(tensors); ++i) {
    PyObject* tensor = PyTuple_GetItem(tensors, i);
    if (const auto* exchange = ExchangeOf(tensor)) body->tensors.push_back({reinterpret_cast<PyTypeObject*>(body->Keep(tensor)), exchange});
  }
  for (const auto& [types, given] : {std::pair(&body->constants, constants), std::pair(&body->descriptors, descriptors)})
    for (Py_ssize_t i = 0; i < PyTuple_Size(given); ++i) types->push_back(reinterpret_cast<PyTypeObject*>(body->Keep(PyTuple_GetItem(given, i))));
  auto* object = PyObject_GC_New(LaunchesObject, type);
  if (!object) return nullptr;
  object->body = body.release();
  PyObject_GC_Track(object);
  return reinterpret_cast<PyObject*>(object);
}

// What a launch gives holds the function, and that its launches.
int Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  for (const Ref& kept : BodyOf(self).kept) Py_VISIT(kept.get());
  for (const auto& [words, known] : BodyOf(self).known) {
    Py_VISIT(known->kernel.get());
    Py_VISIT(known->result.get());
    for (const Ref& constant : known->constants) Py_VISIT(constant.get());
    for (const Known::Use& use : known->used) {
      Py_VISIT(use.names.get());
      Py_VISIT(use.name.get());
      Py_VISIT(use.value.get());
    }
  }
  return 0;
}

int Clear(PyObject* self) {
  ByWords<Known> known;
  known.swap(BodyOf(self).known);
  return 0;
}

void Dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  delete reinterpret_cast<LaunchesObject*>(self)->body;
  PyObject_GC_Del(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyMethodDef kMethods[] = {
    {"launched", Launched, METH_VARARGS, "launched(args, kwargs, grid, settings, only_found=False): launches, if such a launch is known."},
    {"keep", Keep, METH_VARARGS, "keep(args, kwargs, settings, kernel, result, sources, used, rank): how such launches are made."},
    {"forget", Forget, METH_NOARGS, "forget(): all of them."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot kSlots[] = {{Py_tp_new, reinterpret_cast<void*>(New)},
                        {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
                        {Py_tp_traverse, reinterpret_cast<void*>(Traverse)},
                        {Py_tp_clear, reinterpret_cast<void*>(Clear)},
                        {Py_tp_methods, kMethods},
                        {Py_tp_doc, const_cast<char*>("Launches(*, parameters, tensors, constants, descriptors): launches of one function.")},
                        {0, nullptr}};
PyType_Spec kSpec = {"kiln._runtime.Launches", sizeof(LaunchesObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, kSlots};

}  // namespace

bool AddLaunchesType(PyObject* module) {
  const Ref type(PyType_FromSpec(&kSpec));
  return type && PyModule_AddObjectRef(module, "Launches", type.get()) == 0;
}

}  // namespace kiln::runtime::py
