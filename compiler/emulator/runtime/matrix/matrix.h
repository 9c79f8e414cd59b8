// SPDX-License-Identifier: Apache-2.0
//
// Matrix instructions of a whole warp: which lane and register holds which element, and the product. Written from the vendors'
// documents and nothing else: compiler/target describes the same instructions to the compiler, and the two must be able to
// disagree.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compiler/emulator/abi.h"

namespace kiln::emulator {

class MatrixUnits {
 public:
  // d = a · b + c. `words`: each lane's operand array (abi.h). Empty, or what is wrong with the operands.
  std::string Run(uint64_t form, std::span<uint32_t* const> words);

 private:
  // Where each element of an operand lies. Of a: row · K + k, with K of a sparse one half as much; of b: k · N + column; of c: row · N + column.
  struct Element {
    uint16_t lane, word;
    uint8_t shift;  // bits within the word
    uint16_t index;
  };
  struct Placement {
    MatrixForm form;
    uint32_t lanes;
    std::vector<Element> a, b, c;
    std::vector<Element> copies_a, copies_b;  // must hold the same again (RDNA3)
  };
  static std::unique_ptr<Placement> Place(const MatrixForm& form);
  template <int N>
  std::string MultiplyFloats(const Placement& placement, std::span<uint32_t* const> words);
  std::string MultiplyIntegers(const Placement& placement, std::span<uint32_t* const> words);

  std::map<uint64_t, std::unique_ptr<Placement>> placements_;
  const Placement* last_ = nullptr;  // of form last_form_
  uint64_t last_form_ = 0;
  std::vector<float> a_, b_, c_;
  std::vector<int32_t> ia_, ib_;
};

}  // namespace kiln::emulator
