// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "clients/runtime/dtype.h"

namespace kiln::cli {

// Small values that every type holds: floats of magnitude below 2, integers from -4 to 4, any bits below a byte.
class RandomData {
 public:
  explicit RandomData(std::uint64_t seed) : engine_(seed) {}

  std::string Fill(const runtime::DTypeInfo& type, std::uint64_t elements);

 private:
  std::mt19937_64 engine_;
};

struct Summary {
  bool known = false;  // the type is one that this host can read
  double largest = 0;  // magnitude
  std::uint64_t not_finite = 0;
};
Summary Summarize(const runtime::DTypeInfo& type, std::string_view data);

}  // namespace kiln::cli
