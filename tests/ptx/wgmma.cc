// SPDX-License-Identifier: Apache-2.0
//
// PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". Operands are read when the product is issued, or as late as its
// wait; sums come into the registers then.
#include <algorithm>
#include <bit>
#include <cstring>

#include "compiler/emulator/runtime/matrix/aligned_sum.h"
#include "compiler/emulator/runtime/matrix/sparse.h"
#include "tests/ptx/instructions.h"
#include "tests/ptx/machine.h"
#include "tests/ptx/numbers.h"

namespace kiln::ptx {
namespace {

using Threads = std::span<Thread*>;
constexpr uint32_t kRows = 64;

// wgmma.mma_async {.sp}.sync.aligned.m64n16k32.d.a.b d, a, b {, metadata, selector}, scale-d
//     {, imm-scale-a, imm-scale-b {, imm-trans-a}, imm-trans-b}
struct Shape {
  bool sparse;
  size_t scale;  // the operand
  uint32_t n, k;
  Type a, b;
  bool integers, a_in_registers, a_transposed, b_transposed;

  explicit Shape(const Instruction& i)
      : sparse(i.words.at(2) == "sp"),
        scale(sparse ? 5 : 3),
        a(ParseType(i.words.at(sparse ? 7 : 6))),
        b(ParseType(i.words.at(sparse ? 8 : 7))),
        integers(i.words.at(sparse ? 6 : 5) == "s32") {
    const std::string& shape = i.words.at(sparse ? 5 : 4);
    const size_t at_n = shape.find('n'), at_k = shape.find('k');
    n = uint32_t(std::stoi(shape.substr(at_n + 1, at_k - at_n - 1)));
    k = uint32_t(std::stoi(shape.substr(at_k + 1)));
    a_in_registers = i.operands.at(1).kind == Operand::Kind::kVector;
    const size_t first = scale + 3, count = i.operands.size();
    a_transposed = !a_in_registers && count > first && i.operands[first].value != 0;
    b_transposed = count > first && i.operands[count - 1].value != 0;
  }
  uint32_t KeptK() const { return sparse ? k / 2 : k; }
};

// "Matrix Descriptor Format", and the canonical layouts of "Strides": atoms of 8 rows, each as long as the swizzle, or of 16 bytes.
struct Descriptor {
  uint32_t start, leading, stride, width;

  explicit Descriptor(uint64_t bits)
      : start(uint32_t(bits & 0x3fff) * 16), leading(uint32_t(bits >> 16 & 0x3fff) * 16), stride(uint32_t(bits >> 32 & 0x3fff) * 16) {
    constexpr uint32_t kWidths[] = {16, 128, 64, 32};
    width = kWidths[bits >> 62];
  }
  // Of an element: `along` counts bytes in the direction that is contiguous, `across` the lines in the other one.
  uint32_t Address(uint32_t along, uint32_t across, bool transposed) const {
    const uint32_t atom = along / width, inside = along % width;
    // k is contiguous: atoms follow along k by the leading offset (with a swizzle, k stays in one), and across by the stride. Transposed and
    // without a swizzle the two change places.
    const uint32_t by_atom = transposed ? (width == 16 ? stride : leading) : width == 16 ? leading : width;
    const uint32_t by_lines = transposed && width == 16 ? leading : stride;
    const uint32_t linear = start + atom * by_atom + across / 8 * by_lines + across % 8 * width + inside;
    return linear ^ ((linear >> 7 & (width / 16 - 1)) << 4);
  }
};

double Number(Type type, uint32_t bits) {
  if (type.kind == 't') return std::bit_cast<float>(bits & ~0x1fffu);
  if (type.kind == 's') return double(int8_t(bits));
  if (type.kind == 'u') return double(uint8_t(bits));
  return Widen(FormatOf(type), bits);
}

// Row-major: `rows` by k.
std::vector<float> FromShared(Block& block, uint64_t bits, Type type, uint32_t rows, uint32_t k, bool transposed) {
  const Descriptor descriptor(bits);
  const uint32_t bytes = type.Bytes();
  std::vector<float> values(size_t{rows} * k);
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t c = 0; c < k; ++c) {
      const uint32_t address = transposed ? descriptor.Address(row * bytes, c, true) : descriptor.Address(c * bytes, row, false);
      const auto [owner, offset] = block.InCluster(address, bytes);
      uint32_t element = 0;
      std::memcpy(&element, owner->shared.data() + offset, bytes);
      values[size_t{row} * k + c] = float(Number(type, element));
    }
  }
  return values;
}

// Each warp has 16 rows, each lane four words of them.
std::vector<float> FromRegisters(const std::vector<uint32_t>& words, Type type, uint32_t k) {
  const uint32_t each = 32 / type.bits;
  std::vector<float> values(size_t{kRows} * k);
  for (uint32_t t = 0; t < 128; ++t) {
    for (uint32_t w = 0; w < 4; ++w) {
      const uint32_t row = t / 32 * 16 + t % 32 / 4 + w % 2 * 8;
      for (uint32_t e = 0; e < each; ++e) {
        const uint32_t column = (t % 4 + w / 2 * 4) * each + e, word = words[t * 4 + w];
        values[size_t{row} * k + column] = float(Number(type, type.bits == 32 ? word : word >> (e * type.bits) & ((1u << type.bits) - 1)));
      }
    }
  }
  return values;
}

// visit(row, column, thread, register) for each sum.
template <typename Visit>
void ForEachSum(uint32_t n, Visit visit) {
  for (uint32_t t = 0; t < 128; ++t)
    for (uint32_t r = 0; r < n / 2; ++r) visit(t / 32 * 16 + t % 32 / 4 + r / 2 % 2 * 8, r / 4 * 8 + t % 4 * 2 + r % 2, t, r);
}

// The emulator knows how metadata lie, from the same chapter; they are alike for all types of one size.
std::vector<float> Dense(const Shape& shape, const std::vector<float>& kept, const Product& product) {
  using namespace kiln::emulator;
  const ir::DType type = shape.a.bits == 32 ? ir::DType::kTF32 : shape.a.bits == 16 ? ir::DType::kF16 : ir::DType::kI8;
  const auto selector = uint8_t(product.instruction->operands[4].value);
  const MatrixForm form{MatrixUnit::kWgmma, kRows, uint8_t(shape.n / 8), uint8_t(shape.k), uint8_t(type), uint8_t(type), 0, uint8_t(1 + selector)};
  std::vector<float> dense;
  if (const std::string problem = Spread(form, kRows, kept, product.metadata, dense); !problem.empty()) throw Failure(problem);
  return dense;
}

void Execute128(Threads threads, const Product& product) {
  const Instruction& i = *product.instruction;
  const Shape shape(i);
  Block& block = *threads[0]->block;
  const std::vector<Operand>& sums = i.operands[0].parts;
  std::vector<float> a = shape.a_in_registers ? FromRegisters(product.a_words, shape.a, shape.KeptK())
                                              : FromShared(block, product.a, shape.a, kRows, shape.KeptK(), shape.a_transposed);
  if (shape.sparse) a = Dense(shape, a, product);
  const std::vector<float> by_column = FromShared(block, product.b, shape.b, shape.n, shape.k, shape.b_transposed);
  std::vector<float> b(by_column.size()), c(size_t{kRows} * shape.n);
  for (uint32_t column = 0; column < shape.n; ++column)
    for (uint32_t k = 0; k < shape.k; ++k) b[size_t{k} * shape.n + column] = by_column[size_t{column} * shape.k + k];
  if (product.adds) {
    ForEachSum(shape.n, [&](uint32_t row, uint32_t column, uint32_t t, uint32_t r) {
      c[size_t{row} * shape.n + column] = std::bit_cast<float>(uint32_t(threads[t]->Read(sums[r])));
    });
  }
  if (shape.integers) {
    for (size_t place = 0; place < c.size(); ++place) {
      auto sum = std::bit_cast<uint32_t>(c[place]);
      for (uint32_t k = 0; k < shape.k; ++k) sum += uint32_t(int32_t(a[place / shape.n * shape.k + k] * b[k * shape.n + place % shape.n]));
      c[place] = std::bit_cast<float>(sum);
    }
  } else {
    emulator::AddAligned(shape.a.bits == 8 ? emulator::kFloat8Adder : emulator::kFloatAdder, a, b, c, shape.n, shape.k);
  }
  ForEachSum(shape.n, [&](uint32_t row, uint32_t column, uint32_t t, uint32_t r) {
    threads[t]->Write(sums[r], std::bit_cast<uint32_t>(c[size_t{row} * shape.n + column]));
  });
}

Products& ProductsOf(Threads threads) { return threads[0]->block->products.at(threads[0]->index / 128); }

void Issue(Threads threads, const Instruction& i) {
  const Shape shape(i);
  Product product{.instruction = &i, .adds = (threads[0]->Read(i.operands[shape.scale]) & 1) != 0, .b = threads[0]->Read(i.operands[2])};
  if (!shape.a_in_registers) product.a = threads[0]->Read(i.operands[1]);
  for (Thread* t : threads) {
    if (t->Read(i.operands[2]) != product.b || (!shape.a_in_registers && t->Read(i.operands[1]) != product.a)) {
      throw Failure("threads with several descriptors");
    }
    if (shape.sparse) product.metadata.push_back(uint32_t(t->Read(i.operands[3])));
    if (!shape.a_in_registers) continue;
    for (const Operand& word : i.operands[1].parts) product.a_words.push_back(uint32_t(t->Read(word)));
  }
  if (threads[0]->block->copies_at_once) return Execute128(threads, product);
  ProductsOf(threads).open.push_back(std::move(product));
}
void Commit(Threads threads, const Instruction&) {
  Products& products = ProductsOf(threads);
  products.groups.push_back(std::move(products.open));
  products.open.clear();
}
void Wait(Threads threads, const Instruction& i) {
  Products& products = ProductsOf(threads);
  for (const uint64_t most = threads[0]->Read(i.operands[0]); products.groups.size() > most; products.groups.pop_front()) {
    for (const Product& product : products.groups.front()) Execute128(threads, product);
  }
}

template <void (*kFinish)(Threads, const Instruction&)>
void Together(Thread& t, const Instruction& i) {
  t.block->MeetGroup(t, i, kFinish);
}
void Nothing(Thread&, const Instruction&) {}

}  // namespace

Execute DecodeGroupProduct(Instruction& i) {
  if (i.words[0] != "wgmma") return nullptr;
  if (i.words[1] == "fence") return Nothing;
  if (i.words[1] == "commit_group") return Together<Commit>;
  if (i.words[1] == "wait_group") return Together<Wait>;
  const Shape shape(i);
  if (shape.a.kind == 0 || shape.b.kind == 0 || (!shape.integers && i.words[shape.sparse ? 6 : 5] != "f32"))
    throw Refusal("a wgmma of unknown types");
  const size_t signs = shape.scale + 1;
  if (!shape.integers && (i.operands.size() < signs + 2 || i.operands[signs].value != 1 || i.operands[signs + 1].value != 1))
    throw Refusal("a wgmma of negated operands");
  return Together<Issue>;
}

}  // namespace kiln::ptx
