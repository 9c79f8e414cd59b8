// SPDX-License-Identifier: Apache-2.0
//
// What a run of the emulator found.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kiln::emulator {

enum class FindingKind : uint8_t {
  kRace,           // two threads, nothing orders them, one of them writes
  kAsyncPending,   // bytes of an asynchronous operation that was not waited for
  kUninitialized,  // shared memory that nobody wrote
  kOutOfBounds,
  kMisaligned,
  kDivergence,  // threads that must come to one place together did not
  kDeadlock,
  kNotUniform,  // a value that the compiler said is the same in all lanes
  kOperands,    // a matrix instruction's
  kUnfenced,    // wgmma or a tensor copy after ordinary stores, or a tensor copy after ordinary loads of what it writes, with no proxy fence between
  kMbarrier,    // an mbarrier used against its rules
  kInFlight,    // registers that wgmma writes, touched before it was waited for
  kUnwritten,   // an element that a statement says it writes, and no thread wrote
  kTimeout,     // the launch had not ended when its time was over
};
std::string_view Name(FindingKind kind);

// What an access is about. Buffers that lie on the same bytes at different times share an address.
struct Element {
  std::string buffer;   // a tensor by its name; "%b7" is the artifact's (names.h)
  uint64_t number = 0;  // in the buffer's layout; of a tensor, counted from its first byte
};
struct Place {
  uint64_t address = 0;           // in bytes: of the block's shared memory, or from the first byte of the tensor
  std::vector<Element> elements;  // empty: of none that is known
};

struct Finding {
  FindingKind kind{};
  std::string message;          // complete but for what the statements say
  uint32_t location = 0;        // number of the tile statement, preorder from 1; 0: unknown
  uint32_t other_location = 0;  // of the access it clashes with
  std::array<uint32_t, 3> block{};
  uint32_t thread = 0;
  Place place;
};

struct Report {
  std::vector<Finding> findings;  // each pair of statements and kind once
  bool finished = false;          // every block ran to its end
};

}  // namespace kiln::emulator
