// SPDX-License-Identifier: Apache-2.0
//
// What tests ask the fake driver, through dlsym (C++) or ctypes (Python). It has two devices; device memory is host memory.
// Kernels are read off the image's ".entry name(.param .u64 x, …)" lines. An entry whose name starts with "copy_words" does
// what that says: (source, destination, 32-bit words to copy). All others only leave a record.
#pragma once

#include <cstdint>

struct KilnFakeLaunch {
  char entry[128];
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  uint32_t cluster[3];  // 0: none was asked for
  uint32_t cooperative;
  uint64_t stream;
  uint32_t param_count;
  uint64_t params[64];  // as many low bytes as the parameter has, and no more than 8
};

// A tensor map as this driver encodes it, and so as kernels get it.
struct KilnFakeTensorMap {
  uint64_t address;
  uint64_t dims[5];
  uint64_t strides[4];
  uint16_t box[5];
  uint8_t element_strides[5];
  uint8_t type, rank, interleave, swizzle, promotion, fill;
  uint8_t reserved[27];
};
static_assert(sizeof(KilnFakeTensorMap) == 128);

extern "C" {
void kiln_fake_reset();
uint32_t kiln_fake_launch_count();
const KilnFakeLaunch* kiln_fake_launch(uint32_t index);
// What a launch got for a parameter of 128 bytes; null: for none.
const KilnFakeTensorMap* kiln_fake_launch_map(uint32_t index, uint32_t param);
uint32_t kiln_fake_maps_encoded();
// The next call of `symbol` returns `status`.
void kiln_fake_fail(const char* symbol, int status);
void kiln_fake_capability(int major, int minor);
// Captured: every stream is, and what is allocated on it must be freed in the same capture. Elsewhere: none that is asked about, but one of
// another thread, in the global mode.
enum KilnFakeCapture : int { KILN_FAKE_NO_CAPTURE, KILN_FAKE_CAPTURED, KILN_FAKE_CAPTURED_ELSEWHERE };
void kiln_fake_capture(int capture);
int64_t kiln_fake_captured_allocations();  // ever
int64_t kiln_fake_captured_fills();
int64_t kiln_fake_live_allocations();
int64_t kiln_fake_live_modules();
// What a function was last given by cuFuncSetAttribute; -1: nothing.
int kiln_fake_function_attribute(const char* entry, int attribute);
}
