// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kiln::llvm_ir {

// `ptx` in which ptxas packs two halves in one instruction only where it does so rightly. Of a conversion to f16, bf16 or two 8-bit floats and the
// packing of its result as the low half of a word, ptxas (13.0, with -O1 to -O3, on every GPU) makes one instruction.
// - It looks for the conversion through masks and selections, which it then drops.
// - With 8-bit floats, that instruction takes the high half along from another register. ptxas counts it as overwritten, and does not restore it
//   where that half is the low half of a word.
// - ptxas crashes where such halves stand in several pairs.
// - It drops the conversion where the high half is uniform and the converted value is uniform too, such as a constant or a parameter.
// Of two words that are packed to be stored together, it may swap the low halves, or write both to one register. It takes the high half of a word
// that it has packed itself from a wrong place.
// So a low half is packed as it is if it is loaded or comes straight from floats; one of 8-bit floats, if neither half has another reader and it is
// made of no constant. All other pairs of a kernel that converts, and all low halves of two words that are not packed bytes themselves, are selected
// by a prmt whose selector ptxas does not know, so that it cannot take it for a packing.
std::string WithoutSharedPairs(std::string_view ptx);

}  // namespace kiln::llvm_ir
