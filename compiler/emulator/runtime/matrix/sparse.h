// SPDX-License-Identifier: Apache-2.0
//
// A sparse A of mma.sp, wgmma.mma_async.sp and smfmac. Written from the PTX ISA ("Sparse matrix storage", and the figures of metadata layouts), the
// CDNA3 ISA and nothing else.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "compiler/emulator/abi.h"

namespace kiln::emulator {

// Neighbours along k of which the instruction takes half: four, of 32-bit elements two.
int GroupOf(const MatrixForm& form);
// The four bits for a group of a row. `words`: the metadata of each thread of the instruction.
uint32_t MetadataOf(const MatrixForm& form, const std::vector<uint32_t>& words, int row, int group);
// What is wrong with the bits for a group; empty: they name two places in order, or the halves of one element.
std::string ProblemOf(const MatrixForm& form, uint32_t bits);

// A matrix of `rows` · k from what it keeps, rows · k/2, into `dense`. What is wrong with the metadata, or empty. Where zeros alone are kept, as
// beyond a tensor's end, they may be anything.
template <typename T>
std::string Spread(const MatrixForm& form, int rows, const std::vector<T>& kept, const std::vector<uint32_t>& words, std::vector<T>& dense) {
  const int size = GroupOf(form), groups = form.k / size, keeps = size / 2;
  dense.assign(size_t(rows * form.k), T{});
  for (int row = 0; row < rows; ++row) {
    for (int group = 0; group < groups; ++group) {
      const T* held = &kept[size_t((row * groups + group) * keeps)];
      if (std::all_of(held, held + keeps, [](T value) { return value == T{}; })) continue;
      const uint32_t bits = MetadataOf(form, words, row, group);
      if (std::string problem = ProblemOf(form, bits); !problem.empty()) {
        return problem + " in row " + std::to_string(row) + " for k from " + std::to_string(group * size) + " on";
      }
      for (int i = 0; i < keeps; ++i) {
        const int place = int(bits >> 2 * i & 3);
        dense[size_t(row * form.k + group * size + (keeps == 1 ? place / 2 : place))] = held[i];
      }
    }
  }
  return {};
}

}  // namespace kiln::emulator
