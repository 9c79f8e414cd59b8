// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kiln::llvm_ir {

// `ptx` in which a mask follows each prmt that takes bytes of a register and fills the upper half with zeros. Where such bytes are used as 16 bits
// and, extended again, as a word, ptxas (13.0, with -O1 to -O3, on every GPU) takes them from the register a second time. It does so even behind an
// instruction under a predicate that has overwritten the register; it makes such instructions of selections. Where a mask says that the bytes are
// short, it takes them once, and needs no instruction for the mask. Any other prmt may be used as 16 bits alone: ptxas does not know which bytes it
// chooses, unless it packs the low bytes or halves of two words (0x3340, 0x5410).
std::string WithoutTakenBytes(std::string_view ptx);

}  // namespace kiln::llvm_ir
