// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/for_ptxas.h"

#include <array>
#include <unordered_map>

#include "compiler/llvm/ptx/complements.h"
#include "compiler/llvm/ptx/high_halves.h"
#include "compiler/llvm/ptx/high_products.h"
#include "compiler/llvm/ptx/negations.h"
#include "compiler/llvm/ptx/packed_halves.h"
#include "compiler/llvm/ptx/short_extremes.h"
#include "compiler/llvm/ptx/stored_parts.h"
#include "compiler/llvm/ptx/taken_bytes.h"
#include "compiler/llvm/ptx/text.h"

namespace kiln::llvm_ir {
namespace {

constexpr std::string_view kAtom = "atom.";

// Whether red has the operation, as it has all but exchanges and what acquires.
bool IsReduction(std::string_view name) {
  constexpr std::array<std::string_view, 8> kNames{".add.", ".min.", ".max.", ".and.", ".or.", ".xor.", ".inc.", ".dec."};
  return name.starts_with(kAtom) && !name.contains(".acq") && std::ranges::any_of(kNames, [&](std::string_view part) { return name.contains(part); });
}

std::string ByReductions(std::string_view function) {
  // What red does is no read: a fence behind it would acquire nothing.
  if (!function.contains(kAtom) || function.contains("fence.")) return std::string(function);
  std::unordered_map<std::string_view, int> count;
  ForEachLine(function, [&](std::string_view line) { ForEachRegister(line, [&](std::string_view name) { ++count[name]; }); });
  std::string result;
  ForEachLine(function, [&](std::string_view line) {
    const PtxStatement statement = ParsedPtx(line);
    const auto uses = count.find(statement.first);
    if (!IsReduction(statement.name) || uses == count.end() || uses->second != 1) {
      result += line;
      return;
    }
    result += WithStatement(line, std::string("red.").append(statement.name.substr(kAtom.size())).append(" \t").append(statement.last).append(";"));
  });
  return result;
}

}  // namespace

std::string WithoutUnusedResults(std::string_view ptx) { return WithFunctions(ptx, ByReductions); }

std::string ForPtxas(std::string_view ptx) {
  const std::string words = WithoutTakenBytes(WithoutComplements(WithoutNegations(WithoutShortExtremes(WithoutHighProducts(ptx)))));
  return WithoutUnusedResults(WithoutStoredPartsOfFloats(WithoutHighHalvesOfShortValues(WithoutSharedPairs(words))));
}

}  // namespace kiln::llvm_ir
