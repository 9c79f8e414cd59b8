// SPDX-License-Identifier: Apache-2.0
//
// What the compiler decided, read from an artifact.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <vector>

#include "clients/cpp/client.h"

namespace kiln {

struct Report {
  struct Decision {
    std::string pass;
    std::string subject;   // the statement, buffer or kernel
    std::string decision;  // "mma.m16n8k16.f16, 2×2 warps"
    std::string reason;
    std::uint32_t line = 0;  // 0: of no statement
  };
  struct SharedSlot {
    std::string buffer;
    std::uint32_t offset = 0, bytes = 0, versions = 0;
    std::string layout;
    std::uint32_t bank_conflicts = 1;  // lanes that meet in one bank where a warp reads a row
  };
  struct Resources {
    std::string entry;
    std::uint32_t shared_bytes = 0;
    // Per thread, as ptxas says if there is one, or as the code object of an AMD target says. scalar_registers: AMD's SGPRs.
    std::optional<std::uint32_t> registers, spill_bytes, local_bytes, scalar_registers;
  };
  std::vector<Decision> decisions;
  std::vector<SharedSlot> shared_memory;
  std::vector<Resources> kernels;
};

std::expected<Report, Error> ReadReport(const Compiled& compiled);

}  // namespace kiln
