// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "tests/bench/figures.h"

namespace kiln::bench {

// The bytes of the first *.kiln whose name contains `word`; nothing where there is none.
std::optional<std::string> FindProgram(const Setup& setup, const std::string& word);

// A program of its own for each number, as large as the GEMM.
class Variants {
 public:
  explicit Variants(const Setup& setup);
  std::string operator()(unsigned number) const;

 private:
  std::string before_, after_;  // the number
};

// The program with each gemm, copy and reduce of its loops `times` times over; nothing when it cannot be read.
std::optional<std::string> Multiply(const std::string& program, unsigned times);

}  // namespace kiln::bench
