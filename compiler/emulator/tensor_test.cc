// SPDX-License-Identifier: Apache-2.0
//
// Tensor copies against element-by-element references, and what is reported of those that are not waited for.
#include <algorithm>
#include <cstring>
#include <random>

#include "compiler/emulator/runtime/tensor_copy.h"
#include "compiler/emulator/test_kernel.h"

namespace kiln::emulator {
namespace {

using llvm::Value;

constexpr const char* kHopper = "emu:sm_90a";
constexpr uint64_t kSeeds = 200;
constexpr uint32_t kMbarrier = 16384;

std::vector<uint32_t> RandomWords(size_t count) {
  std::mt19937 random(5);
  std::vector<uint32_t> words(count);
  for (uint32_t& word : words) word = uint32_t(random());
  return words;
}

// Loads a box and copies what came, word for word, to `out`.
std::vector<std::byte> Loaded(const TensorMapSpec& spec, std::vector<int> at, uint32_t bytes, const std::vector<uint32_t>& input,
                              uint32_t shared_bytes = 0) {
  const uint32_t all = std::max(bytes, shared_bytes);
  Kernel k(kHopper, 32, kMbarrier + 8, input.size());
  k.spec = spec;
  auto& d = *k.device;
  Value* mbarrier = k.Byte(k.shared, kMbarrier);
  k.If(k.Is(k.thread, 0), [&] {
    d.PhaseInit(mbarrier, 1);
    d.PhaseInitFence();
    d.PhaseExpect(mbarrier, k.I32(int(bytes)));
    std::vector<Value*> coordinates;
    for (int c : at) coordinates.push_back(k.I32(c));
    d.TensorLoad(k.shared, k.map(), coordinates, mbarrier, nullptr);
  });
  d.Barrier();
  d.PhaseWait(mbarrier, k.I32(0));
  k.For(int(all / 128), [&](Value* i) {
    Value* word = k.b.CreateAdd(k.b.CreateMul(i, k.I32(32)), k.thread);
    k.Store(k.Load(k.shared, word), k.out(), word);
  });
  if (shared_bytes == 0) ExpectClean(k.Run(input));
  else k.Run(input, {}, /*check=*/false);  // what lies between its rows is read too
  std::vector<std::byte> result(all);
  std::memcpy(result.data(), k.output.data(), all);
  return result;
}

// Rows of 128 bytes have their 16-byte pieces exchanged by row % 8, those of 64 by row / 2 % 4, those of 32 by row / 4 % 2.
uint32_t PieceAt(TensorSwizzle swizzle, uint32_t row, uint32_t piece) {
  switch (swizzle) {
    case TensorSwizzle::kNone: return piece;
    case TensorSwizzle::k32: return piece ^ (row / 4 % 2);
    case TensorSwizzle::k64: return piece ^ (row / 2 % 4);
    case TensorSwizzle::k128: return piece ^ (row % 8);
  }
  return 0;
}

// What the box holds, byte by byte: element (i0, …) of the box is that of the tensor at at + i · step, or fill.
std::vector<std::byte> Reference(const TensorMapSpec& spec, const std::vector<int>& at, const std::vector<uint32_t>& input) {
  const uint32_t element = BytesOf(spec.type), row_bytes = spec.box[0] * element;
  const uint32_t pitch = spec.swizzle == TensorSwizzle::kNone ? row_bytes : 16u << uint32_t(spec.swizzle);
  std::vector<uint32_t> extents(5, 1);
  for (uint32_t d = 0; d < spec.rank; ++d) extents[d] = d == 0 ? spec.box[0] : (spec.box[d] + spec.element_strides[d] - 1) / spec.element_strides[d];
  std::vector<uint64_t> strides(5, 0);
  strides[0] = element;
  for (uint32_t d = 1; d < spec.rank; ++d) strides[d] = spec.strides[d - 1] != 0 ? spec.strides[d - 1] : strides[d - 1] * spec.dims[d - 1];
  const uint32_t elements = extents[0] * extents[1] * extents[2] * extents[3] * extents[4];
  std::vector<std::byte> box(size_t{elements} / extents[0] * pitch);
  const auto* bytes = reinterpret_cast<const std::byte*>(input.data());
  for (uint32_t linear = 0; linear < elements; ++linear) {
    uint32_t rest = linear;
    uint64_t from = 0;
    bool inside = true;
    for (uint32_t d = 0; d < spec.rank; ++d) {
      const int64_t index = at[d] + int64_t(rest % extents[d]) * (d == 0 ? 1 : spec.element_strides[d]);
      rest /= extents[d];
      inside &= index >= 0 && index < int64_t(spec.dims[d]);
      from += uint64_t(index) * strides[d];
    }
    const uint32_t row = linear * element / row_bytes, in_row = linear * element % row_bytes;
    std::byte* to = box.data() + row * pitch + PieceAt(spec.swizzle, row, in_row / 16) * 16 + in_row % 16;
    for (uint32_t i = 0; inside && i < element; ++i) to[i] = bytes[from + i];
  }
  return box;
}

TEST(TensorLoads, EveryTypeRankAndSwizzle) {
  const std::vector<uint32_t> input = RandomWords(8192);
  const TensorMapSpec specs[] = {
      {.type = TensorType::kU8, .rank = 1, .dims = {1000}, .box = {256}},
      {.type = TensorType::kU16, .rank = 2, .dims = {64, 64}, .box = {64, 16}, .swizzle = TensorSwizzle::k128},
      {.type = TensorType::kF16, .rank = 2, .dims = {64, 64}, .box = {32, 32}, .swizzle = TensorSwizzle::k64},
      {.type = TensorType::kBF16, .rank = 2, .dims = {64, 64}, .box = {16, 64}, .swizzle = TensorSwizzle::k32},
      {.type = TensorType::kF32, .rank = 3, .dims = {16, 20, 20}, .box = {8, 5, 4}},
      {.type = TensorType::kI32, .rank = 3, .dims = {32, 8, 8}, .box = {32, 4, 2}, .swizzle = TensorSwizzle::k128},
      {.type = TensorType::kU64, .rank = 4, .dims = {8, 6, 6, 6}, .box = {4, 2, 4, 2}},
      {.type = TensorType::kF64, .rank = 5, .dims = {4, 4, 4, 4, 4}, .box = {4, 2, 2, 2, 4}, .swizzle = TensorSwizzle::k32},
      {.type = TensorType::kU32, .rank = 2, .dims = {64, 64}, .box = {32, 32}, .element_strides = {1, 4, 1, 1, 1}},
      {.type = TensorType::kI64, .rank = 3, .dims = {8, 16, 16}, .box = {8, 8, 7}, .element_strides = {1, 2, 3, 1, 1}},
      {.type = TensorType::kU8, .rank = 2, .dims = {100, 60}, .strides = {128}, .box = {128, 32}, .swizzle = TensorSwizzle::k128},
  };
  for (const TensorMapSpec& spec : specs) {
    for (const int shift : {0, 3, -5, 14}) {
      std::vector<int> at;
      for (uint32_t d = 0; d < spec.rank; ++d) at.push_back(d == 0 ? shift / 2 * int(16 / BytesOf(spec.type)) : shift);
      const std::vector<std::byte> expected = Reference(spec, at, input);
      const auto bytes = uint32_t(expected.size() / 128 * 128);
      ASSERT_EQ(bytes, expected.size()) << "the test copies whole rows of 32 words";
      EXPECT_TRUE(std::ranges::equal(Loaded(spec, at, bytes, input), expected))
          << "type " << int(spec.type) << " rank " << spec.rank << " shift " << shift;
    }
  }
}

// The hardware's swizzles work within rows of their span: narrower ones lie as far apart, and what is between stays.
TEST(TensorLoads, RowsNarrowerThanTheSwizzle) {
  const std::vector<uint32_t> input = RandomWords(4096);
  for (const TensorSwizzle swizzle : {TensorSwizzle::k64, TensorSwizzle::k128}) {
    const TensorMapSpec spec{.type = TensorType::kU16, .rank = 2, .dims = {64, 64}, .box = {16, 16}, .swizzle = swizzle};
    const uint32_t pitch = 16u << uint32_t(swizzle);
    const std::vector<std::byte> expected = Reference(spec, {0, 0}, input), found = Loaded(spec, {0, 0}, 512, input, 16 * pitch);
    for (uint32_t row = 0; row < 16; ++row) {
      for (uint32_t piece = 0; piece < 2; ++piece) {
        const uint32_t at = row * pitch + PieceAt(swizzle, row, piece) * 16;
        EXPECT_TRUE(std::equal(found.begin() + at, found.begin() + at + 16, expected.begin() + at)) << row;
      }
    }
  }
}

TEST(TensorLoads, StartAtMultiplesOf16Bytes) {
  Kernel k(kHopper, 1, kMbarrier + 8);
  k.spec = {.type = TensorType::kF16, .rank = 2, .dims = {16, 16}, .box = {8, 8}};
  Value *mbarrier = k.Byte(k.shared, kMbarrier), *at[] = {k.I32(4), k.I32(0)};
  k.device->PhaseInit(mbarrier, 1);
  k.device->PhaseInitFence();
  k.device->TensorLoad(k.shared, k.map(), at, mbarrier, nullptr);
  ExpectOnly(k.Run(), FindingKind::kMisaligned, "from or to in[2], byte 8 of its tensor's rows");
}

TEST(TensorLoads, FillWithNan) {
  const TensorMapSpec spec{.type = TensorType::kF16, .rank = 2, .dims = {64, 8}, .box = {64, 16}, .fill = TensorFill::kNan};
  const std::vector<std::byte> box = Loaded(spec, {0, 0}, 2048, RandomWords(4096));
  uint16_t value;
  for (size_t i = 64 * 8; i < 64 * 16; ++i) {
    std::memcpy(&value, box.data() + 2 * i, 2);
    EXPECT_EQ(value & 0x7c00, 0x7c00);
    EXPECT_NE(value & 0x03ff, 0);
  }
}

TEST(TensorMaps, RefuseWhatTheDriverRefuses) {
  const TensorMapSpec good{.type = TensorType::kF16, .rank = 2, .address = 4096, .dims = {64, 64}, .box = {64, 64}, .swizzle = TensorSwizzle::k128};
  EXPECT_TRUE(EncodeTensorMap(good));
  const auto refused = [&](auto change) {
    TensorMapSpec spec = good;
    change(spec);
    const auto map = EncodeTensorMap(spec);
    return map ? std::string("accepted") : map.error();
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(refused([](auto& s) { s.rank = 6; }), HasSubstr("tensorRank is 6"));
  EXPECT_THAT(refused([](auto& s) { s.address = 8; }), HasSubstr("globalAddress is not a multiple of 16"));
  EXPECT_THAT(refused([](auto& s) { s.dims[1] = 0; }), HasSubstr("globalDim[1] is 0"));
  EXPECT_THAT(refused([](auto& s) { s.strides[0] = 136; }), HasSubstr("globalStrides[0] is 136"));
  EXPECT_THAT(refused([](auto& s) { s.box[1] = 257; }), HasSubstr("boxDim[1] is 257"));
  EXPECT_THAT(refused([](auto& s) { s.box[0] = 65; }), HasSubstr("multiple of 16"));
  EXPECT_THAT(refused([](auto& s) { s.box[0] = 72; }), HasSubstr("a swizzle of 128 takes at most those"));
  EXPECT_THAT(refused([](auto& s) { s.element_strides[1] = 9; }), HasSubstr("elementStrides[1] is 9"));
  EXPECT_THAT(refused([](auto& s) {
                s.type = TensorType::kU16;
                s.fill = TensorFill::kNan;
              }),
              HasSubstr("NaN fills only"));
}

// Each thread writes a word of a box of 32 words, thread 0 stores it twice from one place.
struct Stores {
  struct Has {
    bool fence = true, barrier = true, commit = true, read_wait = true, last_wait = true, second = true;
    int pending = 0;
  };
  explicit Stores(const Has& has) : k(kHopper, 32) {
    k.spec = {.type = TensorType::kU32, .rank = 1, .dims = {128}, .box = {32}};
    k.map_out = true;
    auto& d = *k.device;
    for (int round = 0; round < (has.second ? 2 : 1); ++round) {
      d.SetLocation(1);
      k.Store(k.b.CreateAdd(k.thread, k.I32(100 * round + 1)), k.shared, k.thread);
      d.SetLocation(2);
      if (has.fence) d.FenceAsyncProxy();
      if (has.barrier) d.Barrier();
      d.SetLocation(3);
      k.If(k.Is(k.thread, 0), [&] {
        Value* at[] = {k.I32(32 * round)};
        d.TensorStore(k.map(), at, k.shared);
        if (has.commit) d.TensorStoreCommit();
        if (round == 0 && has.second && has.read_wait) d.TensorStoreWait(has.pending, true);
      });
      d.SetLocation(4);
      d.Barrier();
    }
    k.If(k.Is(k.thread, 0), [&] {
      if (has.last_wait) d.TensorStoreWait(0, true);
    });
  }
  Kernel k;
};

TEST(TensorStores, SourceIsReusedWhenItWasRead) {
  Stores s({});
  ExpectClean(s.k.RunSeeds(0, kSeeds));
  for (uint32_t i = 0; i < 32; ++i) {
    EXPECT_EQ(s.k.output[i], i + 1);
    EXPECT_EQ(s.k.output[32 + i], i + 101);
  }
}

TEST(TensorStores, SourceIsOverwrittenBeforeItWasRead) {
  for (uint64_t seed : {0, 1}) {
    Stores none({.read_wait = false}), weaker({.pending = 1});
    ExpectAmong(none.k.RunSeeds(seed, 1), FindingKind::kAsyncPending, "which a tensor store by thread 0 reads");
    ExpectAmong(weaker.k.RunSeeds(seed, 1), FindingKind::kAsyncPending, "which a tensor store by thread 0 reads");
  }
}

// Stores write whole pieces of 16 bytes. A box that ends before its row does, or lies behind it, writes nothing else.
TEST(TensorStores, RowsThatEndInsideAPiece) {
  const auto run = [](uint32_t words, int at) {
    Kernel k(kHopper, 32);
    k.spec = {.type = TensorType::kU32, .rank = 2, .dims = {words, 2}, .strides = {256}, .box = {32, 1}};
    k.map_out = true;
    k.Store(k.thread, k.shared, k.thread);
    k.device->FenceAsyncProxy();
    k.device->Barrier();
    k.If(k.Is(k.thread, 0), [&] {
      Value* place[] = {k.I32(at), k.I32(1)};
      k.device->TensorStore(k.map(), place, k.shared);
      k.device->TensorStoreCommit();
      k.device->TensorStoreWait(0, true);
    });
    return k.Run({});
  };
  ExpectOnly(run(30, 0), FindingKind::kOutOfBounds, "rows of 120 bytes end inside a piece of 16: the hardware overwrites the 8 bytes behind them");
  ExpectOnly(run(45, 32), FindingKind::kOutOfBounds, "the hardware overwrites the 12 bytes behind them");
  ExpectClean(run(28, 0));
  ExpectClean(run(45, 0));
  ExpectClean(run(45, 48));
}

TEST(TensorStores, WhatIsMissing) {
  Stores fence({.fence = false}), barrier({.barrier = false}), wait({.last_wait = false, .second = false}),
      commit({.commit = false, .second = false});
  ExpectAmong(fence.k.RunSeeds(0, 1), FindingKind::kUnfenced, "through the asynchronous proxy, which thread");
  EXPECT_FALSE(barrier.k.RunSeeds(0, 4).findings.empty());
  for (uint64_t seed : {0, 1}) {
    ExpectAmong(wait.k.RunSeeds(seed, 1), FindingKind::kAsyncPending, "ends while a tensor store may still read");
    ExpectAmong(commit.k.RunSeeds(seed, 1), FindingKind::kAsyncPending, "ends while a tensor store may still read");
  }
}

TEST(TensorStores, ResultIsReadByTheSameKernel) {
  for (bool whole : {true, false}) {
    Kernel k(kHopper, 32);
    k.spec = {.type = TensorType::kU32, .rank = 1, .dims = {32}, .box = {32}};
    k.map_out = true;
    k.Store(k.thread, k.shared, k.thread);
    k.device->FenceAsyncProxy();
    k.device->Barrier();
    k.If(k.Is(k.thread, 0), [&] {
      Value* at[] = {k.I32(0)};
      k.device->TensorStore(k.map(), at, k.shared);
      k.device->TensorStoreCommit();
      k.device->TensorStoreWait(0, !whole);
    });
    k.device->Barrier();
    k.Store(k.Load(k.out(), k.b.CreateXor(k.thread, k.I32(1))), k.out(), k.b.CreateAdd(k.thread, k.I32(64)));
    if (whole) ExpectClean(k.RunSeeds(0, 8));
    else ExpectAmong(k.RunSeeds(0, 1), FindingKind::kAsyncPending, "which a tensor store by thread 0 writes");
  }
}

// A kernel whose thread 0 combines 32 words of shared memory with the same number of `out`, whatever the type.
Report Reduced(Kernel& k, TensorType type, TensorOp op, const std::vector<uint32_t>& operands) {
  k.spec = {.type = type, .rank = 1, .dims = {128 / BytesOf(type)}, .box = {128 / BytesOf(type)}};
  k.map_out = true;
  k.Store(k.Load(k.in(), k.thread), k.out(), k.thread);
  k.Store(k.Load(k.in(), k.b.CreateAdd(k.thread, k.I32(32))), k.shared, k.thread);
  k.device->FenceAsyncProxy();
  k.device->Barrier();
  k.If(k.Is(k.thread, 0), [&] {
    Value* at[] = {k.I32(0)};
    k.device->TensorReduce(llvm_ir::AtomicOp(op), k.map(), at, k.shared);
    k.device->TensorStoreCommit();
    k.device->TensorStoreWait(0, true);
  });
  return k.Run(operands);
}

uint32_t ExpectedOf(TensorOp op, uint32_t a, uint32_t b) {
  switch (op) {
    case TensorOp::kAdd: return a + b;
    case TensorOp::kMax: return a < b ? b : a;
    case TensorOp::kMin: return a < b ? a : b;
    case TensorOp::kAnd: return a & b;
    case TensorOp::kOr: return a | b;
    case TensorOp::kXor: return a ^ b;
    case TensorOp::kInc: return a >= b ? 0 : a + 1;
    case TensorOp::kDec: return a == 0 || a > b ? b : a - 1;
    default: return b;
  }
}

TEST(TensorReductions, AllOperations) {
  const std::vector<uint32_t> operands = RandomWords(256);
  for (uint32_t op = 0; op < uint32_t(TensorOp::kStore); ++op) {
    Kernel k(kHopper, 32);
    ExpectClean(Reduced(k, TensorType::kU32, TensorOp(op), operands));
    for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(k.output[i], ExpectedOf(TensorOp(op), operands[i], operands[i + 32])) << op;
  }
}

TEST(TensorReductions, TypesThatTheHardwareHas) {
  using enum TensorType;
  const std::vector<uint32_t> operands(256, 0x3c003c00);
  const std::pair<TensorOp, TensorType> have[] = {{TensorOp::kAdd, kF16}, {TensorOp::kAdd, kBF16}, {TensorOp::kAdd, kF32}, {TensorOp::kMax, kF16},
                                                  {TensorOp::kMin, kI64}, {TensorOp::kXor, kF64},  {TensorOp::kAdd, kU64}};
  const std::pair<TensorOp, TensorType> lack[] = {{TensorOp::kAdd, kI64}, {TensorOp::kAdd, kF64}, {TensorOp::kMax, kF32},
                                                  {TensorOp::kInc, kI32}, {TensorOp::kOr, kU16},  {TensorOp::kAdd, kU8}};
  for (const auto& [op, type] : have) {
    Kernel k(kHopper, 32);
    ExpectClean(Reduced(k, type, op, operands));
    const bool halves = type == kF16 && op == TensorOp::kAdd;
    EXPECT_EQ(k.output[0], halves ? 0x40004000u : k.output[0]) << "1 + 1";
  }
  for (const auto& [op, type] : lack) {
    Kernel k(kHopper, 32);
    ExpectOnly(Reduced(k, type, op, operands), FindingKind::kOperands, "a tensor reduction of this type");
  }
}

TEST(TensorCopies, WhatTheyForbid) {
  const auto run = [](TensorMapSpec spec, uint32_t byte, std::vector<int> at, bool map = true) {
    Kernel k(kHopper, 1);
    k.spec = spec;
    if (!map) k.spec.rank = 0;
    k.device->PhaseInit(k.Byte(k.shared, 4088), 1);
    k.device->PhaseInitFence();
    std::vector<Value*> coordinates;
    for (int c : at) coordinates.push_back(k.I32(c));
    k.device->TensorLoad(k.Byte(k.shared, byte), k.map(), coordinates, k.Byte(k.shared, 4088), nullptr);
    return k.Run();
  };
  const TensorMapSpec spec{.type = TensorType::kU32, .rank = 1, .dims = {256}, .box = {32}};
  ExpectOnly(run(spec, 64, {0}), FindingKind::kMisaligned, "shared memory at byte 64, which is not a multiple of 128");
  ExpectOnly(run(spec, 4096, {0}), FindingKind::kOutOfBounds, "128 bytes at shared memory at byte 4096; the block has 4096");
  ExpectOnly(run(spec, 0, {0, 0}), FindingKind::kOperands, "of 2 dimensions with a map of 1");
  ExpectOnly(run(spec, 0, {0}, false), FindingKind::kOperands, "without a tensor map");
  ExpectOnly(run({.type = TensorType::kU32, .rank = 1, .dims = {400}, .box = {32}}, 0, {256}), FindingKind::kOutOfBounds, "past the end of in");
  ExpectOnly(run(spec, 0, {0}), FindingKind::kAsyncPending, "before a tensor load to shared memory at byte 0 had come");
}

}  // namespace
}  // namespace kiln::emulator
