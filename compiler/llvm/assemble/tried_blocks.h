// SPDX-License-Identifier: Apache-2.0
//
// How many blocks of a kernel a multiprocessor can hold follows from a thread's registers, and only ptxas knows how many it needs. PTX asks
// for the blocks that are sure to fit, and says in a comment how many may fit: a note. Who makes a cubin tries these, and sees whether values
// are spilled. Drivers read past the comment.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace kiln::llvm_ir {

using BlocksOfEntries = std::map<std::string, uint32_t, std::less<>>;  // on a multiprocessor

// `ptx` with a note at each of these entries.
std::string WithNotes(std::string_view ptx, const BlocksOfEntries& blocks);

// What the notes in `ptx` say.
BlocksOfEntries TriedBlocks(std::string_view ptx);

// `ptx` where each of these entries asks for so many blocks. The others keep their notes.
std::string WithBlocks(std::string_view ptx, const BlocksOfEntries& blocks);

}  // namespace kiln::llvm_ir
