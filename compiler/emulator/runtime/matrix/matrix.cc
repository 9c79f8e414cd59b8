// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/matrix/matrix.h"

#include <bit>
#include <cstdlib>

#include "compiler/emulator/runtime/matrix/number.h"
#include "compiler/emulator/runtime/matrix/sparse.h"

namespace kiln::emulator {
namespace {

using ir::DType;

int BitsOf(uint8_t type) { return ir::Bits(DType(type)); }

struct Position {
  int row, column;
};

// PTX ISA, "Matrix Fragments for mma.m16n8k…": groupID = lane / 4, threadID_in_group = lane % 4. Element i of a lane's fragment.
Position MmaA(const MatrixForm& f, int lane, int i) {
  const int group = lane / 4, thread = lane % 4, each = 32 / BitsOf(f.a), reg = i / each;
  if (f.m == 8) return {group, thread * each + i % each};
  return {group + (reg % 2 == 1 ? 8 : 0), thread * each + i % each + (reg / 2) * 4 * each};
}
Position MmaB(const MatrixForm& f, int lane, int i) {
  const int group = lane / 4, thread = lane % 4, each = 32 / BitsOf(f.b);
  return {thread * each + i % each + (i / each) * 4 * each, group};
}
Position MmaC(int lane, int i) { return {lane / 4 + (i >= 2 ? 8 : 0), lane % 4 * 2 + (i & 1)}; }

// AMD matrix instruction calculator, MFMA of one block: A[i][k], B[k][j], D[i][j]. A sparse A is that of half the depth.
Position MfmaA(const MatrixForm& f, int k, int lane, int i) {
  const int each = k / (64 / f.m);
  return {lane % f.m, each * (lane / f.m) + i};
}
Position MfmaC(const MatrixForm& f, int lane, int i) {
  if (f.m == 32) return {8 * (i / 4) + 4 * (lane / 32) + i % 4, lane % 32};
  return {4 * (lane / 16) + i, lane % 16};
}

// RDNA3 ISA, 7.9: a lane holds a whole row of A; D's rows alternate between the halves of the wave.
Position Wmma11A(int lane, int i) { return {lane % 16, i}; }
Position Wmma11C(int lane, int i) { return {2 * i + lane / 16, lane % 16}; }
// RDNA4 ISA, 7.12: blocks of 4 (16-bit) along k alternate between the halves; D's halves are 8 rows each.
Position Wmma12A(int lane, int i) { return {lane % 16, 8 * (i / 4) + 4 * (lane / 16) + i % 4}; }
Position Wmma12C(int lane, int i) { return {8 * (lane / 16) + i, lane % 16}; }

Position PositionA(const MatrixForm& f, int lane, int i) {
  switch (f.unit) {
    case MatrixUnit::kMmaSync: return MmaA(f, lane, i);
    case MatrixUnit::kMfma:
    case MatrixUnit::kSmfmac: return MfmaA(f, f.KeptK(), lane, i);
    case MatrixUnit::kWmmaGfx11: return Wmma11A(lane, i);
    case MatrixUnit::kWmmaGfx12: return Wmma12A(lane, i);
    case MatrixUnit::kWgmma: break;  // of four warps: wgmma.cc
  }
  std::abort();
}

// AMD's B mirrors A: the lane gives the column.
Position PositionB(const MatrixForm& f, int lane, int i) {
  if (f.unit == MatrixUnit::kMmaSync) return MmaB(f, lane, i);
  const Position a = f.unit == MatrixUnit::kSmfmac ? MfmaA(f, f.k, lane, i) : PositionA(f, lane, i);
  return {a.column, a.row};
}

Position PositionC(const MatrixForm& f, int lane, int i) {
  switch (f.unit) {
    case MatrixUnit::kMmaSync: return MmaC(lane, i);
    case MatrixUnit::kMfma:
    case MatrixUnit::kSmfmac: return MfmaC(f, lane, i);
    case MatrixUnit::kWmmaGfx11: return Wmma11C(lane, i);
    case MatrixUnit::kWmmaGfx12: return Wmma12C(lane, i);
    case MatrixUnit::kWgmma: break;
  }
  std::abort();
}

// What of an operand the unit reads. tf32: PTX ISA, "the lower 13 bits are ignored"; XF32 likewise.
uint32_t Extract(uint32_t word, int shift, int bits) { return bits == 32 ? word : word >> shift & ((1u << bits) - 1); }

struct Reader {
  DType type;
  int bits;
  const float* values;
  explicit Reader(uint8_t t) : type(DType(t)), bits(BitsOf(t)), values(bits < 32 && ir::IsFloat(type) ? ValuesOf(type) : nullptr) {}

  float Float(uint32_t word, int shift) const {
    if (values != nullptr) return values[Extract(word, shift, bits)];
    return std::bit_cast<float>(type == DType::kTF32 ? word & ~0x1fffu : word);
  }
  int32_t Integer(uint32_t word, int shift) const {
    const uint32_t v = Extract(word, shift, bits);
    return type == DType::kI8 ? int32_t(int8_t(v)) : int32_t(v);
  }
};

// Rounded once, at the end: in what order and how far the hardware's adders keep what they add is not documented.
template <int N>
__attribute__((target_clones("avx2,fma", "default"))) void Accumulate(const float* a, const float* b, float* c, int m, int k) {
  for (int i = 0; i < m; ++i) {
    double sum[N];
    for (int j = 0; j < N; ++j) sum[j] = c[i * N + j];
    for (int p = 0; p < k; ++p) {
      const double x = a[i * k + p];
      for (int j = 0; j < N; ++j) sum[j] += x * b[p * N + j];
    }
    for (int j = 0; j < N; ++j) c[i * N + j] = float(sum[j]);
  }
}

}  // namespace

std::unique_ptr<MatrixUnits::Placement> MatrixUnits::Place(const MatrixForm& f) {
  auto placement = std::make_unique<Placement>();
  placement->form = f;
  placement->lanes = f.unit == MatrixUnit::kMfma || f.unit == MatrixUnit::kSmfmac ? 64 : 32;
  const int lanes = int(placement->lanes), copies = f.unit == MatrixUnit::kWmmaGfx11 ? 2 : 1;
  const int count_a = f.m * f.KeptK() * copies / lanes, count_b = f.n * f.k * copies / lanes, count_c = f.m * f.n / lanes;
  const auto element = [](int lane, int i, uint8_t type, uint32_t base, int index) {
    const int each = 32 / BitsOf(type);
    return Element{uint16_t(lane), uint16_t(base + uint32_t(i / each)), uint8_t(i % each * BitsOf(type)), uint16_t(index)};
  };
  for (int lane = 0; lane < lanes; ++lane) {
    const bool again = copies == 2 && lane >= 16;
    for (int i = 0; i < count_a; ++i) {
      const Position p = PositionA(f, lane, i);
      (again ? placement->copies_a : placement->a).push_back(element(lane, i, f.a, kWordsOfA, p.row * f.KeptK() + p.column));
    }
    for (int i = 0; i < count_b; ++i) {
      const Position p = PositionB(f, lane, i);
      (again ? placement->copies_b : placement->b).push_back(element(lane, i, f.b, kWordsOfB, p.row * f.n + p.column));
    }
    for (int i = 0; i < count_c; ++i) {
      const Position p = PositionC(f, lane, i);
      placement->c.push_back({uint16_t(lane), uint16_t(kWordsOfC + uint32_t(i)), 0, uint16_t(p.row * f.n + p.column)});
    }
  }
  return placement;
}

namespace {

// Makes a sparse a dense. What is wrong with its metadata, or empty.
template <typename T>
std::string Expand(const MatrixForm& form, std::span<uint32_t* const> words, std::vector<T>& a) {
  if (!form.IsSparse()) return {};
  std::vector<uint32_t> metadata;
  for (const uint32_t* lane : words) metadata.push_back(lane[kWordOfMetadata]);
  const std::vector<T> kept = a;
  std::string problem = Spread(form, form.m, kept, metadata, a);
  return problem.empty() ? problem : "a matrix instruction with " + problem;
}

}  // namespace

template <int N>
std::string MatrixUnits::MultiplyFloats(const Placement& p, std::span<uint32_t* const> words) {
  const Reader a(p.form.a), b(p.form.b);
  const bool narrow = DType(p.form.c) == DType::kF16;
  a_.resize(p.a.size());
  b_.resize(p.b.size());
  c_.resize(p.c.size());
  for (const Element& e : p.a) a_[e.index] = a.Float(words[e.lane][e.word], e.shift);
  for (const Element& e : p.b) b_[e.index] = b.Float(words[e.lane][e.word], e.shift);
  for (const Element& e : p.c) {
    const uint32_t word = words[e.lane][e.word];
    c_[e.index] = narrow ? ValuesOf(DType::kF16)[word & 0xffff] : std::bit_cast<float>(word);
  }
  if (std::string problem = Expand(p.form, words, a_); !problem.empty()) return problem;
  Accumulate<N>(a_.data(), b_.data(), c_.data(), p.form.m, p.form.k);
  for (const Element& e : p.c) {
    words[e.lane][e.word] = narrow ? Narrow(DType::kF16, c_[e.index]) : std::bit_cast<uint32_t>(c_[e.index]);
  }
  return {};
}

std::string MatrixUnits::MultiplyIntegers(const Placement& p, std::span<uint32_t* const> words) {
  const Reader a(p.form.a), b(p.form.b);
  const int k = p.form.k, n = p.form.n;
  ia_.resize(p.a.size());
  ib_.resize(p.b.size());
  for (const Element& e : p.a) ia_[e.index] = a.Integer(words[e.lane][e.word], e.shift);
  for (const Element& e : p.b) ib_[e.index] = b.Integer(words[e.lane][e.word], e.shift);
  if (std::string problem = Expand(p.form, words, ia_); !problem.empty()) return problem;
  for (const Element& e : p.c) {
    uint32_t sum = words[e.lane][e.word];  // wraps
    const int row = e.index / n, column = e.index % n;
    for (int i = 0; i < k; ++i) sum += uint32_t(ia_[size_t(row * k + i)] * ib_[size_t(i * n + column)]);
    words[e.lane][e.word] = sum;
  }
  return {};
}

std::string MatrixUnits::Run(uint64_t packed, std::span<uint32_t* const> words) {
  if (last_ == nullptr || last_form_ != packed) {
    std::unique_ptr<Placement>& placement = placements_[packed];
    if (placement == nullptr) placement = Place(MatrixForm::Unpack(packed));
    last_ = placement.get();
    last_form_ = packed;
  }
  const Placement& p = *last_;
  if (words.size() != p.lanes) return "a matrix instruction in a warp of " + std::to_string(words.size()) + " threads";
  for (const auto* copies : {&p.copies_a, &p.copies_b}) {
    for (const Element& e : *copies) {
      if (words[e.lane][e.word] != words[size_t(e.lane - 16)][e.word]) {
        return "lane " + std::to_string(e.lane) + " of a WMMA does not repeat lane " + std::to_string(e.lane - 16);
      }
    }
  }
  if (DType(p.form.c) == DType::kI32) return MultiplyIntegers(p, words);
  if (p.form.n == 8) return MultiplyFloats<8>(p, words);
  return p.form.n == 16 ? MultiplyFloats<16>(p, words) : MultiplyFloats<32>(p, words);
}

}  // namespace kiln::emulator
