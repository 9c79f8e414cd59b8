// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kiln::llvm_ir {

// `ptx` in which no high half is lost to a conversion of 8-bit floats. Such a conversion writes the low half of a register and takes the high half
// along from another one, so ptxas packs {converted, other} in one instruction. It counts the register of `other` as overwritten by that. Where
// `other` is the low half of a register of 32 bits, as cvt.u16.u32 and 16-bit arithmetic leave it, ptxas (13.0, with -O1 to -O3, on every GPU with
// 8-bit floats) does not restore it: the next reader of `other`, and even of the whole register, gets the packed word. A half that comes out of an
// unpacking mov is restored, so each such `other` goes through one.
std::string WithoutMergedHalves(std::string_view ptx);

}  // namespace kiln::llvm_ir
