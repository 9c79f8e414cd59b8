// SPDX-License-Identifier: Apache-2.0
//
// The type Calls; runtime_module.cc says what it does. Python calls in with the GIL held, which protects the calls that an object knows. A
// call that is being made holds its Known, because looking at tensors and allocating a result run Python, which may make other calls and forget
// this one.
#include <algorithm>

#include "clients/runtime/python/arguments.h"
#include "clients/runtime/python/known_launch.h"
#include "clients/runtime/python/words.h"

namespace kiln::runtime::py {
namespace {

constexpr size_t kMostCalls = 4096;  // that an object knows
constexpr size_t kMostTensors = 16;
constexpr size_t kMostParams = 24;
constexpr uint64_t kAlignment = 16;  // bytes: other tensors may ask for other kernels

enum class Word : uint64_t { kNone, kTrue, kFalse, kInt, kFloat, kText, kConstant, kTensor };

// A call's arguments: what its launch depends on, and its tensors.
struct Given : Key {
  dlpack::Tensor tensors[kMostTensors];
  size_t tensor_of[kMostWords];  // by argument
  size_t count = 0;              // of the tensors
  const dlpack::ExchangeApi* exchange = nullptr;
};

// How a call is made.
struct Known {
  struct Input {
    size_t tensor;  // of the call's
    DType dtype;
    std::vector<int64_t> shape;
  };
  struct Output {
    Ref size, keywords;  // of `empty`
    std::vector<int64_t> shape;
  };
  Ref kernel;
  std::vector<Input> inputs;  // in the order of the kernel's parameters
  std::vector<Output> outputs;
};

struct CallsObject {
  PyObject ob_base;
  struct Body {
    struct TensorType {
      PyTypeObject* type;
      const dlpack::ExchangeApi* exchange;
    };
    struct Watch {
      PyObject *function, *method;
      std::vector<uint64_t> usual;
    };
    std::vector<Ref> kept;
    std::vector<TensorType> tensors;
    std::vector<PyTypeObject*> constants;
    std::vector<Watch> watched;
    PyObject *empty = nullptr, *grad_enabled = nullptr;
    ByWords<Known> known;

    PyObject* Keep(PyObject* object) {
      kept.push_back(Ref::Borrow(object));
      return object;
    }
  }* body;
};

CallsObject::Body& BodyOf(PyObject* self) { return *reinterpret_cast<CallsObject*>(self)->body; }

// --- reading

bool AddText(PyObject* object, Given& given) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &size);
  return text && given.Add(uint64_t(Word::kText)) && given.AddText(text, size_t(size));
}

bool AddTensor(PyObject* object, const dlpack::ExchangeApi& exchange, Given& given) {
  if (given.count == kMostTensors) return false;
  dlpack::Tensor& view = given.tensors[given.count++];
  if (exchange.view_of_object(object, &view) != 0 || view.ndim < 0 || view.ndim > Binder::kMaxRank) return false;
  const uint64_t address = reinterpret_cast<uint64_t>(view.data) + view.byte_offset;
  if (!view.data || address % kAlignment != 0) return false;
  const Place place{uint8_t(view.device.type)};
  if (place != Place::kCuda && place != Place::kHip) return false;
  given.exchange = &exchange;
  const uint64_t type = uint64_t(view.dtype.code) | uint64_t(view.dtype.bits) << 8 | uint64_t(view.dtype.lanes) << 16;
  const uint64_t where = uint64_t(view.ndim) | uint64_t(view.strides != nullptr) << 8 | uint64_t(uint8_t(view.device.type)) << 16 |
                         uint64_t(uint32_t(view.device.index)) << 32;
  if (!given.Add(Word::kTensor, type) || !given.Add(where)) return false;
  for (int32_t d = 0; d < view.ndim; ++d)
    if (!given.Add(uint64_t(view.shape[d])) || (view.strides && !given.Add(uint64_t(view.strides[d])))) return false;
  return true;
}

bool AddArgument(const CallsObject::Body& body, PyObject* object, Given& given) {
  if (object == Py_None) return given.Add(uint64_t(Word::kNone));
  if (object == Py_True) return given.Add(uint64_t(Word::kTrue));
  if (object == Py_False) return given.Add(uint64_t(Word::kFalse));
  PyTypeObject* type = Py_TYPE(object);
  for (const auto& tensor : body.tensors)
    if (tensor.type == type) return AddTensor(object, *tensor.exchange, given);
  if (type == &PyFloat_Type) return given.Add(Word::kFloat, std::bit_cast<uint64_t>(PyFloat_AsDouble(object)));
  if (type == &PyUnicode_Type) return AddText(object, given);
  if (type == &PyLong_Type) {
    const long long value = PyLong_AsLongLong(object);
    return !(value == -1 && PyErr_Occurred()) && given.Add(Word::kInt, uint64_t(value));
  }
  for (PyTypeObject* constant : body.constants)
    if (constant == type) return given.Add(Word::kConstant, uint64_t(reinterpret_cast<uintptr_t>(object)));
  return false;
}

bool Read(const CallsObject::Body& body, PyObject* arguments, Given& given) {
  if (!PyTuple_Check(arguments)) return false;
  const size_t count = size_t(PyTuple_Size(arguments));
  if (count > kMostWords) return false;
  for (size_t i = 0; i < count; ++i) {
    given.tensor_of[i] = given.count;
    if (!AddArgument(body, PyTuple_GetItem(arguments, Py_ssize_t(i)), given)) return false;
  }
  return given.count > 0;
}

// --- what keeps a call from being made at once

// Whether nothing watches or changes what operators do: modes, tracing, transformations.
bool NothingWatches(const CallsObject::Body& body) {
  for (const auto& watch : body.watched) {
    Ref state(PyObject_CallNoArgs(watch.function));
    if (state && watch.method) state = Ref(PyObject_CallMethodObjArgs(state.get(), watch.method, nullptr));
    if (!state || !PyLong_Check(state.get())) return false;
    const uint64_t value = PyLong_AsUnsignedLongLongMask(state.get());
    if (std::find(watch.usual.begin(), watch.usual.end(), value) == watch.usual.end()) return false;
  }
  return true;
}

// Whether the memory of each tensor is what it says, and no gradient is asked for.
bool TensorsArePlain(const CallsObject::Body& body, PyObject* arguments) {
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  bool gradients = false;
  for (Py_ssize_t i = 0; i < PyTuple_Size(arguments); ++i) {
    PyObject* object = PyTuple_GetItem(arguments, i);
    PyTypeObject* type = Py_TYPE(object);
    if (std::none_of(body.tensors.begin(), body.tensors.end(), [&](const auto& tensor) { return tensor.type == type; })) continue;
    const Ref wanted(PyObject_GetAttr(object, requires_grad)), negated(PyObject_CallMethodObjArgs(object, is_neg, nullptr));
    if (!wanted || negated.get() != Py_False) return false;
    gradients |= wanted.get() != Py_False;
  }
  if (!gradients) return true;
  const Ref enabled(PyObject_CallNoArgs(body.grad_enabled));
  return enabled.get() == Py_False;
}

// --- calling

Tensor TensorOf(const dlpack::Tensor& view, DType dtype, std::span<const int64_t> shape) {
  return {.data = reinterpret_cast<uint64_t>(view.data) + view.byte_offset,
          .dtype = dtype,
          .place = Place{uint8_t(view.device.type)},
          .device = view.device.index,
          .shape = shape,
          .strides = nullptr};
}

// One result in place of a parameter; null with an exception set.
Ref Allocate(const CallsObject::Body& body, const Known::Output& output, const dlpack::ExchangeApi& exchange, Arg& arg) {
  Ref made(PyObject_Call(body.empty, output.size.get(), output.keywords.get()));
  dlpack::Tensor view{};
  if (!made || exchange.view_of_object(made.get(), &view) != 0) return Ref();
  const DTypeInfo* dtype = FindDType(view.dtype.code, view.dtype.bits, view.dtype.lanes);
  if (!dtype) return Ref();
  arg = Arg::Of(TensorOf(view, dtype->dtype, output.shape));
  return made;
}

PyObject* Make(const CallsObject::Body& body, const Known& known, const Given& given) {
  Kernel& kernel = *KernelOf(known.kernel.get());
  const auto& params = kernel.binder().info().params;
  Arg args[kMostParams];
  Ref results(known.outputs.size() == 1 ? nullptr : PyTuple_New(Py_ssize_t(known.outputs.size())));
  size_t input = 0, output = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].output) {
      const Known::Input& from = known.inputs[input++];
      args[i] = Arg::Of(TensorOf(given.tensors[from.tensor], from.dtype, from.shape));
      continue;
    }
    Ref made = Allocate(body, known.outputs[output], *given.exchange, args[i]);
    if (!made) return NotKnown();
    if (known.outputs.size() == 1) results = std::move(made);
    else if (!results || PyTuple_SetItem(results.get(), Py_ssize_t(output), made.release()) < 0) return nullptr;
    ++output;
  }
  return LaunchKnown(kernel, {args, params.size()}, *given.exchange, given.tensors[0].device, std::move(results));
}

PyObject* Launched(PyObject* self, PyObject* arguments, bool look) {
  const CallsObject::Body& body = BodyOf(self);
  if (body.known.empty()) return NotKnown();
  Given given;
  if (!Read(body, arguments, given)) return NotKnown();
  const auto found = body.known.find(given.words());
  if (found == body.known.end()) return NotKnown();
  const std::shared_ptr<const Known> known = found->second;
  if (look && !(NothingWatches(body) && TensorsArePlain(body, arguments))) return NotKnown();
  return Make(body, *known, given);
}

PyObject* LaunchedMethod(PyObject* self, PyObject* arguments) { return Launched(self, arguments, false); }
PyObject* CalledMethod(PyObject* self, PyObject* arguments) { return Launched(self, arguments, true); }

// --- knowing

bool ReadShape(PyObject* tuple, std::vector<int64_t>& shape) {
  const Py_ssize_t rank = PyTuple_Size(tuple);
  for (Py_ssize_t i = 0; i < rank; ++i) shape.push_back(PyLong_AsLongLong(PyTuple_GetItem(tuple, i)));
  return rank >= 0 && !PyErr_Occurred();
}

bool ReadInputs(PyObject* inputs, const Given& given, size_t arguments, Known& known) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(inputs); ++i) {
    Py_ssize_t index = 0;
    PyObject* shape = nullptr;
    if (!PyArg_ParseTuple(PyTuple_GetItem(inputs, i), "nO!", &index, &PyTuple_Type, &shape)) return false;
    const size_t tensor = size_t(index) < arguments ? given.tensor_of[index] : given.count;
    const DTypeInfo* dtype = nullptr;
    if (tensor < given.count) {
      const dlpack::DataType& type = given.tensors[tensor].dtype;
      dtype = FindDType(type.code, type.bits, type.lanes);
    }
    if (!dtype) {
      PyErr_SetString(PyExc_ValueError, "an input is no tensor of the call, or of an unknown type");
      return false;
    }
    known.inputs.push_back({tensor, dtype->dtype, {}});
    if (!ReadShape(shape, known.inputs.back().shape)) return false;
  }
  return true;
}

bool ReadOutputs(PyObject* outputs, Known& known) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(outputs); ++i) {
    PyObject *size = nullptr, *keywords = nullptr, *shape = nullptr;
    if (!PyArg_ParseTuple(PyTuple_GetItem(outputs, i), "O!O!O!", &PyTuple_Type, &size, &PyDict_Type, &keywords, &PyTuple_Type, &shape)) return false;
    Ref arguments(PyTuple_Pack(1, size));
    if (!arguments) return false;
    known.outputs.push_back({std::move(arguments), Ref::Borrow(keywords), {}});
    if (!ReadShape(shape, known.outputs.back().shape)) return false;
  }
  return true;
}

// Whether an input or an output is given for each parameter of the kernel, which are few, and tensors. Also false with an exception.
bool Fits(const Known& known) {
  const Kernel* kernel = KernelOf(known.kernel.get());
  if (!kernel) {
    PyErr_SetString(PyExc_TypeError, "keep takes a kernel of this module");
    return false;
  }
  const auto& params = kernel->binder().info().params;
  const bool tensors = std::all_of(params.begin(), params.end(), [](const LaunchParam& param) { return param.tensor; });
  const size_t outputs = kernel->binder().output_count();
  return tensors && outputs > 0 && known.outputs.size() == outputs && known.inputs.size() + outputs == params.size() && params.size() <= kMostParams;
}

PyObject* Keep(PyObject* self, PyObject* args) {
  CallsObject::Body& body = BodyOf(self);
  PyObject *arguments = nullptr, *kernel = nullptr, *inputs = nullptr, *outputs = nullptr;
  if (!PyArg_ParseTuple(args, "O!OO!O!:keep", &PyTuple_Type, &arguments, &kernel, &PyTuple_Type, &inputs, &PyTuple_Type, &outputs)) return nullptr;
  Given given;
  if (!Read(body, arguments, given) || !given.exchange->current_stream) {
    PyErr_Clear();
    return PyBool_FromLong(false);
  }
  auto known = std::make_shared<Known>();
  known->kernel = Ref::Borrow(kernel);
  if (!ReadInputs(inputs, given, size_t(PyTuple_Size(arguments)), *known) || !ReadOutputs(outputs, *known)) return nullptr;
  if (!Fits(*known)) return PyErr_Occurred() ? nullptr : PyBool_FromLong(false);
  if (body.known.size() >= kMostCalls) body.known.clear();
  body.known.insert_or_assign(given.Copy(), std::move(known));
  return PyBool_FromLong(true);
}

// --- making and forgetting

void ReadTypes(CallsObject::Body& body, PyObject* tensors, PyObject* constants) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(tensors); ++i) {
    PyObject* type = PyTuple_GetItem(tensors, i);
    if (const auto* exchange = ExchangeOf(type)) body.tensors.push_back({reinterpret_cast<PyTypeObject*>(body.Keep(type)), exchange});
  }
  for (Py_ssize_t i = 0; i < PyTuple_Size(constants); ++i)
    body.constants.push_back(reinterpret_cast<PyTypeObject*>(body.Keep(PyTuple_GetItem(constants, i))));
}

bool ReadWatches(CallsObject::Body& body, PyObject* watched) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(watched); ++i) {
    PyObject *function = nullptr, *method = nullptr, *usual = nullptr;
    if (!PyArg_ParseTuple(PyTuple_GetItem(watched, i), "OOO!", &function, &method, &PyTuple_Type, &usual)) return false;
    CallsObject::Body::Watch watch{body.Keep(function), method == Py_None ? nullptr : body.Keep(method), {}};
    for (Py_ssize_t j = 0; j < PyTuple_Size(usual); ++j) watch.usual.push_back(PyLong_AsUnsignedLongLongMask(PyTuple_GetItem(usual, j)));
    body.watched.push_back(std::move(watch));
  }
  return !PyErr_Occurred();
}

PyObject* New(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"tensors", "constants", "empty", "grad_enabled", "watched", nullptr};
  PyObject *tensors = nullptr, *constants = nullptr, *empty = nullptr, *grad_enabled = nullptr, *watched = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O!O!OOO!:Calls", const_cast<char**>(keywords), &PyTuple_Type, &tensors, &PyTuple_Type, &constants,
                                   &empty, &grad_enabled, &PyTuple_Type, &watched))
    return nullptr;
  auto body = std::make_unique<CallsObject::Body>();
  body->empty = body->Keep(empty);
  body->grad_enabled = body->Keep(grad_enabled);
  ReadTypes(*body, tensors, constants);
  if (!ReadWatches(*body, watched)) return nullptr;
  auto* object = PyObject_New(CallsObject, type);
  if (!object) return nullptr;
  object->body = body.release();
  return reinterpret_cast<PyObject*>(object);
}

void Dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<CallsObject*>(self)->body;
  PyObject_Free(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyMethodDef kMethods[] = {{"called", CalledMethod, METH_O, "called(arguments): what such a call gives, if it is known and nothing is in its way."},
                          {"launched", LaunchedMethod, METH_O, "launched(arguments): the same where nothing can be in its way."},
                          {"keep", Keep, METH_VARARGS, "keep(arguments, kernel, inputs, outputs): how such calls are made."},
                          {nullptr, nullptr, 0, nullptr}};
PyType_Slot kSlots[] = {{Py_tp_new, reinterpret_cast<void*>(New)},
                        {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
                        {Py_tp_methods, kMethods},
                        {Py_tp_doc, const_cast<char*>("Calls(*, tensors, constants, empty, grad_enabled, watched): calls of one function.")},
                        {0, nullptr}};
PyType_Spec kSpec = {"kiln._runtime.Calls", sizeof(CallsObject), 0, Py_TPFLAGS_DEFAULT, kSlots};

}  // namespace

bool AddCallsType(PyObject* module) {
  const Ref type(PyType_FromSpec(&kSpec));
  return type && PyModule_AddObjectRef(module, "Calls", type.get()) == 0;
}

}  // namespace kiln::runtime::py
