// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/backend_options.h"

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {
namespace {

struct Option {
  llvm::StringRef name, value;
};

constexpr Option kOptions[] = {
    // Of a function with more blocks than this, CodeGenPrepare looks again at the blocks that it changes alone. Else each change of a branch begins
    // it again at the first block. It makes the same code.
    {"cgpp-huge-func", "512"},
    // The register coalescer's rule asks which registers are alive together, and LLVM 22 reads beyond the (empty) range of one that is copied but
    // never written. Whether it crashes depends on what lies in memory there. Undefined values give such registers, and so do AMD's branches in
    // which threads part. Up to LLVM 21 the rule was off.
    {"terminal-rule", "false"},
};

}  // namespace

void SetBackendOptions() {
  auto& known = llvm::cl::getRegisteredOptions();
  for (const Option& option : kOptions) {
    const auto found = known.find(option.name);
    if (found != known.end() && found->second->getNumOccurrences() == 0) found->second->addOccurrence(1, option.name, option.value);
  }
}

}  // namespace kiln::llvm_ir
