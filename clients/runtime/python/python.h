// SPDX-License-Identifier: Apache-2.0
//
// What the extension's files share: owned references, errors, and the process's drivers and devices. Python calls in with the GIL
// held, which is what protects State.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <map>
#include <memory>
#include <utility>

#include "clients/runtime/kernel.h"

namespace kiln::runtime::py {

// An owned reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  static Ref Borrow(PyObject* object) {
    Py_XINCREF(object);
    return Ref(object);
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// Lets other threads run Python while it lives.
class WithoutGil {
 public:
  WithoutGil() : saved_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(saved_); }
  WithoutGil(const WithoutGil&) = delete;

 private:
  PyThreadState* saved_;
};

// Sets the Python exception for `error`; returns null for the caller to return.
PyObject* Raise(const Error& error);

// An attribute, or nothing, with no exception set, where there is none.
Ref Attribute(PyObject* object, const char* name);
// Nothing with an exception set where `object` is no str.
std::optional<std::string> Text(PyObject* object);

struct State {
  PyObject* driver_error = nullptr;
  PyObject* argument_error = nullptr;
  PyObject* alignment_error = nullptr;
  PyTypeObject* kernel_type = nullptr;
  PyTypeObject* array_type = nullptr;
  PyTypeObject* event_type = nullptr;
  std::shared_ptr<const Driver> drivers[2];
  std::string library[2];  // use_driver
  std::map<std::pair<DriverKind, int>, std::shared_ptr<Device>> devices;
};
State& GetState();

Result<std::shared_ptr<const Driver>> OpenDriver(DriverKind kind);
Result<std::shared_ptr<Device>> OpenDevice(DriverKind kind, int index);
// "cuda", "hip", or None for whichever has a device. Absent with an exception set where it is neither.
std::optional<DriverKind> KindOf(PyObject* name);

// The two together, as most calls take them.
std::shared_ptr<Device> DeviceOf(PyObject* kind, int index);  // null with an exception set

// Each adds its type to the module; false with an exception set.
bool AddKernelType(PyObject* module);
bool AddCallsType(PyObject* module);
bool AddLauncherType(PyObject* module);
bool AddLaunchesType(PyObject* module);
bool AddArrayType(PyObject* module);
bool AddEventType(PyObject* module);
Kernel* KernelOf(PyObject* object);  // null where it is none
PyObject* LoadKernel(PyObject* module, PyObject* args, PyObject* kwargs);

// Device memory with a shape, the type `Array`.
struct ArrayObject {
  PyObject ob_base;
  struct Body {
    DeviceBuffer buffer;
    std::shared_ptr<Device> device;
    std::vector<int64_t> shape;
    const DTypeInfo* dtype;
  }* body;
};
PyObject* NewArray(std::shared_ptr<Device> device, std::span<const int64_t> shape, const DTypeInfo& dtype);
PyObject* ShapeTuple(std::span<const int64_t> shape);

}  // namespace kiln::runtime::py
