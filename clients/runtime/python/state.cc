// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "clients/runtime/python/python.h"

namespace kiln::runtime::py {

State& GetState() {
  static State* state = new State;  // never destroyed: kernels may outlive the module at interpreter shutdown
  return *state;
}

namespace {

PyObject* RaiseAlignment(const Error& error) {
  PyObject* type = GetState().alignment_error;
  Ref instance(PyObject_CallFunction(type, "s", error.message.c_str())), alignment(PyLong_FromUnsignedLong(error.alignment));
  if (!instance || !alignment || PyObject_SetAttrString(instance.get(), "alignment", alignment.get()) < 0) return nullptr;
  PyErr_SetObject(type, instance.get());
  return nullptr;
}

}  // namespace

PyObject* Raise(const Error& error) {
  if (error.alignment != 0) return RaiseAlignment(error);
  if (error.kind != Error::Kind::kDriver) {
    PyErr_SetString(GetState().argument_error, error.message.c_str());
    return nullptr;
  }
  PyObject* type = GetState().driver_error;
  Ref instance(PyObject_CallFunction(type, "s", error.message.c_str()));
  Ref name(PyUnicode_FromString(error.name.c_str())), operation(PyUnicode_FromString(error.operation.c_str()));
  if (!instance || !name || !operation) return nullptr;
  if (PyObject_SetAttrString(instance.get(), "name", name.get()) < 0) return nullptr;
  if (PyObject_SetAttrString(instance.get(), "operation", operation.get()) < 0) return nullptr;
  PyErr_SetObject(type, instance.get());
  return nullptr;
}

Ref Attribute(PyObject* object, const char* name) {
  Ref value(PyObject_GetAttrString(object, name));
  if (!value) PyErr_Clear();
  return value;
}

std::optional<std::string> Text(PyObject* object) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &size);
  if (!text) return std::nullopt;
  return std::string(text, size_t(size));
}

Result<std::shared_ptr<const Driver>> OpenDriver(DriverKind kind) {
  State& state = GetState();
  auto& driver = state.drivers[size_t(kind)];
  if (driver) return driver;
  auto opened = Driver::Open(kind, Loader::System(), state.library[size_t(kind)]);
  if (!opened) return opened;
  driver = *opened;
  return driver;
}

Result<std::shared_ptr<Device>> OpenDevice(DriverKind kind, int index) {
  auto& devices = GetState().devices;
  if (const auto found = devices.find({kind, index}); found != devices.end()) return found->second;
  auto driver = OpenDriver(kind);
  if (!driver) return std::unexpected(driver.error());
  auto device = Device::Open(*driver, index);
  if (!device) return device;
  devices[{kind, index}] = *device;
  return device;
}

std::optional<DriverKind> KindOf(PyObject* name) {
  if (!name || name == Py_None) {
    auto cuda = OpenDriver(DriverKind::kCuda);
    int count = 0;
    if (cuda && (*cuda)->device_count(&count) == 0 && count > 0) return DriverKind::kCuda;
    auto hip = OpenDriver(DriverKind::kHip);
    return hip ? DriverKind::kHip : DriverKind::kCuda;  // where neither is there, CUDA's message is the one to show
  }
  const auto text = Text(name);
  if (!text) return std::nullopt;
  for (DriverKind kind : {DriverKind::kCuda, DriverKind::kHip})
    if (*text == Name(kind)) return kind;
  PyErr_Format(PyExc_ValueError, "kind is expected to be 'cuda' or 'hip', but got '%s'", text->c_str());
  return std::nullopt;
}

std::shared_ptr<Device> DeviceOf(PyObject* kind_name, int index) {
  const auto kind = KindOf(kind_name);
  if (!kind) return nullptr;
  auto device = OpenDevice(*kind, index);
  if (device) return *device;
  Raise(device.error());
  return nullptr;
}

PyObject* ShapeTuple(std::span<const int64_t> shape) {
  Ref tuple(PyTuple_New(Py_ssize_t(shape.size())));
  if (!tuple) return nullptr;
  for (size_t i = 0; i < shape.size(); ++i) {
    PyObject* extent = PyLong_FromLongLong(shape[i]);
    if (!extent || PyTuple_SetItem(tuple.get(), Py_ssize_t(i), extent) < 0) return nullptr;
  }
  return tuple.release();
}

}  // namespace kiln::runtime::py
