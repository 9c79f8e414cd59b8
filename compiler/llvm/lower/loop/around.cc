// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/loop/around.h"

namespace kiln::llvm_ir {

Values WordsFrom(llvm::IRBuilderBase& b, Values words, Value* first) {
  const size_t count = words.size() / 2;
  // By whole words, half of the distance at a time.
  for (size_t step = count / 2; step > 0; step /= 2) {
    Value* far = b.CreateICmpNE(b.CreateAnd(first, uint64_t(step * 4)), b.getInt32(0));
    for (size_t i = 0; i < count + step; ++i) words[i] = b.CreateSelect(far, words[i + step], words[i]);
  }
  Value* bits = b.CreateShl(b.CreateAnd(first, uint64_t{3}), uint64_t{3});
  for (size_t i = 0; i < count; ++i) words[i] = b.CreateIntrinsic(llvm::Intrinsic::fshr, {b.getInt32Ty()}, {words[i + 1], words[i], bits});
  words.resize(count);
  return words;
}

}  // namespace kiln::llvm_ir
