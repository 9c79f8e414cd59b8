// SPDX-License-Identifier: Apache-2.0
//
// The arguments of a launch of Triton's, read as far as a launch like an earlier one needs them: what tells its kernel, and what that takes.
#pragma once

#include <array>
#include <vector>

#include "clients/runtime/python/dlpack.h"
#include "clients/runtime/python/python.h"
#include "clients/runtime/python/words.h"

namespace kiln::runtime::py {

constexpr size_t kMostParameters = 128;
constexpr size_t kMostParts = 192;
constexpr size_t kMostTensors = 48;

// What is said of a parameter. kRefused: a tensor that is given for it is looked at in Python.
enum Flag : uint8_t { kCompiledIn = 1, kByValue = 2, kByDivisor = 4, kTyped = 8, kRefused = 16 };

// The parameters of a function, and the types of the objects that launches give.
struct LaunchParameters {
  struct TensorType {
    PyTypeObject* type;
    const dlpack::ExchangeApi* exchange;
  };
  using Types = std::vector<PyTypeObject*>;

  std::vector<Ref> kept;
  std::vector<PyObject*> names, defaults;  // defaults: null where there is none
  std::vector<uint8_t> flags;
  std::vector<TensorType> tensors;
  Types constants;    // whose objects are told apart by identity
  Types descriptors;  // whose objects have a tensor, its sizes and strides

  PyObject* Keep(PyObject* object) {
    kept.push_back(Ref::Borrow(object));
    return object;
  }
};

// A tensor as a kernel sees it: all elements from its first to the end of its storage.
struct Memory {
  uint64_t address, end;
  int64_t count;
  DType dtype;
  int64_t width;  // bytes of an element
  dlpack::Device device;
};

// The arguments of one launch by parameter, borrowed, and what its kernel depends on. Their parts are what a kernel may take: tensors, numbers and
// None; those of tuples and descriptors stand in their order.
struct LaunchArguments : Key {
  std::array<PyObject*, kMostParameters> values{};
  std::array<PyObject*, kMostParts> parts{};
  std::array<uint8_t, kMostParts> tensor_of{};  // by part, of those that are tensors
  size_t part_count = 0;
  std::array<Memory, kMostTensors> tensors;
  size_t count = 0;
  const dlpack::ExchangeApi* exchange = nullptr;
  std::vector<Ref> held;  // parts that an argument may let go of
};

// False, perhaps with an exception set, where the launch must be looked at in Python.
bool ReadLaunch(const LaunchParameters& parameters, PyObject* args, PyObject* kwargs, PyObject* settings, LaunchArguments& given);

}  // namespace kiln::runtime::py
