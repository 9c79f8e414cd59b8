// SPDX-License-Identifier: Apache-2.0
//
// Instructions that the lanes of a warp execute together: PTX ISA, shfl.sync, vote.sync, match.sync, redux.sync, elect.sync, bar.warp.sync,
// ldmatrix, stmatrix, mma.sync.
#include <algorithm>
#include <cstring>

#include "compiler/emulator/runtime/matrix/matrix.h"
#include "tests/ptx/instructions.h"
#include "tests/ptx/machine.h"

namespace kiln::ptx {
namespace {

using Lanes = std::span<Thread*>;

// Meets with those lanes that operand `mask` names; without one, with all that exist.
template <void (*kFinish)(Lanes, const Instruction&), int kMask = -1>
void Together(Thread& t, const Instruction& i) {
  uint32_t lanes = t.block->ExistingLanes(t.index / 32);
  if constexpr (kMask >= 0) lanes = uint32_t(t.Read(i.operands[kMask]));
  t.block->Meet(t, i, lanes, kFinish);
}

Thread* Find(Lanes lanes, uint32_t lane) {
  for (Thread* t : lanes)
    if (t->Lane() == lane) return t;
  return nullptr;
}

void NothingMore(Lanes, const Instruction&) {}

// shfl.sync.mode.b32 d{|p}, a, b, c, mask
void Shuffle(Lanes lanes, const Instruction& i) {
  const size_t a = i.operands.size() - 4;
  std::array<uint64_t, 32> values{};
  for (Thread* t : lanes) values[t->Lane()] = t->Read(i.operands[a]);
  for (Thread* t : lanes) {
    const auto b = uint32_t(t->Read(i.operands[a + 1])) & 31, c = uint32_t(t->Read(i.operands[a + 2]));
    const uint32_t segment = c >> 8 & 31, clamp = c & 31, lane = t->Lane();
    const uint32_t most = (lane & segment) | (clamp & ~segment), least = lane & segment;
    int32_t from = 0;
    bool inside = false;
    if (i.Has("up")) {
      from = int32_t(lane) - int32_t(b), inside = from >= int32_t(most);
    } else if (i.Has("down")) {
      from = int32_t(lane + b), inside = from <= int32_t(most);
    } else if (i.Has("bfly")) {
      from = int32_t(lane ^ b), inside = from <= int32_t(most);
    } else {
      from = int32_t(least | (b & ~segment)), inside = from <= int32_t(most);
    }
    if (!inside) from = int32_t(lane);
    if (Find(lanes, uint32_t(from)) == nullptr) throw Failure("a shuffle from lane " + std::to_string(from) + ", which does not take part");
    t->Write(i.operands[0], values[size_t(from)]);
    if (a == 2) t->Write(i.operands[1], inside);
  }
}

uint32_t Ballot(Lanes lanes, const Instruction& i) {
  uint32_t votes = 0;
  for (Thread* t : lanes)
    if ((t->Read(i.operands[1]) & 1) != 0) votes |= 1u << t->Lane();
  return votes;
}
void Vote(Lanes lanes, const Instruction& i) {
  uint32_t members = 0;
  for (Thread* t : lanes) members |= 1u << t->Lane();
  const uint32_t votes = Ballot(lanes, i);
  const uint32_t result = i.Has("ballot") ? votes : i.Has("all") ? votes == members : i.Has("any") ? votes != 0 : votes == 0 || votes == members;
  for (Thread* t : lanes) t->Write(i.operands[0], result);
}

void Match(Lanes lanes, const Instruction& i) {
  std::array<uint64_t, 32> values{};
  for (Thread* t : lanes) values[t->Lane()] = t->Read(i.operands[1]);
  for (Thread* t : lanes) {
    uint32_t same = 0;
    for (Thread* other : lanes)
      if (values[other->Lane()] == values[t->Lane()]) same |= 1u << other->Lane();
    t->Write(i.operands[0], same);
  }
}

void Reduce(Lanes lanes, const Instruction& i) {
  const bool is_signed = i.type.kind == 's';
  auto result = uint32_t(lanes[0]->Read(i.operands[1]));
  for (Thread* t : lanes.subspan(1)) {
    const auto v = uint32_t(t->Read(i.operands[1]));
    const bool less = is_signed ? int32_t(v) < int32_t(result) : v < result;
    if (i.Has("add")) result += v;
    if (i.Has("and")) result &= v;
    if (i.Has("or")) result |= v;
    if (i.Has("xor")) result ^= v;
    if ((i.Has("min") && less) || (i.Has("max") && !less)) result = v;
  }
  for (Thread* t : lanes) t->Write(i.operands[0], result);
}

// elect.sync d|p, mask
void Elect(Lanes lanes, const Instruction& i) {
  for (Thread* t : lanes) {
    t->Write(i.operands[0], lanes[0]->Lane());
    t->Write(i.operands[1], t == lanes[0]);
  }
}

void ActiveMask(Thread& t, const Instruction& i) { t.Write(i.operands[0], 1u << t.Lane()); }  // threads run one at a time

// The eight rows of a matrix of 16-bit elements, whose addresses lanes 8·matrix … have.
std::array<std::byte*, 8> Rows(Lanes lanes, const Instruction& i, const Operand& address, uint32_t matrix) {
  std::array<std::byte*, 8> rows{};
  const bool generic = !i.Has("shared") && !i.Has("shared::cta");
  for (uint32_t row = 0; row < 8; ++row) {
    Thread* t = Find(lanes, 8 * matrix + row);
    if (t == nullptr) throw Failure("a matrix without all lanes");
    rows[row] = t->Place(generic ? Space::kGeneric : Space::kShared, t->Address(address), 16);
  }
  return rows;
}
// Of an element of a lane's register: its byte in the rows.
std::byte* ElementOf(const std::array<std::byte*, 8>& rows, uint32_t lane, uint32_t half, bool transposed) {
  const uint32_t row = lane / 4, column = lane % 4 * 2 + half;
  return transposed ? rows[column] + row * 2 : rows[row] + column * 2;
}

void LoadMatrix(Lanes lanes, const Instruction& i) {
  const bool transposed = i.Has("trans");
  std::array<std::array<uint32_t, 4>, 32> words{};
  const std::vector<Operand>& to = i.operands[0].parts;
  for (uint32_t m = 0; m < to.size(); ++m) {
    const auto rows = Rows(lanes, i, i.operands[1], m);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      for (uint32_t half = 0; half < 2; ++half) {
        uint16_t element = 0;
        std::memcpy(&element, ElementOf(rows, lane, half, transposed), 2);
        words[lane][m] |= uint32_t(element) << (16 * half);
      }
    }
  }
  for (Thread* t : lanes)
    for (size_t m = 0; m < to.size(); ++m) t->Write(to[m], words[t->Lane()][m]);
}

void StoreMatrix(Lanes lanes, const Instruction& i) {
  const bool transposed = i.Has("trans");
  const std::vector<Operand>& from = i.operands[1].parts;
  for (uint32_t m = 0; m < from.size(); ++m) {
    const auto rows = Rows(lanes, i, i.operands[0], m);
    for (Thread* t : lanes) {
      const auto word = uint32_t(t->Read(from[m]));
      for (uint32_t half = 0; half < 2; ++half) {
        const auto element = uint16_t(word >> (16 * half));
        std::memcpy(ElementOf(rows, t->Lane(), half, transposed), &element, 2);
      }
    }
  }
}

ir::DType MatrixType(const std::string& word) {
  static const std::map<std::string, ir::DType> kTypes = {{"f16", ir::DType::kF16},     {"bf16", ir::DType::kBF16},   {"tf32", ir::DType::kTF32},
                                                          {"e4m3", ir::DType::kF8E4M3}, {"e5m2", ir::DType::kF8E5M2}, {"s8", ir::DType::kI8},
                                                          {"u8", ir::DType::kU8},       {"f32", ir::DType::kF32},     {"s32", ir::DType::kI32}};
  const auto it = kTypes.find(word);
  if (it == kTypes.end()) throw Refusal("a matrix product of ." + word);
  return it->second;
}

// mma {.sp}.sync.aligned.m16n8k16.row.col.d.a.b.c d, a, b, c {, metadata, selector}. The emulator has the units, from the same chapter.
void Multiply(Lanes lanes, const Instruction& i) {
  using namespace kiln::emulator;
  if (lanes.size() != 32) throw Failure("a matrix product without all lanes");
  const std::string& shape = i.words[3];
  const size_t n = shape.find('n'), k = shape.find('k');
  const bool sparse = i.operands.size() == 6;
  const MatrixForm form{MatrixUnit::kMmaSync,
                        uint8_t(std::stoi(shape.substr(1, n - 1))),
                        uint8_t(std::stoi(shape.substr(n + 1, k - n - 1))),
                        uint8_t(std::stoi(shape.substr(k + 1))),
                        uint8_t(MatrixType(i.words[7])),
                        uint8_t(MatrixType(i.words[8])),
                        uint8_t(MatrixType(i.words[9])),
                        uint8_t(sparse ? 1 + i.operands[5].value : 0)};
  std::array<std::array<uint32_t, kMatrixWords>, 32> words{};
  std::array<uint32_t*, 32> pointers;
  const auto read = [&](Thread* t, size_t operand, uint32_t first) {
    const std::vector<Operand>& parts = i.operands[operand].parts;
    for (size_t p = 0; p < parts.size(); ++p) words[t->Lane()][first + p] = uint32_t(t->Read(parts[p]));
  };
  for (Thread* t : lanes) {
    read(t, 1, kWordsOfA);
    read(t, 2, kWordsOfB);
    read(t, 3, kWordsOfC);
    if (sparse) words[t->Lane()][kWordOfMetadata] = uint32_t(t->Read(i.operands[4]));
    pointers[t->Lane()] = words[t->Lane()].data();
  }
  static MatrixUnits units;
  if (const std::string problem = units.Run(form.Pack(), pointers); !problem.empty()) throw Failure(problem);
  for (Thread* t : lanes) {
    const std::vector<Operand>& to = i.operands[0].parts;
    for (size_t p = 0; p < to.size(); ++p) t->Write(to[p], words[t->Lane()][kWordsOfC + p]);
  }
}

Execute DecodeProduct(Instruction& i) {
  const bool sparse = i.words.at(1) == "sp";
  if (sparse) i.words.erase(i.words.begin() + 1);
  if (i.operands.size() != (sparse ? 6 : 4)) throw Refusal("a matrix product of other operands");
  if (i.words.size() != 10 || i.words[1] != "sync" || i.words[4] != "row" || i.words[5] != "col") throw Refusal("an unknown kind of mma");
  for (size_t w = 7; w < 10; ++w) MatrixType(i.words[w]);
  if (i.words[6] != i.words[9]) throw Refusal("a matrix product with two types of sums");
  return Together<Multiply>;
}

}  // namespace

Execute DecodeWarp(Instruction& i) {
  const std::string& name = i.words[0];
  if (name == "activemask") return ActiveMask;
  if (name == "mma") return DecodeProduct(i);
  if (name == "ldmatrix" || name == "stmatrix") {
    if (!i.Has("m8n8") || !i.Has("b16")) throw Refusal("an unknown shape of matrix");
    return name == "ldmatrix" ? Together<LoadMatrix> : Together<StoreMatrix>;
  }
  if (i.words.size() < 2) return nullptr;
  if (name == "bar" && i.words[1] == "warp") return Together<NothingMore, 0>;
  if (name == "match" && i.words[1] == "any") return Together<Match, 2>;
  if (i.words[1] != "sync") return nullptr;
  if (name == "shfl") return i.operands.size() == 6 ? Together<Shuffle, 5> : Together<Shuffle, 4>;
  if (name == "vote") return Together<Vote, 2>;
  if (name == "redux") return Together<Reduce, 2>;
  if (name == "elect") return Together<Elect, 2>;
  return nullptr;
}

}  // namespace kiln::ptx
