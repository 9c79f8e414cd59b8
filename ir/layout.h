// SPDX-License-Identifier: Apache-2.0
//
// Layouts are values. A layout maps the index tuple of a tile to places: a thread and a register of that thread, or an address.
// Each dimension is split in mixed radix, least significant digit first; a digit of value v adds v × stride to its place:
//
//   [ 2r1 4t1 8r4 ]   index 0…63: bit 0 is the register's, the next four values go to threads, the rest to registers
//
// so that every place is a sum of one term for each dimension, and an index is a sum of one term from the thread and one from
// the register. A dimension's digits multiply to its extent or more: the surplus is padding, which has places and no element.
// Replicas are thread digits that no dimension feeds: each of their values holds a copy. The swizzle acts on byte addresses:
// bits [base, base + bits) are XORed with the bits `shift` above them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kiln::ir {

enum class Place : uint8_t { kThread, kRegister, kAddress };

struct Digit {
  int64_t size;
  Place place;
  int64_t stride;  // threads, registers, or elements
  bool operator==(const Digit&) const = default;
};

struct Swizzle {
  uint8_t bits = 0;  // 0: none
  uint8_t base = 4;
  uint8_t shift = 3;
  int64_t Apply(int64_t byte_address) const { return byte_address ^ (((byte_address >> (base + shift)) & ((int64_t{1} << bits) - 1)) << base); }
  bool operator==(const Swizzle&) const = default;
};

using Indices = std::vector<int64_t>;

class Layout {
 public:
  Layout() = default;
  explicit Layout(std::vector<std::vector<Digit>> dims, std::vector<Digit> replicas = {}, Swizzle swizzle = {});

  // Row-major addresses with the given strides in elements.
  static Layout Strided(std::span<const int64_t> shape, std::span<const int64_t> strides, Swizzle swizzle = {});
  // Every thread of `threads` holds the whole tile.
  static Layout Replicated(std::span<const int64_t> shape, int64_t threads);
  // Spreads a tile over `threads`: `vector` neighbours in the last dimension to registers, then threads, then registers again,
  // so that a thread has the fewest registers, then the least padding, then the most threads along the last dimension. Threads
  // that no dimension takes hold copies.
  static Layout Distributed(std::span<const int64_t> shape, int64_t threads, int64_t vector);

  int rank() const { return int(dims_.size()); }
  const std::vector<Digit>& dim(int d) const { return dims_[d]; }
  const std::vector<std::vector<Digit>>& dims() const { return dims_; }
  const std::vector<Digit>& replicas() const { return replicas_; }
  const Swizzle& swizzle() const { return swizzle_; }

  int64_t Extent(int d) const;  // with padding
  int64_t Threads() const;      // replicas included
  int64_t Registers() const;
  int64_t Addresses() const;  // highest address + 1, in elements, before the swizzle
  bool IsPadded(std::span<const int64_t> shape) const;
  bool IsReplicated() const { return !replicas_.empty(); }
  bool IsWhole() const;  // every thread holds every element

  int64_t ThreadOf(std::span<const int64_t> index) const;  // of replica 0
  int64_t RegisterOf(std::span<const int64_t> index) const;
  int64_t AddressOf(std::span<const int64_t> index) const;  // elements, before the swizzle
  // index(thread, reg) = ThreadPart(thread) + RegisterPart(reg). Replicas give the same index.
  Indices ThreadPart(int64_t thread) const;
  Indices RegisterPart(int64_t reg) const;
  // Which copy `thread` holds: 0 for the first.
  int64_t ReplicaOf(int64_t thread) const;

  // Same places without dimension `d`: its thread digits become replicas, its register digits go and the registers are
  // renumbered. `keep` leaves the dimension with extent 1.
  Layout WithoutDim(int d, bool keep = false) const;
  // The lower half of dimension `d`, whose other half has the same threads and other registers; those are renumbered. Absent where the
  // dimension's extent is not halved so.
  std::optional<Layout> Half(int d) const;
  // A new outermost dimension with one digit.
  Layout WithOuterDim(Digit digit) const;
  // Dimensions reordered: new dimension i is old dimension order[i].
  Layout Permuted(std::span<const int> order) const;
  // Neighbouring digits of one place that continue each other merged, digits of size 1 dropped; equal functions on equal
  // domains have equal normal forms if their digits are split at the same places.
  Layout Normalized() const;

  // Places are taken once: thread and register digits (with replicas) number 0 … n−1 without gaps, addresses do not collide.
  bool IsInjective() const;

  std::string ToString() const;  // [2r1 4t1 8r4][8t4 2r2] rep[2t64] swizzle(3,4,3)
  static std::optional<Layout> Parse(std::string_view text);

  // Equal as normal forms.
  bool operator==(const Layout& other) const;

 private:
  std::vector<std::vector<Digit>> dims_;
  std::vector<Digit> replicas_;
  Swizzle swizzle_;
};

}  // namespace kiln::ir
