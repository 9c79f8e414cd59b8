// SPDX-License-Identifier: Apache-2.0
//
// Arguments that describe themselves through Python attributes: __array_interface__ and __cuda_array_interface__ (numpy's "Array
// Interface Protocol", Numba's "CUDA Array Interface" version 3) and torch's own.
#include <fmt/format.h>

#include <algorithm>

#include "clients/runtime/python/arguments.h"

namespace kiln::runtime::py {
namespace {

Ref Item(PyObject* dict, const char* key) { return Ref::Borrow(PyDict_GetItemString(dict, key)); }

bool TupleToInts(PyObject* object, int64_t* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    Ref item(PySequence_GetItem(object, Py_ssize_t(i)));
    if (!item) return false;
    out[i] = PyLong_AsLongLong(item.get());
    if (out[i] == -1 && PyErr_Occurred()) return false;
  }
  return true;
}

// The name that torch and ml_dtypes give a type: "torch.float16" → "float16".
const DTypeInfo* NamedDType(PyObject* dtype) {
  Ref name = Attribute(dtype, "name");
  if (!name || !PyUnicode_Check(name.get())) name = Ref(PyObject_Str(dtype));
  if (!name) return nullptr;
  const auto text = Text(name.get());
  return text ? FindDType(std::string_view(*text).substr(text->rfind('.') + 1)) : nullptr;
}

}  // namespace

// `strides` in units of `unit` bytes per element (1: they count elements already), or None.
bool Arguments::ReadExtents(size_t param, PyObject* shape, PyObject* strides, int64_t unit, Tensor& tensor) {
  const Py_ssize_t rank = PySequence_Size(shape);
  if (rank < 0) return false;
  if (rank > Binder::kMaxRank) return Mismatch(param, fmt::format("a tensor of {} dimensions", rank));
  Extents& extents = extents_.emplace_back();
  if (!TupleToInts(shape, extents.shape, size_t(rank))) return false;
  tensor.shape = {extents.shape, size_t(rank)};
  if (!strides || strides == Py_None) return true;
  if (PySequence_Size(strides) != rank) return Mismatch(param, "as many strides as dimensions are expected");
  if (!TupleToInts(strides, extents.strides, size_t(rank))) return false;
  for (Py_ssize_t d = 0; d < rank; ++d) {
    if (extents.strides[d] % unit != 0) return Mismatch(param, fmt::format("stride {} is no multiple of the element size", d));
    extents.strides[d] /= unit;
  }
  tensor.strides = extents.strides;
  return true;
}

const DTypeInfo* Arguments::ArrayDType(size_t param, PyObject* object, PyObject* type_string, bool host) {
  const DType wanted = Proto(param).dtype;
  const auto text = type_string ? Text(type_string) : std::nullopt;
  if (!text) return nullptr;
  const DTypeInfo* expected = Find(wanted);
  // numpy lacks bfloat16 and the float8 types: unsigned integers of their width hold their bits.
  if (host && expected->bits >= 8 && expected->array == *text) return expected;
  if (const DTypeInfo* found = FindDTypeOfArray(*text)) return found;
  // ml_dtypes' types are numpy's "void" with a name. Any other type here is a plain one in foreign byte order, or none of ours.
  Ref dtype = text->size() > 1 && (*text)[1] == 'V' ? Attribute(object, "dtype") : Ref();
  const DTypeInfo* named = dtype ? NamedDType(dtype.get()) : nullptr;
  if (named && named->bits >= 8) return named;
  Mismatch(param, fmt::format("dtype is expected to be {}, but got an array of type '{}' (native byte order and plain numbers are "
                              "needed)",
                              expected->name, *text));
  return nullptr;
}

bool Arguments::ReadInterface(size_t param, PyObject* object, bool host) {
  Ref interface(PyObject_GetAttrString(object, host ? "__array_interface__" : "__cuda_array_interface__"));
  if (!interface) return false;
  if (!PyDict_Check(interface.get())) return Mismatch(param, "the array interface is no dict");
  Ref data = Item(interface.get(), "data"), shape = Item(interface.get(), "shape"), strides = Item(interface.get(), "strides");
  if (!data || !shape || !PyTuple_Check(data.get()) || PyTuple_Size(data.get()) != 2)
    return Mismatch(param, "the array interface has no data or shape");
  const DTypeInfo* dtype = ArrayDType(param, object, Item(interface.get(), "typestr").get(), host);
  if (!dtype) {
    if (!PyErr_Occurred()) Mismatch(param, "the array interface has no type");
    return false;
  }
  const DeviceInfo& device = kernel_.device().info();
  Tensor tensor{.data = uint64_t(PyLong_AsUnsignedLongLong(PyTuple_GetItem(data.get(), 0))),
                .dtype = dtype->dtype,
                .place = device.kind == DriverKind::kCuda ? Place::kCuda : Place::kHip,
                .device = device.index,  // the protocol does not say; the driver reports another device's memory
                .shape = {},
                .strides = nullptr};
  if (PyErr_Occurred()) return false;
  if (Proto(param).written && PyObject_IsTrue(PyTuple_GetItem(data.get(), 1)) == 1)
    return Mismatch(param, "the kernel writes this tensor, but it is read-only");
  const int64_t bytes = std::max(dtype->bits / 8, 1);
  if (!ReadExtents(param, shape.get(), strides.get(), bytes, tensor)) return false;
  if (host && !AddHostCopy(param, tensor, *dtype)) return false;
  args_[param] = Arg::Of(tensor);
  return true;
}

// The span from the array's lowest to its highest address travels as a whole, so that strides stay what they are.
bool Arguments::AddHostCopy(size_t param, const Tensor& tensor, const DTypeInfo& dtype) {
  const int64_t bytes = std::max(dtype.bits / 8, 1);
  const auto count = ElementCount(tensor.shape);
  if (!count) return Mismatch(param, "the array is too large");
  int64_t low = 0, high = 0;
  for (size_t d = 0; tensor.strides && *count && d < tensor.shape.size(); ++d) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(tensor.shape[d] - 1, tensor.strides[d], &reach)) return Mismatch(param, "the array is too large");
    (reach < 0 ? low : high) += reach;
  }
  if (!tensor.strides && *count) high = int64_t(*count) - 1;
  const uint64_t span = *count ? uint64_t(high - low + 1) * uint64_t(bytes) : 0;
  host_.push_back({.param = param,
                   .low = reinterpret_cast<char*>(tensor.data) + low * bytes,
                   .bytes = span,
                   .back = Proto(param).written || Proto(param).output,
                   .buffer = {}});
  return true;
}

bool Arguments::ReadTorch(size_t param, PyObject* object) {
  Ref pointer(PyObject_CallMethod(object, "data_ptr", nullptr));
  Ref shape(PyObject_GetAttrString(object, "shape"));
  Ref strides(PyObject_CallMethod(object, "stride", nullptr));
  Ref dtype(PyObject_GetAttrString(object, "dtype"));
  Ref on_device(PyObject_GetAttrString(object, "is_cuda"));
  if (!pointer || !shape || !strides || !dtype || !on_device) return false;
  const DTypeInfo* info = NamedDType(dtype.get());
  if (!info) return Mismatch(param, "its dtype is none that a kernel can take");
  Tensor tensor{.data = uint64_t(PyLong_AsUnsignedLongLong(pointer.get())), .dtype = info->dtype, .shape = {}};
  if (PyErr_Occurred()) return false;
  if (PyObject_IsTrue(on_device.get()) == 1) {
    tensor.place = kernel_.device().info().kind == DriverKind::kCuda ? Place::kCuda : Place::kHip;
    Ref index(PyObject_CallMethod(object, "get_device", nullptr));
    if (!index) return false;
    tensor.device = int(PyLong_AsLong(index.get()));
  } else {
    tensor.place = Place::kHost;
  }
  if (!ReadExtents(param, shape.get(), strides.get(), 1, tensor)) return false;
  args_[param] = Arg::Of(tensor);
  return !PyErr_Occurred();
}

}  // namespace kiln::runtime::py
