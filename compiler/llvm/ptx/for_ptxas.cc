// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/for_ptxas.h"

#include "compiler/llvm/ptx/complements.h"
#include "compiler/llvm/ptx/high_halves.h"
#include "compiler/llvm/ptx/high_products.h"
#include "compiler/llvm/ptx/negations.h"
#include "compiler/llvm/ptx/packed_halves.h"
#include "compiler/llvm/ptx/short_extremes.h"
#include "compiler/llvm/ptx/stored_parts.h"
#include "compiler/llvm/ptx/taken_bytes.h"
#include "compiler/llvm/ptx/unused_results.h"

namespace kiln::llvm_ir {

std::string ForPtxas(std::string_view ptx) {
  const std::string words = WithoutTakenBytes(WithoutComplements(WithoutNegations(WithoutShortExtremes(WithoutHighProducts(ptx)))));
  return WithoutUnusedResults(WithoutStoredPartsOfFloats(WithoutHighHalvesOfShortValues(WithoutSharedPairs(words))));
}

}  // namespace kiln::llvm_ir
