// SPDX-License-Identifier: Apache-2.0
#include "compiler/plan/traffic.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

#include "compiler/analysis/contains.h"
#include "compiler/analysis/threads/register_map.h"

namespace kiln::compiler {
namespace {

constexpr int64_t kRowBytes = 128;     // of the banks, and of a line
constexpr size_t kSampled = 8;         // instructions whose addresses are looked at
constexpr int64_t kSomeExtent = 4096;  // of a dimension that only the launch knows

class Lanes {
 public:
  Lanes(const ir::Module& module, Scalars& scalars, const ir::For& loop, const ir::Layout& layout, ir::BufferId buffer,
        std::span<const ir::ExprId> indices, int64_t width)
      : module_(module),
        scalars_(scalars),
        loop_(loop),
        layout_(layout),
        buffer_(buffer),
        indices_(indices),
        extents_(ExtentsOf(module, loop)),
        bytes_(std::max<int64_t>(1, width * ir::Bits(module[buffer].dtype) / 8)) {}

  // The first register of each instruction of the thread.
  std::vector<int64_t> Instructions(int64_t thread) {
    std::set<int64_t> seen;
    std::vector<int64_t> first;
    for (int64_t reg = 0; reg < layout_.Registers(); ++reg) {
      const auto place = At(thread, reg);
      if (place && seen.insert(place->address / bytes_).second) first.push_back(reg);
    }
    return first;
  }

  // nullopt: the thread has no such iteration.
  std::optional<Place> At(int64_t thread, int64_t reg) {
    const ir::Indices base = layout_.ThreadPart(thread), more = layout_.RegisterPart(reg);
    for (size_t v = 0; v < loop_.vars.size(); ++v) {
      const int64_t at = base[v] + more[v];
      if (at >= extents_[v]) return std::nullopt;
      scalars_.Set(loop_.vars[v], at);
    }
    return PlaceOf(module_, scalars_, buffer_, indices_);
  }

  int64_t bytes() const { return bytes_; }

  // Elements of the buffer that the whole loop touches, if each value of a variable touches others.
  double Touched() const {
    double touched = 1;
    for (size_t v = 0; v < loop_.vars.size(); ++v) {
      const std::set<ir::VarId> var{loop_.vars[v]};
      if (std::ranges::any_of(indices_, [&](ir::ExprId id) { return ContainsVar(module_.exprs, id, var); })) touched *= double(extents_[v]);
    }
    return touched;
  }

 private:
  const ir::Module& module_;
  Scalars& scalars_;
  const ir::For& loop_;
  const ir::Layout& layout_;
  const ir::BufferId buffer_;
  const std::span<const ir::ExprId> indices_;
  const std::vector<int64_t> extents_;
  const int64_t bytes_;
};

// Turns of the banks for one instruction: lanes that move more than a word go in parts of the warp.
double BankTurns(std::span<const int64_t> addresses, int64_t bytes) {
  const size_t lanes = size_t(std::clamp<int64_t>(kRowBytes / std::max<int64_t>(bytes, 4), 1, 32));
  double turns = 0;
  for (size_t begin = 0; begin < addresses.size(); begin += lanes) {
    std::array<std::set<int64_t>, 32> words;
    for (size_t i = begin; i < std::min(begin + lanes, addresses.size()); ++i)
      for (int64_t at = addresses[i] / 4; at <= (addresses[i] + bytes - 1) / 4; ++at) words[size_t(at % 32)].insert(at);
    size_t most = 0;
    for (const auto& bank : words) most = std::max(most, bank.size());
    turns += double(most);
  }
  return turns;
}

}  // namespace

Place PlaceOf(const ir::Module& module, const Scalars& scalars, ir::BufferId id, std::span<const ir::ExprId> indices) {
  const ir::Buffer& buffer = module[id];
  std::vector<int64_t> at;
  for (const ir::ExprId index : indices) at.push_back(scalars.Or(index, 0));
  if (buffer.space != ir::Space::kGlobal) {
    if (!buffer.layout || size_t(buffer.layout->rank()) != at.size()) return {.inside = false};
    for (size_t d = 0; d < at.size(); ++d)
      if (at[d] < 0 || at[d] >= module.exprs.ConstInt(buffer.shape[d]).value_or(0)) return {.inside = false};  // casts do not wrap here
    const int64_t address = buffer.layout->AddressOf(at) * ir::Bits(buffer.dtype) / 8;
    return {buffer.layout->swizzle().Apply(address)};
  }
  int64_t element = 0, stride = 1;
  bool inside = true;
  for (size_t d = at.size(); d-- > 0;) {
    const int64_t extent = scalars.Or(buffer.shape[d], kSomeExtent);
    inside &= at[d] >= 0 && at[d] < extent;
    element += at[d] * (buffer.strides.empty() ? stride : scalars.Or(buffer.strides[d], stride));
    stride *= extent;
  }
  return {element * ir::Bits(buffer.dtype) / 8, inside};
}

Traffic TrafficOf(const ir::Module& module, Scalars& scalars, const ir::For& loop, const ir::Layout& layout, ir::BufferId buffer,
                  std::span<const ir::ExprId> indices, int64_t width, bool store, int64_t warp_size) {
  Lanes lanes(module, scalars, loop, layout, buffer, indices, width);
  std::vector<int64_t> first = lanes.Instructions(0);
  if (first.empty()) return {};
  const double all = double(first.size());
  first.resize(std::min(first.size(), kSampled));
  const bool global = module[buffer].space == ir::Space::kGlobal;
  const int64_t threads = std::min<int64_t>(warp_size, layout.Threads());
  std::set<int64_t> together, places;
  double turns = 0, apart = 0;
  for (const int64_t reg : first) {
    std::vector<int64_t> addresses;
    std::set<int64_t> sectors, lines;
    for (int64_t lane = 0; lane < threads; ++lane) {
      const auto place = lanes.At(lane, reg);
      if (!place || !place->inside) continue;  // outside of a tensor nothing is moved
      const int64_t address = place->address;
      addresses.push_back(address);
      if (!global) continue;
      places.insert(address);
      for (int64_t at = address / kSector; at <= (address + lanes.bytes() - 1) / kSector; ++at)
        sectors.insert(at), lines.insert(at * kSector / kRowBytes);
    }
    turns += global ? double(lines.size()) : BankTurns(addresses, lanes.bytes());
    apart += double(sectors.size());
    together.insert(sectors.begin(), sectors.end());
  }
  const double scale = all / double(first.size());
  Traffic traffic{.instructions = all, .turns = turns * scale};
  const double warps = double(std::max<int64_t>(1, layout.Threads() / warp_size));
  if (store) {
    traffic.sectors = apart * scale * warps;
  } else {
    // Warps that read the same find it in the first cache. A sector of which a warp needs a part counts in whole.
    const double bytes = lanes.Touched() * double(ir::Bits(module[buffer].dtype)) / 8;
    const double mine = double(together.size()) * scale;
    const double whole = std::max(1.0, double(together.size()) * double(kSector) / std::max(1.0, double(places.size()) * double(lanes.bytes())));
    traffic.sectors = std::min(mine * warps, std::max(mine, bytes / double(kSector) * whole));
  }
  return traffic;
}

}  // namespace kiln::compiler
