// SPDX-License-Identifier: Apache-2.0
//
// Neighbours in memory that begin at any element, by the two aligned vectors around them.
//
//   memory   | . . a b c d e f | g h . . . . . . |   two loads of 16 bytes
//   words    shifted down by two elements: a b | c d | e f | g h
#pragma once

#include "compiler/llvm/lower/part.h"

namespace kiln::llvm_ir {

// The i32s from byte `first` (i32, less than half of all bytes) of little-endian words on, half as many as there are; their number is a power of two.
Values WordsFrom(llvm::IRBuilderBase& b, Values words, Value* first);

}  // namespace kiln::llvm_ir
