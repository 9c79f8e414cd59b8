// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/python/launch_arguments.h"

#include <algorithm>
#include <bit>

#include "clients/runtime/python/arguments.h"

namespace kiln::runtime::py {
namespace {

constexpr int64_t kDivisor = 16;  // what is told of an integer, or of a tensor's elements, is whether this divides it

enum class Word : uint64_t { kNone, kTrue, kFalse, kOne, kInt, kFloat, kText, kConstant, kTuple, kDescriptor, kTensor, kOption };

using Types = LaunchParameters::Types;

bool IsOneOf(const Types& types, PyObject* object) { return std::find(types.begin(), types.end(), Py_TYPE(object)) != types.end(); }

// A value that is compiled in, or an option. `identities`: types whose objects are told apart by identity.
bool AddConstant(const Types& identities, PyObject* object, Key& key) {
  if (object == Py_None) return key.Add(uint64_t(Word::kNone));
  if (object == Py_True) return key.Add(uint64_t(Word::kTrue));
  if (object == Py_False) return key.Add(uint64_t(Word::kFalse));
  PyTypeObject* type = Py_TYPE(object);
  if (type == &PyLong_Type) {
    const long long value = PyLong_AsLongLong(object);
    return !(value == -1 && PyErr_Occurred()) && key.Add(Word::kInt, uint64_t(value));
  }
  if (type == &PyFloat_Type) return key.Add(Word::kFloat, std::bit_cast<uint64_t>(PyFloat_AsDouble(object)));
  if (type == &PyUnicode_Type) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(object, &size);
    return text && key.Add(uint64_t(Word::kText)) && key.AddText(text, size_t(size));
  }
  if (type == &PyTuple_Type) {
    const Py_ssize_t size = PyTuple_Size(object);
    if (!key.Add(Word::kTuple, uint64_t(size))) return false;
    for (Py_ssize_t i = 0; i < size; ++i)
      if (!AddConstant(identities, PyTuple_GetItem(object, i), key)) return false;
    return true;
  }
  return IsOneOf(identities, object) && key.Add(Word::kConstant, uint64_t(reinterpret_cast<uintptr_t>(object)));
}

// The first address of a tensor's storage, and the one behind its last.
bool ReadStorage(PyObject* object, uint64_t& begin, uint64_t& end) {
  static PyObject* const untyped_storage = PyUnicode_InternFromString("untyped_storage");
  static PyObject* const data_ptr = PyUnicode_InternFromString("data_ptr");
  static PyObject* const nbytes = PyUnicode_InternFromString("nbytes");
  const Ref storage(PyObject_CallMethodObjArgs(object, untyped_storage, nullptr));
  if (!storage) return false;
  const Ref address(PyObject_CallMethodObjArgs(storage.get(), data_ptr, nullptr)), size(PyObject_CallMethodObjArgs(storage.get(), nbytes, nullptr));
  if (!address || !size) return false;
  begin = PyLong_AsUnsignedLongLong(address.get());
  end = begin + PyLong_AsUnsignedLongLong(size.get());
  return !PyErr_Occurred();
}

bool AddTensor(PyObject* object, const dlpack::ExchangeApi& exchange, uint8_t flags, size_t part, LaunchArguments& given) {
  if (given.count == kMostTensors || (flags & kRefused)) return false;
  dlpack::Tensor view{};
  if (exchange.view_of_object(object, &view) != 0) return false;
  const Place place{uint8_t(view.device.type)};
  const DTypeInfo* dtype = FindDType(view.dtype.code, view.dtype.bits, view.dtype.lanes);
  uint64_t begin = 0, end = 0;
  if ((place != Place::kCuda && place != Place::kHip) || !dtype || view.dtype.bits % 8 != 0 || !ReadStorage(object, begin, end)) return false;
  const uint64_t address = reinterpret_cast<uint64_t>(view.data) + view.byte_offset;
  if (!view.data || address < begin || address > end) return false;
  const int64_t width = view.dtype.bits / 8, count = int64_t(end - address) / width;
  given.tensor_of[part] = uint8_t(given.count);
  given.tensors[given.count++] = {address, address + uint64_t(count * width), count, dtype->dtype, width, view.device};
  given.exchange = &exchange;
  const bool whole = (flags & kByValue) && (flags & kByDivisor) && count % kDivisor == 0;
  return given.Add(Word::kTensor, uint64_t(view.dtype.code) | uint64_t(view.dtype.bits) << 8 | uint64_t(view.dtype.lanes) << 16 |
                                      uint64_t(whole) << 32 | uint64_t(view.device.type) << 33 | uint64_t(view.device.index) << 48);
}

// An integer's class: Triton's, and of a parameter with a type of its own how many bits it needs.
bool AddInteger(long long value, uint8_t flags, LaunchArguments& given) {
  if (value == 1 && (flags & kByValue)) return given.Add(uint64_t(Word::kOne));
  const bool divides = (flags & kByValue) && (flags & kByDivisor) && value % kDivisor == 0;
  const int bits = std::bit_width(uint64_t(value < 0 ? ~value : value));
  const uint64_t size = flags & kTyped ? uint64_t(bits) << 1 | uint64_t(value < 0) : uint64_t(bits > 31);
  return given.Add(Word::kInt, uint64_t(divides) | size << 1);
}

// A part, or what has several. `flags`: those of the parameter.
bool AddValue(const LaunchParameters& parameters, PyObject* object, uint8_t flags, LaunchArguments& given);

// Each of a tuple or a list. Python may change a list while one of its tensors is asked for its storage.
template <typename Add>
bool AddEach(PyObject* sequence, LaunchArguments& given, Add&& add) {
  if (!PyTuple_Check(sequence) && !PyList_Check(sequence)) return false;
  const Ref items(PySequence_Tuple(sequence));
  if (!items || !given.Add(Word::kTuple, uint64_t(PyTuple_Size(items.get())))) return false;
  for (Py_ssize_t i = 0; i < PyTuple_Size(items.get()); ++i) {
    given.held.push_back(Ref::Borrow(PyTuple_GetItem(items.get(), i)));
    PyObject* item = given.held.back().get();
    if (!add(item)) return false;
  }
  return true;
}

// In a tuple a text is compiled in; numbers have no type of the annotation's.
bool AddTuple(const LaunchParameters& parameters, PyObject* tuple, uint8_t flags, LaunchArguments& given) {
  return AddEach(tuple, given, [&](PyObject* item) {
    return Py_TYPE(item) == &PyUnicode_Type ? AddConstant({}, item, given) : AddValue(parameters, item, flags & ~kTyped, given);
  });
}

// A tensor, its sizes and strides, and what is compiled in: the sizes of a block and what stands outside of the tensor.
bool AddDescriptor(const LaunchParameters& parameters, PyObject* object, uint8_t flags, LaunchArguments& given) {
  Ref base = Attribute(object, "base"), shape = Attribute(object, "shape"), strides = Attribute(object, "strides");
  const Ref block = Attribute(object, "block_shape"), padding = Attribute(object, "padding");
  if (!base || !shape || !strides || !block || !padding || !given.Add(uint64_t(Word::kDescriptor))) return false;
  given.held.push_back(std::move(base));
  PyObject* tensor = given.held.back().get();
  return AddValue(parameters, tensor, flags, given) && AddTuple(parameters, shape.get(), flags, given) &&
         AddTuple(parameters, strides.get(), flags, given) &&
         AddEach(block.get(), given, [&](PyObject* size) { return AddConstant({}, size, given); }) && AddConstant({}, padding.get(), given);
}

bool AddValue(const LaunchParameters& parameters, PyObject* object, uint8_t flags, LaunchArguments& given) {
  PyTypeObject* type = Py_TYPE(object);
  if (type == &PyTuple_Type) return AddTuple(parameters, object, flags, given);
  if (IsOneOf(parameters.descriptors, object)) return AddDescriptor(parameters, object, flags, given);
  if (given.part_count == kMostParts) return false;
  const size_t part = given.part_count++;
  given.parts[part] = object;
  if (object == Py_None) return given.Add(uint64_t(Word::kNone));
  for (const auto& tensor : parameters.tensors)
    if (tensor.type == type) return AddTensor(object, *tensor.exchange, flags, part, given);
  if (type == &PyBool_Type && !(flags & kTyped)) return given.Add(uint64_t(Word::kTrue));
  if (type == &PyFloat_Type) return given.Add(uint64_t(Word::kFloat));
  if (type != &PyLong_Type && type != &PyBool_Type) return false;
  const long long value = PyLong_AsLongLong(object);
  return !(value == -1 && PyErr_Occurred()) && AddInteger(value, flags, given);
}

bool AddArgument(const LaunchParameters& parameters, size_t parameter, LaunchArguments& given) {
  PyObject* object = given.values[parameter];
  const uint8_t flags = parameters.flags[parameter];
  return flags & kCompiledIn ? AddConstant(parameters.constants, object, given) : AddValue(parameters, object, flags, given);
}

// Which parameter a keyword names; kMostParameters: none.
size_t ParameterOf(const LaunchParameters& parameters, PyObject* name) {
  for (size_t i = 0; i < parameters.names.size(); ++i)
    if (parameters.names[i] == name) return i;
  for (size_t i = 0; i < parameters.names.size(); ++i)
    if (PyUnicode_Compare(parameters.names[i], name) == 0) return i;
  return kMostParameters;
}

}  // namespace

bool ReadLaunch(const LaunchParameters& parameters, PyObject* args, PyObject* kwargs, PyObject* settings, LaunchArguments& given) {
  const size_t count = size_t(PyTuple_Size(args)), wanted = parameters.names.size();
  if (count > wanted || !AddConstant(parameters.constants, settings, given)) return false;
  for (size_t i = 0; i < count; ++i) given.values[i] = PyTuple_GetItem(args, Py_ssize_t(i));
  Py_ssize_t at = 0;
  PyObject *name = nullptr, *value = nullptr;
  while (PyDict_Next(kwargs, &at, &name, &value)) {
    const size_t parameter = ParameterOf(parameters, name);
    if (parameter != kMostParameters) {
      if (given.values[parameter] != nullptr) return false;
      given.values[parameter] = value;
    } else if (!given.Add(uint64_t(Word::kOption)) || !AddConstant(parameters.constants, name, given) ||
               !AddConstant(parameters.constants, value, given)) {
      return false;
    }
  }
  for (size_t i = 0; i < wanted; ++i) {
    if (given.values[i] == nullptr) given.values[i] = parameters.defaults[i];
    if (given.values[i] == nullptr || !AddArgument(parameters, i, given)) return false;
  }
  return given.count > 0;
}

}  // namespace kiln::runtime::py
