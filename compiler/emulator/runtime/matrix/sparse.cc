// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/matrix/sparse.h"

namespace kiln::emulator {
namespace {

// PTX ISA. Rows r and r + 8 of a warp's 16 belong to the four threads from 4·r on. Where 32 bits are for a row, two threads that the selector names
// have half of k each, and both rows. Of 8-bit elements, 64 bits are for a row: of each half of k, a thread has row r, and the next one row r + 8.
uint32_t OfWarps(const MatrixForm& form, const std::vector<uint32_t>& words, int row, int group) {
  const int half = form.k / GroupOf(form) / 2, part = group / half, below = group % half * 4, lower = row % 16 / 8;
  const int quad = row / 16 * 32 + row % 8 * 4;
  const bool bytes = ir::Bits(ir::DType(form.a)) == 8;
  const int thread = bytes ? quad + lower + 2 * part : quad + 2 * form.Selector() + part;
  return words[size_t(thread)] >> (bytes ? below : 16 * lower + below) & 15;
}

// CDNA3 ISA, "Sparse Matrix Multiply Accumulate": a lane's index register has the places of what the lane itself keeps, from the lowest bits on.
uint32_t OfLanes(const MatrixForm& form, const std::vector<uint32_t>& words, int row, int group) {
  const int each = form.k / GroupOf(form) / (64 / form.m);
  return words[size_t(row + form.m * (group / each))] >> group % each * 4 & 15;
}

}  // namespace

int GroupOf(const MatrixForm& form) { return ir::Bits(ir::DType(form.a)) == 32 ? 2 : 4; }

uint32_t MetadataOf(const MatrixForm& form, const std::vector<uint32_t>& words, int row, int group) {
  return form.unit == MatrixUnit::kSmfmac ? OfLanes(form, words, row, group) : OfWarps(form, words, row, group);
}

std::string ProblemOf(const MatrixForm& form, uint32_t bits) {
  const bool halves = GroupOf(form) == 2;
  if (halves ? bits == 0b0100 || bits == 0b1110 : (bits & 3) < bits >> 2) return {};
  std::string digits;
  for (int i = 3; i >= 0; --i) digits += char('0' + (bits >> i & 1));
  return "metadata 0b" + digits + (halves ? " that are not the halves of one element," : " that are not two places in order,");
}

}  // namespace kiln::emulator
