// SPDX-License-Identifier: Apache-2.0
//
// Kernels on a device of the daemon's host, the emulator above all:
//
//   std::vector<float> x(m * 64), y(m * 64);
//   auto ran = client->Run({.program = {.module = text}, .device = "emu:sm_90a",
//                           .arguments = {kiln::HostTensor::Of(x, kiln::DType::kF32, {m, 64}), …}, .check = true});
//   for (const kiln::RunFault& fault : ran->faults) std::cerr << Describe(fault);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "clients/cpp/client.h"
#include "clients/cpp/expr.h"

namespace kiln {

// A tensor in this process's memory. What the kernel writes is there after the run. Tensors may overlap where the kernel writes neither of
// them, or where the program lets both (Builder::MayAlias, T.annotate_restrict_buffers).
struct HostTensor {
  std::span<std::byte> bytes;  // all of its elements lie in here …
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements; empty: row-major
  std::uint64_t offset = 0;           // … the first one so many bytes in

  template <class Container>
  static HostTensor Of(Container& elements, DType dtype, std::vector<std::int64_t> shape) {
    return {.bytes = std::as_writable_bytes(std::span(elements)), .dtype = dtype, .shape = std::move(shape), .strides = {}};
  }
};
using HostArgument = std::variant<HostTensor, std::int64_t, double>;

struct RunRequest {
  CompileRequest program;               // its target may be empty
  std::string key;                      // in its place: what is known under this key
  std::string device;                   // "emu:sm_90a", "cuda:0"
  std::vector<HostArgument> arguments;  // one for each parameter, or for each that is no output
  bool check = false;                   // emulator: look for races, accesses out of bounds, missing waits …
  std::uint64_t seed = 0;               // emulator: of the order of threads; even: asynchronous copies land late, odd: at once
  double timeout_seconds = 0;           // of the run itself; 0: what the daemon allows. The call may take that and two minutes for the tensors
  std::uint32_t repeat = 0;             // launches that are timed
};

struct RunStatement {
  std::uint32_t number = 0;  // 0: none
  std::string text;
  std::string file;
  std::uint32_t line = 0;  // 0: unknown
};

struct RunFault {
  std::string kind;  // "race", "out of bounds", "driver error", "timeout" …
  std::string name;  // the driver's
  std::string message;
  RunStatement statement, other;     // the other access of a race
  std::vector<std::uint32_t> block;  // empty: unknown
  std::uint32_t thread = 0;
  std::string buffer;         // that the access is about; empty: unknown or none
  std::uint64_t address = 0;  // bytes of the block's shared memory or from the first byte of the tensor; a fragment's register
  std::uint64_t element = 0;  // of the buffer, in its layout; of a tensor, counted from its first byte
};
// What happened, who did it, and the statements that had to do with it, a line each.
std::string Describe(const RunFault& fault);

struct RunOutput {
  std::uint32_t param = 0;
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

struct RunResult {
  std::string key;
  std::string target;
  std::string device;  // "NVIDIA H200", "emulator"
  bool finished = false;
  std::vector<RunFault> faults;
  std::vector<RunOutput> outputs;  // what the kernel wrote, given or not
  std::vector<double> microseconds;
  Origin origin = Origin::kUnknown;
  std::vector<Timing> timings;
};

}  // namespace kiln
