// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/overlap.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace kiln::runtime {
namespace {

constexpr uint64_t kMostRuns = uint64_t{1} << 26;
constexpr int64_t kFarthest = int64_t{1} << 58;  // bits from the first element

struct Dim {
  uint64_t extent;
  uint64_t stride;  // in bits
};

// Where the elements of a tensor lie: runs of neighbouring bits from the address `base` on, one for each index of `dims`.
struct Runs {
  uint64_t base = 0;      // in bytes
  uint64_t shift = 0;     // bits from there to the first run
  uint64_t bits = 0;      // of a run; 0: no elements
  std::vector<Dim> dims;  // the smallest stride first
  uint64_t count = 1;
  uint64_t span = 0;  // bits from the first run's start to the last one's end

  uint64_t begin() const { return base + shift / 8; }
  uint64_t end() const { return base + (shift + span + 7) / 8; }
};

// Absent where the addresses are beyond reckoning.
std::optional<Runs> RunsOf(const Tensor& tensor) {
  const uint64_t element = Find(tensor.dtype)->bits;
  Runs runs{.base = tensor.data, .shift = 0, .bits = element, .dims = {}};
  int64_t low = 0, dense = 1;
  for (size_t d = tensor.shape.size(); d-- > 0;) {
    const int64_t extent = tensor.shape[d], stride = tensor.strides != nullptr ? tensor.strides[d] : dense;
    if (extent <= 0) return Runs{.dims = {}};
    if (__builtin_mul_overflow(dense, extent, &dense)) return std::nullopt;
    if (extent == 1 || stride == 0) continue;
    int64_t reach = 0;
    if (__builtin_mul_overflow(extent - 1, stride, &reach) || __builtin_mul_overflow(reach, int64_t(element), &reach) || reach > kFarthest ||
        reach < -kFarthest) {
      return std::nullopt;
    }
    low += std::min<int64_t>(reach, 0);
    runs.dims.push_back({uint64_t(extent), uint64_t(stride < 0 ? -stride : stride) * element});
  }
  std::ranges::sort(runs.dims, {}, &Dim::stride);
  while (!runs.dims.empty() && runs.dims.front().stride == runs.bits) {
    runs.bits *= runs.dims.front().extent;
    runs.dims.erase(runs.dims.begin());
  }
  runs.span = runs.bits;
  for (const Dim& dim : runs.dims) {
    if (__builtin_mul_overflow(runs.count, dim.extent, &runs.count)) return std::nullopt;
    runs.span += (dim.extent - 1) * dim.stride;
  }
  const auto before = uint64_t(-low);
  runs.base -= (before + 7) / 8;
  runs.shift = (before + 7) / 8 * 8 - before;
  return runs;
}

// fn(first byte, end) of each run, until it says true; whether it did.
template <class Fn>
bool AnyRun(const Runs& runs, Fn&& fn) {
  std::vector<uint64_t> index(runs.dims.size());
  while (true) {
    uint64_t first = runs.shift;
    for (size_t d = 0; d < index.size(); ++d) first += index[d] * runs.dims[d].stride;
    if (fn(runs.base + first / 8, runs.base + (first + runs.bits + 7) / 8)) return true;
    size_t d = 0;
    while (d < index.size() && ++index[d] == runs.dims[d].extent) index[d++] = 0;
    if (d == index.size()) return false;
  }
}

}  // namespace

bool Overlap(const Tensor& a, const Tensor& b) {
  const auto one = RunsOf(a), other = RunsOf(b);
  if (!one || !other) return true;
  if (one->bits == 0 || other->bits == 0) return false;
  const uint64_t begin = std::max(one->begin(), other->begin()), end = std::min(one->end(), other->end());
  if (begin >= end) return false;
  if (one->count > kMostRuns || other->count > kMostRuns) return true;
  if (one->count == 1 && other->count == 1) return true;
  std::vector<bool> taken(end - begin);  // bytes that both might have
  const auto clipped = [&](uint64_t at) { return taken.begin() + int64_t(std::clamp(at, begin, end) - begin); };
  AnyRun(*one, [&](uint64_t first, uint64_t last) {
    std::fill(clipped(first), clipped(last), true);
    return false;
  });
  return AnyRun(*other, [&](uint64_t first, uint64_t last) { return std::find(clipped(first), clipped(last), true) != clipped(last); });
}

std::optional<std::string> ForbiddenOverlap(const Binder& binder, std::span<const Arg> args) {
  const std::vector<LaunchParam>& params = binder.info().params;
  const auto written = [&](size_t i) { return params[i].written || params[i].output; };
  for (size_t i = 0; i < args.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (args[i].kind != Arg::Kind::kTensor || args[j].kind != Arg::Kind::kTensor) continue;
      if ((!written(i) && !written(j)) || (params[i].may_alias && params[j].may_alias)) continue;
      if (params[i].by_address && params[j].by_address) continue;
      if (!Overlap(args[i].tensor, args[j].tensor)) continue;
      return fmt::format(
          "{}: {} and {} overlap, and the kernel writes {}; pass a copy of one of them, or let both overlap in the program "
          "(T.annotate_restrict_buffers, Builder::MayAlias)",
          binder.name(), params[j].name, params[i].name, params[written(i) ? i : j].name);
    }
  }
  return std::nullopt;
}

}  // namespace kiln::runtime
