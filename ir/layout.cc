// SPDX-License-Identifier: Apache-2.0
#include "ir/layout.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace kiln::ir {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Sum over digits of `place` of digit value × stride for one dimension's index.
int64_t Feed(const std::vector<Digit>& digits, int64_t index, Place place) {
  int64_t sum = 0;
  for (const Digit& digit : digits) {
    if (digit.place == place) sum += index % digit.size * digit.stride;
    index /= digit.size;
  }
  return sum;
}

int64_t Places(const std::vector<std::vector<Digit>>& dims, const std::vector<Digit>& replicas, Place place) {
  int64_t n = 1;
  for (const auto& dim : dims)
    for (const Digit& digit : dim)
      if (digit.place == place) n *= digit.size;
  for (const Digit& digit : replicas)
    if (digit.place == place) n *= digit.size;
  return n;
}

Indices PartOf(const std::vector<std::vector<Digit>>& dims, int64_t position, Place place) {
  Indices index(dims.size(), 0);
  for (size_t d = 0; d < dims.size(); ++d) {
    int64_t weight = 1;
    for (const Digit& digit : dims[d]) {
      if (digit.place == place) index[d] += position / digit.stride % digit.size * weight;
      weight *= digit.size;
    }
  }
  return index;
}

// Drops digits of size 1 and joins neighbours of one place that continue each other.
std::vector<Digit> Merge(const std::vector<Digit>& digits) {
  std::vector<Digit> merged;
  for (const Digit& digit : digits) {
    if (digit.size == 1) continue;
    if (!merged.empty() && merged.back().place == digit.place && merged.back().stride * merged.back().size == digit.stride) {
      merged.back().size *= digit.size;
    } else {
      merged.push_back(digit);
    }
  }
  return merged;
}

// True if the digits number 0 … n−1 without gap or overlap.
bool IsCompact(std::vector<Digit> digits) {
  std::ranges::sort(digits, {}, &Digit::stride);
  int64_t next = 1;
  for (const Digit& digit : digits) {
    if (digit.size == 1) continue;
    if (digit.stride != next) return false;
    next *= digit.size;
  }
  return true;
}

// Gives register digits compact strides again, in the order of the strides they have.
void RenumberRegisters(std::vector<std::vector<Digit>>& dims) {
  std::vector<Digit*> digits;
  for (auto& dim : dims)
    for (Digit& digit : dim)
      if (digit.place == Place::kRegister) digits.push_back(&digit);
  std::ranges::stable_sort(digits, {}, [](const Digit* digit) { return digit->stride; });
  int64_t next = 1;
  for (Digit* digit : digits) {
    digit->stride = next;
    next *= digit->size;
  }
}

// How many threads each dimension takes, and the cost: first a thread's units of work, then units of padding.
struct Spread {
  std::vector<int64_t> taken;
  std::pair<int64_t, int64_t> cost;
};

// The cheapest choice; among equals, the most threads in the last dimension, for neighbouring threads to touch neighbouring units.
Spread SpreadThreads(std::span<const int64_t> units, int64_t threads) {
  if (units.empty()) return {{}, {1, 0}};
  const int64_t last = units.back();
  std::optional<Spread> best;
  for (int64_t t = threads; t >= 1; --t) {
    if (threads % t != 0 || t >= 2 * last) continue;
    Spread spread = SpreadThreads(units.first(units.size() - 1), threads / t);
    const int64_t rest = CeilDiv(last, t);
    spread.cost = {spread.cost.first * rest, spread.cost.second + (rest * t - last)};
    spread.taken.push_back(t);
    if (!best || spread.cost < best->cost) best = std::move(spread);
  }
  return *std::move(best);
}

char Letter(Place place) {
  switch (place) {
    case Place::kThread: return 't';
    case Place::kRegister: return 'r';
    case Place::kAddress: return 'a';
  }
  std::unreachable();
}

std::string DigitText(const Digit& digit) { return std::to_string(digit.size) + Letter(digit.place) + std::to_string(digit.stride); }

std::string ListText(const std::vector<Digit>& digits) {
  std::string text = "[";
  for (const Digit& digit : digits) {
    if (text.size() > 1) text += ' ';
    text += DigitText(digit);
  }
  return text + "]";
}

// Reads what ToString writes.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}
  bool Done() { return Skip(), rest_.empty(); }
  bool Take(std::string_view token) {
    Skip();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  std::optional<int64_t> Number() {
    Skip();
    int64_t value = 0;
    auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc{}) return std::nullopt;
    rest_.remove_prefix(end - rest_.data());
    return value;
  }
  std::optional<Digit> ReadDigit() {
    std::optional<int64_t> size = Number();
    if (!size || *size < 1 || rest_.empty()) return std::nullopt;
    Place place;
    switch (rest_.front()) {
      case 't': place = Place::kThread; break;
      case 'r': place = Place::kRegister; break;
      case 'a': place = Place::kAddress; break;
      default: return std::nullopt;
    }
    rest_.remove_prefix(1);
    std::optional<int64_t> stride = Number();
    if (!stride || *stride < 1) return std::nullopt;
    return Digit{*size, place, *stride};
  }
  // After the opening bracket.
  std::optional<std::vector<Digit>> List() {
    std::vector<Digit> digits;
    while (!Take("]")) {
      std::optional<Digit> digit = ReadDigit();
      if (!digit) return std::nullopt;
      digits.push_back(*digit);
    }
    return digits;
  }

 private:
  void Skip() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  std::string_view rest_;
};

}  // namespace

Layout::Layout(std::vector<std::vector<Digit>> dims, std::vector<Digit> replicas, Swizzle swizzle)
    : dims_(std::move(dims)), replicas_(std::move(replicas)), swizzle_(swizzle) {}

Layout Layout::Strided(std::span<const int64_t> shape, std::span<const int64_t> strides, Swizzle swizzle) {
  std::vector<std::vector<Digit>> dims;
  for (size_t d = 0; d < shape.size(); ++d) dims.push_back({{shape[d], Place::kAddress, strides[d]}});
  return Layout(std::move(dims), {}, swizzle);
}

Layout Layout::Replicated(std::span<const int64_t> shape, int64_t threads) {
  std::vector<std::vector<Digit>> dims(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    dims[d].push_back({shape[d], Place::kRegister, stride});
    stride *= shape[d];
  }
  return Layout(std::move(dims), {{threads, Place::kThread, 1}});
}

Layout Layout::Distributed(std::span<const int64_t> shape, int64_t threads, int64_t vector) {
  const int rank = int(shape.size());
  std::vector<int64_t> units(shape.begin(), shape.end());
  if (rank > 0) units.back() = CeilDiv(units.back(), vector);
  const std::vector<int64_t> taken = SpreadThreads(units, threads).taken;
  std::vector<std::vector<Digit>> dims(rank);
  if (rank > 0 && vector > 1) dims.back().push_back({vector, Place::kRegister, 1});
  int64_t thread_stride = 1, register_stride = vector;
  for (int d = rank - 1; d >= 0; --d) {
    if (taken[d] > 1) dims[d].push_back({taken[d], Place::kThread, thread_stride});
    thread_stride *= taken[d];
    const int64_t rest = CeilDiv(units[d], taken[d]);
    if (rest > 1) dims[d].push_back({rest, Place::kRegister, register_stride});
    register_stride *= rest;
  }
  std::vector<Digit> replicas;
  if (thread_stride < threads) replicas.push_back({threads / thread_stride, Place::kThread, thread_stride});
  return Layout(std::move(dims), std::move(replicas));
}

int64_t Layout::Extent(int d) const {
  int64_t extent = 1;
  for (const Digit& digit : dims_[d]) extent *= digit.size;
  return extent;
}

int64_t Layout::Threads() const { return Places(dims_, replicas_, Place::kThread); }
int64_t Layout::Registers() const { return Places(dims_, {}, Place::kRegister); }

int64_t Layout::Addresses() const {
  int64_t highest = 0;
  for (const auto& dim : dims_)
    for (const Digit& digit : dim)
      if (digit.place == Place::kAddress) highest += (digit.size - 1) * digit.stride;
  return highest + 1;
}

bool Layout::IsPadded(std::span<const int64_t> shape) const {
  for (int d = 0; d < rank(); ++d)
    if (Extent(d) != shape[d]) return true;
  return false;
}

bool Layout::IsWhole() const {
  const auto in_registers = [](const Digit& digit) { return digit.place == Place::kRegister; };
  return std::ranges::all_of(dims_, [&](const auto& dim) { return std::ranges::all_of(dim, in_registers); });
}

int64_t Layout::ThreadOf(std::span<const int64_t> index) const {
  int64_t sum = 0;
  for (int d = 0; d < rank(); ++d) sum += Feed(dims_[d], index[d], Place::kThread);
  return sum;
}

int64_t Layout::RegisterOf(std::span<const int64_t> index) const {
  int64_t sum = 0;
  for (int d = 0; d < rank(); ++d) sum += Feed(dims_[d], index[d], Place::kRegister);
  return sum;
}

int64_t Layout::AddressOf(std::span<const int64_t> index) const {
  int64_t sum = 0;
  for (int d = 0; d < rank(); ++d) sum += Feed(dims_[d], index[d], Place::kAddress);
  return sum;
}

Indices Layout::ThreadPart(int64_t thread) const { return PartOf(dims_, thread, Place::kThread); }
Indices Layout::RegisterPart(int64_t reg) const { return PartOf(dims_, reg, Place::kRegister); }

int64_t Layout::ReplicaOf(int64_t thread) const {
  int64_t replica = 0, weight = 1;
  for (const Digit& digit : replicas_) {
    replica += thread / digit.stride % digit.size * weight;
    weight *= digit.size;
  }
  return replica;
}

Layout Layout::WithoutDim(int d, bool keep) const {
  Layout result = *this;
  for (const Digit& digit : dims_[d])
    if (digit.place == Place::kThread && digit.size > 1) result.replicas_.push_back(digit);
  std::ranges::sort(result.replicas_, {}, &Digit::stride);
  if (keep) {
    result.dims_[d].clear();
  } else {
    result.dims_.erase(result.dims_.begin() + d);
  }
  RenumberRegisters(result.dims_);
  return result;
}

std::optional<Layout> Layout::Half(int d) const {
  Layout result = Normalized();
  std::vector<Digit>& digits = result.dims_[d];
  if (digits.empty() || digits.back().place != Place::kRegister || digits.back().size % 2 != 0) return std::nullopt;
  digits.back().size /= 2;
  RenumberRegisters(result.dims_);
  return result.Normalized();
}

Layout Layout::WithOuterDim(Digit digit) const {
  Layout result = *this;
  result.dims_.insert(result.dims_.begin(), std::vector<Digit>{digit});
  return result;
}

Layout Layout::Permuted(std::span<const int> order) const {
  std::vector<std::vector<Digit>> dims;
  for (int d : order) dims.push_back(dims_[d]);
  return Layout(std::move(dims), replicas_, swizzle_);
}

Layout Layout::Normalized() const {
  std::vector<std::vector<Digit>> dims;
  for (const auto& dim : dims_) dims.push_back(Merge(dim));
  std::vector<Digit> replicas = replicas_;
  std::ranges::sort(replicas, {}, &Digit::stride);
  return Layout(std::move(dims), Merge(replicas), swizzle_);
}

bool Layout::IsInjective() const {
  std::vector<Digit> threads = replicas_, registers, addresses;
  for (const auto& dim : dims_) {
    for (const Digit& digit : dim) {
      (digit.place == Place::kThread ? threads : digit.place == Place::kRegister ? registers : addresses).push_back(digit);
    }
  }
  if (!IsCompact(threads) || !IsCompact(registers)) return false;
  // Addresses may have gaps (padding) but must not collide: each digit's stride exceeds what all smaller strides reach together.
  std::ranges::sort(addresses, {}, &Digit::stride);
  int64_t reach = 0;
  for (const Digit& digit : addresses) {
    if (digit.size == 1) continue;
    if (digit.stride <= reach) return false;
    reach += (digit.size - 1) * digit.stride;
  }
  return true;
}

std::string Layout::ToString() const {
  std::string text;
  for (const auto& dim : dims_) text += ListText(dim);
  if (!replicas_.empty()) text += " rep" + ListText(replicas_);
  if (swizzle_.bits > 0) {
    text += " swizzle(" + std::to_string(swizzle_.bits) + "," + std::to_string(swizzle_.base) + "," + std::to_string(swizzle_.shift) + ")";
  }
  return text;
}

std::optional<Layout> Layout::Parse(std::string_view text) {
  Reader reader(text);
  Layout layout;
  while (reader.Take("[")) {
    auto digits = reader.List();
    if (!digits) return std::nullopt;
    layout.dims_.push_back(*std::move(digits));
  }
  if (reader.Take("rep[")) {
    auto digits = reader.List();
    if (!digits) return std::nullopt;
    layout.replicas_ = *std::move(digits);
  }
  if (reader.Take("swizzle(")) {
    uint8_t* fields[] = {&layout.swizzle_.bits, &layout.swizzle_.base, &layout.swizzle_.shift};
    for (int i = 0; i < 3; ++i) {
      std::optional<int64_t> value = reader.Number();
      if (!value || *value < 0 || *value > 16 || !reader.Take(i < 2 ? "," : ")")) return std::nullopt;
      *fields[i] = uint8_t(*value);
    }
  }
  if (!reader.Done()) return std::nullopt;
  return layout;
}

bool Layout::operator==(const Layout& other) const {
  const Layout a = Normalized(), b = other.Normalized();
  return a.dims_ == b.dims_ && a.replicas_ == b.replicas_ && a.swizzle_ == b.swizzle_;
}

}  // namespace kiln::ir
