// SPDX-License-Identifier: Apache-2.0
//
// The parts of DLPack 1.3's C interface that are read here (DLPack specification, "C API" and "Python Specification").
#pragma once

#include <cstdint>

namespace kiln::runtime::dlpack {

struct Device {
  int32_t type;
  int32_t index;
};
struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: row-major contiguous
  uint64_t byte_offset;
};
struct Version {
  uint32_t major;
  uint32_t minor;
};
// In a capsule named "dltensor".
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};
// In a capsule named "dltensor_versioned".
struct VersionedTensor {
  Version version;
  void* context;
  void (*deleter)(VersionedTensor*);
  uint64_t flags;
  Tensor tensor;
};
inline constexpr uint64_t kReadOnly = 1;

// In a capsule named "dlpack_exchange_api", the attribute __dlpack_c_exchange_api__ of a tensor's type.
struct ExchangeHeader {
  Version version;
  const ExchangeHeader* previous;  // an older version's table
};
struct ExchangeApi {
  ExchangeHeader header;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*view_of_object)(void* object, Tensor* out);  // may be null; the view lives as long as the object is unchanged
  int (*current_stream)(int32_t device_type, int32_t device_index, void** out);
};

}  // namespace kiln::runtime::dlpack
