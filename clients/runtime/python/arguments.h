// SPDX-License-Identifier: Apache-2.0
//
// Python objects read as kernel arguments.
#pragma once

#include <list>

#include "clients/runtime/python/dlpack.h"
#include "clients/runtime/python/python.h"

namespace kiln::runtime::py {

// DLPack's C exchange table of a type of tensors, in a version that is read here; null where it has none.
const dlpack::ExchangeApi* ExchangeOf(PyObject* type);

// How a tensor type's objects are read.
enum class Source : uint8_t {
  kExchange,       // DLPack's C exchange table
  kTorch,          // a torch without that table: data_ptr(), shape, stride(), dtype
  kArray,          // ours
  kCudaInterface,  // __cuda_array_interface__
  kHost,           // __array_interface__: numpy
  kDlpack,         // __dlpack__
  kCapsule,
  kUnknown,
};

// The arguments of one call, and what keeps them alive.
class Arguments {
 public:
  explicit Arguments(const Kernel& kernel) : kernel_(kernel) {}

  // One object for each parameter, where `inputs_only` for each that is not an output. False with an exception set.
  bool Read(PyObject* args, bool inputs_only);
  // Fills the place of an output parameter that Read left out.
  bool ReadOutput(size_t param, PyObject* object) { return ReadTensor(param, object); }

  std::span<const Arg> args() const { return {args_, count_}; }
  // torch's current stream where a torch tensor is among the arguments; else the default stream. False with an exception set.
  bool CurrentStream(void** stream) const;
  PyObject* first_tensor() const { return first_tensor_; }  // borrowed; null: there is none
  Source first_source() const { return first_source_; }

  // numpy arguments: to the device before the launch, and back, waiting, after it.
  bool has_host() const { return !host_.empty(); }
  Result<void> CopyIn(void* stream);
  Result<void> CopyOut(void* stream);

 private:
  struct Extents {
    int64_t shape[Binder::kMaxRank];
    int64_t strides[Binder::kMaxRank];
  };
  struct HostCopy {
    size_t param;
    char* low;  // lowest address of the array's span
    uint64_t bytes;
    bool back;
    DeviceBuffer buffer;
    size_t copied = 0;  // which of the copies holds it
  };
  static constexpr size_t kInline = 16;

  bool ReadOne(size_t param, PyObject* object);
  bool ReadScalar(size_t param, PyObject* object);
  bool ReadTensor(size_t param, PyObject* object);
  bool ReadAddress(size_t param, PyObject* address);
  bool TakeAddress(size_t param, uint64_t data);
  bool IsHere(const dlpack::Device& device) const;  // whether it is the kernel's
  bool ReadView(size_t param, const dlpack::Tensor& view, bool read_only);
  bool ReadExchange(size_t param, PyObject* object, const dlpack::ExchangeApi& api);
  bool ReadTorch(size_t param, PyObject* object);
  bool ReadArray(size_t param, PyObject* object);
  bool ReadInterface(size_t param, PyObject* object, bool host);
  bool ReadDlpack(size_t param, PyObject* object);
  bool ReadCapsule(size_t param, PyObject* capsule);
  bool ReadExtents(size_t param, PyObject* shape, PyObject* strides, int64_t unit, Tensor& tensor);
  const DTypeInfo* ArrayDType(size_t param, PyObject* object, PyObject* type_string, bool host);
  bool AddHostCopy(size_t param, const Tensor& tensor, const DTypeInfo& dtype);
  void JoinHostCopies();
  bool Mismatch(size_t param, const std::string& what) const;  // sets ValueError, returns false
  const LaunchParam& Proto(size_t param) const { return kernel_.binder().info().params[param]; }

  const Kernel& kernel_;
  size_t count_ = 0;
  Arg inline_args_[kInline];
  std::vector<Arg> more_args_;
  Arg* args_ = inline_args_;
  PyObject* first_tensor_ = nullptr;
  Source first_source_ = Source::kUnknown;
  const dlpack::ExchangeApi* exchange_ = nullptr;
  std::list<Extents> extents_;
  std::vector<Ref> keep_;
  std::vector<HostCopy> host_;
};

}  // namespace kiln::runtime::py
