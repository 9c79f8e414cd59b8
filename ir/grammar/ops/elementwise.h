// SPDX-License-Identifier: Apache-2.0
//
// Any op of the family elementwise, as ir/fields.h describes it: regions of one size, and values of their type.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

#include "ir/fields.h"
#include "ir/grammar/writer.h"

namespace kiln::ir::grammar {

class ElementwiseFields : public FieldVisitor {
 public:
  explicit ElementwiseFields(Writer& writer) : writer_(writer) {}

  void Region(ir::Region& region, std::string_view, Use) {
    if (!dtype_) {
      region = writer_.Part(writer_.SomeBuffer());
      dtype_ = writer_.module[region.buffer].dtype;
      std::ranges::copy_if(region.extents, std::back_inserter(extents_), [](int64_t extent) { return extent != 1; });
    } else {
      region = writer_.Fitting(extents_, {Space::kGlobal, Space::kShared, Space::kFragment});
    }
  }
  void Evaluates(ExprId& value, std::string_view) { value = writer_.Value(dtype_.value_or(DType::kF32), int(writer_.Below(2))); }
  // Such an op has no other parts; one with a kind or a number says here what these may be.
  void Is(auto&, Label) = delete;
  void Element(auto&, auto&, Use) = delete;
  void Whole(auto&, std::string_view, Use) = delete;

 private:
  Writer& writer_;
  std::optional<DType> dtype_;    // of the first region, which is the destination
  std::vector<int64_t> extents_;  // of it, but for those of 1
};

template <Elementwise T>
int Weight(const Writer& writer) {
  return writer.Together(5);
}
template <Elementwise T>
Op Write(Writer& writer) {
  T op{};
  Fields(op, ElementwiseFields(writer));
  return op;
}

}  // namespace kiln::ir::grammar
