// SPDX-License-Identifier: Apache-2.0
//
// Which memory `kiln run` gives a kernel's tensors.
#pragma once

#include <cstdint>
#include <expected>
#include <vector>

#include "clients/cli/run_arguments.h"
#include "clients/runtime/dtype.h"

namespace kiln::cli {

struct PlannedTensor {
  const runtime::DTypeInfo* type = nullptr;  // null: the parameter is a scalar
  std::vector<std::int64_t> shape;
  std::uint64_t elements = 0, bytes = 0;
  std::size_t owner = 0;           // the parameter whose memory it lies in, most often itself
  std::uint64_t offset = 0;        // bytes from the beginning of that
  std::uint64_t memory_bytes = 0;  // that an owner needs for all that lie in its memory

  std::uint64_t memory_elements() const { return (memory_bytes * 8 + type->bits - 1) / type->bits; }
};

// One for each parameter: row-major tensors, each in memory of its own but for those that share another's (--share).
std::expected<std::vector<PlannedTensor>, Error> PlanTensors(const runtime::LaunchInfo& info, const Values& values);

}  // namespace kiln::cli
