// SPDX-License-Identifier: Apache-2.0
//
// The type Array; runtime_module.cc says what they do.
#include <fmt/format.h>

#include <algorithm>

#include "clients/runtime/python/python.h"

namespace kiln::runtime::py {
namespace {

ArrayObject::Body& BodyOf(PyObject* self) { return *reinterpret_cast<ArrayObject*>(self)->body; }

void Dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  {
    ArrayObject::Body* body = reinterpret_cast<ArrayObject*>(self)->body;
    WithoutGil released;  // freeing waits for the device
    delete body;
  }
  PyObject_Free(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyObject* New(PyTypeObject*, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"shape", "dtype", "device", "kind", nullptr};
  PyObject *shape = nullptr, *kind = nullptr;
  const char* dtype_name = nullptr;
  int index = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Os|i$O:Array", const_cast<char**>(keywords), &shape, &dtype_name, &index, &kind)) return nullptr;
  const DTypeInfo* dtype = FindDType(dtype_name);
  if (!dtype) return PyErr_Format(PyExc_ValueError, "'%s' is no dtype; try 'float16' or 'int8'", dtype_name);
  std::vector<int64_t> extents;
  Ref sequence(PyLong_Check(shape) ? PyTuple_Pack(1, shape) : PySequence_Tuple(shape));
  for (Py_ssize_t i = 0; sequence && i < PyTuple_Size(sequence.get()); ++i) {
    extents.push_back(PyLong_AsLongLong(PyTuple_GetItem(sequence.get(), i)));
    if (PyErr_Occurred()) return nullptr;
  }
  if (!sequence) return nullptr;
  auto device = DeviceOf(kind, index);
  return device ? NewArray(std::move(device), extents, *dtype) : nullptr;
}

enum class Direction { kFrom, kTo };

PyObject* CopyBuffer(PyObject* self, PyObject* object, Direction direction) {
  ArrayObject::Body& body = BodyOf(self);
  Py_buffer view;
  const int flags = direction == Direction::kTo ? PyBUF_WRITABLE : PyBUF_SIMPLE;
  if (PyObject_GetBuffer(object, &view, PyBUF_C_CONTIGUOUS | flags) < 0) return nullptr;
  Result<void> copied;
  if (uint64_t(view.len) != body.buffer.bytes()) {
    copied = ArgumentError(fmt::format("an Array of {} bytes and a buffer of {} cannot be copied", body.buffer.bytes(), view.len));
  } else {
    WithoutGil released;
    copied = direction == Direction::kFrom ? body.buffer.CopyFrom(view.buf, body.buffer.bytes()) : body.buffer.CopyTo(view.buf, body.buffer.bytes());
    if (copied) copied = SynchronizeStream(*body.device, nullptr);
  }
  PyBuffer_Release(&view);
  if (!copied) return Raise(copied.error());
  PyObject* result = direction == Direction::kFrom ? self : object;
  Py_INCREF(result);
  return result;
}

PyObject* CopyFrom(PyObject* self, PyObject* buffer) { return CopyBuffer(self, buffer, Direction::kFrom); }
PyObject* CopyTo(PyObject* self, PyObject* buffer) { return CopyBuffer(self, buffer, Direction::kTo); }

PyObject* ToNumpy(PyObject* self, PyObject*) {
  const ArrayObject::Body& body = BodyOf(self);
  std::vector<int64_t> shape = body.shape;
  if (body.dtype->bits < 8 && !shape.empty()) shape.back() = (shape.back() + 1) / 2;
  Ref numpy(PyImport_ImportModule("numpy")), extents(ShapeTuple(shape));
  if (!numpy || !extents) return nullptr;
  const std::string type(body.dtype->array);
  Ref array(PyObject_CallMethod(numpy.get(), "empty", "Os", extents.get(), type.c_str()));
  return array ? CopyTo(self, array.get()) : nullptr;
}

PyObject* Fill(PyObject* self, PyObject* value) {
  const long byte = PyLong_AsLong(value);
  if (byte == -1 && PyErr_Occurred()) return nullptr;
  if (byte < 0 || byte > 255) return PyErr_Format(PyExc_ValueError, "a byte is expected, but got %ld", byte);
  if (auto ok = BodyOf(self).buffer.Fill(uint8_t(byte)); !ok) return Raise(ok.error());
  Py_INCREF(self);
  return self;
}

PyObject* DataPtr(PyObject* self, PyObject*) { return PyLong_FromUnsignedLongLong(BodyOf(self).buffer.address()); }
PyObject* GetShape(PyObject* self, void*) { return ShapeTuple(BodyOf(self).shape); }
PyObject* GetDType(PyObject* self, void*) { return PyUnicode_FromString(std::string(BodyOf(self).dtype->name).c_str()); }
PyObject* GetBytes(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(BodyOf(self).buffer.bytes()); }
PyObject* GetDevice(PyObject* self, void*) { return PyLong_FromLong(BodyOf(self).device->info().index); }
PyObject* GetInterface(PyObject* self, void*) {
  const ArrayObject::Body& body = BodyOf(self);
  if (body.dtype->bits < 8) return PyErr_Format(PyExc_AttributeError, "packed types have no __cuda_array_interface__");
  Ref shape(ShapeTuple(body.shape));
  return shape ? Py_BuildValue("{s:O,s:s,s:(KO),s:O,s:i}", "shape", shape.get(), "typestr", std::string(body.dtype->array).c_str(), "data",
                               static_cast<unsigned long long>(body.buffer.address()), Py_False, "strides", Py_None, "version", 3)
               : nullptr;
}

PyMethodDef kMethods[] = {{"data_ptr", DataPtr, METH_NOARGS, "Address on the device."},
                          {"copy_from", CopyFrom, METH_O, "Copies a host buffer in; waits; returns the Array."},
                          {"copy_to", CopyTo, METH_O, "Copies into a host buffer; waits; returns the buffer."},
                          {"numpy", ToNumpy, METH_NOARGS, "A new numpy array of its contents."},
                          {"fill", Fill, METH_O, "Sets every byte; returns the Array."},
                          {nullptr, nullptr, 0, nullptr}};
PyGetSetDef kAttributes[] = {{"shape", GetShape, nullptr, nullptr, nullptr},
                             {"dtype", GetDType, nullptr, nullptr, nullptr},
                             {"nbytes", GetBytes, nullptr, nullptr, nullptr},
                             {"device", GetDevice, nullptr, nullptr, nullptr},
                             {"__cuda_array_interface__", GetInterface, nullptr, nullptr, nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot kSlots[] = {{Py_tp_new, reinterpret_cast<void*>(New)},
                        {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
                        {Py_tp_methods, kMethods},
                        {Py_tp_getset, kAttributes},
                        {Py_tp_doc, const_cast<char*>("Array(shape, dtype, device=0, *, kind=None): device memory, row-major.")},
                        {0, nullptr}};
PyType_Spec kSpec = {"kiln._runtime.Array", sizeof(ArrayObject), 0, Py_TPFLAGS_DEFAULT, kSlots};

}  // namespace

PyObject* NewArray(std::shared_ptr<Device> device, std::span<const int64_t> shape, const DTypeInfo& dtype) {
  const auto count = ElementCount(shape);
  if (!count || *count > uint64_t(1) << 48 || shape.size() > size_t(Binder::kMaxRank))
    return Raise(ArgumentError(fmt::format("an Array of shape ({}) cannot be made", fmt::join(shape, ", "))).error());
  auto buffer = DeviceBuffer::Allocate(device, Bytes(dtype, *count));
  if (!buffer) return Raise(buffer.error());
  auto* object = PyObject_New(ArrayObject, GetState().array_type);
  if (!object) return nullptr;
  object->body = new ArrayObject::Body{std::move(*buffer), std::move(device), {shape.begin(), shape.end()}, &dtype};
  return reinterpret_cast<PyObject*>(object);
}

bool AddArrayType(PyObject* module) {
  PyObject* type = PyType_FromSpec(&kSpec);
  if (!type) return false;
  GetState().array_type = reinterpret_cast<PyTypeObject*>(type);
  return PyModule_AddObjectRef(module, "Array", type) == 0;
}

}  // namespace kiln::runtime::py
