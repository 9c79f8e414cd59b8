// SPDX-License-Identifier: Apache-2.0
//
// What each kind of finding says: both statements where there are two, the thread and its block, and the address and the buffer's element
// where it is about memory or registers. One planted defect for each way to break a rule.
#include <algorithm>
#include <ostream>

#include "compiler/emulator/names.h"
#include "compiler/emulator/test_kernel.h"

namespace kiln::emulator {
namespace {

using llvm::Value;
using enum FindingKind;

constexpr uint32_t kOther = 1024, kBarriers = 2048;  // bytes where the second tile and the mbarriers begin
constexpr const char* kNone = "";

struct Planted {
  const char* name;
  uint32_t threads;
  FindingKind kind;
  uint32_t statement, other;  // in any order; other 0: there is no second
  const char* buffer;         // kNone: it is about no memory
  uint64_t address, element;
  const char* says;  // of what stands against it
  void (*plant)(Kernel&);
  uint32_t blocks = 1;
};
std::ostream& operator<<(std::ostream& out, const Planted& planted) { return out << planted.name; }

void At(Kernel& k, uint32_t statement) { k.device->SetLocation(statement); }
void ByThread(Kernel& k, int thread, const std::function<void()>& then) { k.If(k.Is(k.thread, thread), then); }
Value* Mbarrier(Kernel& k) { return k.Byte(k.shared, kBarriers); }
Value* Misaligned(Kernel& k, Value* base) {
  return k.b.CreateAlignedLoad(k.b.getInt32Ty(), k.b.CreateConstGEP1_32(k.b.getInt8Ty(), base, 2), llvm::Align(4));
}

// Statement 1.
void InitMbarrier(Kernel& k, uint32_t arrivals, bool fence = true) {
  At(k, 1);
  ByThread(k, 0, [&] {
    k.device->PhaseInit(Mbarrier(k), arrivals);
    if (fence) k.device->PhaseInitFence();
  });
  k.device->Barrier();
}

// Statement 2: the first tile gets values that every thread may read.
void Fill(Kernel& k, bool fence = true) {
  At(k, 2);
  for (int i = 0; i < 4; ++i) k.Store(k.I32(0), k.shared, k.b.CreateAdd(k.b.CreateAnd(k.thread, k.I32(63)), k.I32(64 * i)));
  if (fence) k.device->FenceAsyncProxy();
  k.device->Barrier();
}

void Box(Kernel& k, bool of_results) {
  k.spec = {.type = TensorType::kU32, .rank = 1, .dims = {256}, .box = {32}};
  k.map_out = of_results;
}
void Load(Kernel& k, uint32_t byte, int first = 0) {
  Box(k, false);
  Value* at[] = {k.I32(first)};
  k.device->PhaseExpect(Mbarrier(k), k.I32(128));
  k.device->TensorLoad(k.Byte(k.shared, byte), k.map(), at, Mbarrier(k), nullptr);
}
void Store(Kernel& k) {
  Box(k, true);
  Value* at[] = {k.I32(0)};
  k.device->TensorStore(k.map(), at, k.shared);
  k.device->TensorStoreCommit();
}

// Statement 3: of the first tile with itself, in registers 0 to 3 of fragment 7.
std::vector<Value*> Product(Kernel& k, uint32_t byte = 0) {
  const auto rows = target::MmaInstructions(**target::Find("emu:sm_90a"));
  const auto row =
      std::ranges::find_if(rows, [](const auto& r) { return r.IsByGroup() && r.n == 8 && r.a == ir::DType::kF16 && r.c == ir::DType::kF32; });
  At(k, 2);
  for (int i = 0; i < 4; ++i) k.Store(k.I32(0), k.shared, k.b.CreateAdd(k.thread, k.I32(128 * i)));
  k.device->FenceAsyncProxy();
  k.device->Barrier();
  At(k, 3);
  Value* address = k.b.CreateAnd(k.b.CreatePtrToInt(k.Byte(k.shared, byte), k.b.getInt64Ty()), k.b.getInt64(0x3ffff));
  Value* descriptor[] = {k.b.CreateOr(k.b.CreateLShr(address, 4), k.b.getInt64(uint64_t{128 / 16} << 16 | uint64_t{256 / 16} << 32))};
  const std::vector<Value*> zeros(4, llvm::ConstantFP::get(k.b.getFloatTy(), 0));
  auto c = k.device->MmaGroup(*row, descriptor, descriptor, zeros, false, false, false);
  k.device->UseRegisters(7, 0, 4);
  return c;
}
void Write(Kernel& k, const std::vector<Value*>& c) { k.Store(k.b.CreateBitCast(c[2], k.b.getInt32Ty()), k.out(), k.thread); }

const Planted kPlanted[] = {
    // --- races ---
    {"RaceInSharedMemory", 64, kRace, 3, 4, "b1", 20, 5, "with no barrier between them", [](Kernel& k) {
       Fill(k);
       At(k, 3);
       ByThread(k, 0, [&] { k.Store(k.I32(1), k.shared, k.I32(5)); });
       At(k, 4);
       ByThread(k, 33, [&] { k.Store(k.Load(k.shared, k.I32(5)), k.out(), k.thread); });
     }},
    {"RaceInGlobalMemory", 64, kRace, 3, 4, "out", 36, 9, "with no barrier between them", [](Kernel& k) {
       At(k, 3);
       ByThread(k, 0, [&] { k.Store(k.I32(1), k.out(), k.I32(9)); });
       At(k, 4);
       ByThread(k, 33, [&] { k.Store(k.I32(2), k.out(), k.I32(9)); });
     }},
    {"RaceOfBlocks", 32, kRace, 3, 3, "out", 28, 7, "thread 4 of block (", [](Kernel& k) {
       At(k, 3);
       ByThread(k, 4, [&] { k.Store(k.device->BlockIndex(0), k.out(), k.I32(7)); });
     }, 2},
    // --- what was not waited for ---
    {"AsyncCopyRead", 32, kAsyncPending, 4, 3, "b1", 24, 6, "an asynchronous copy to it by thread 2", [](Kernel& k) {
       ByThread(k, 2, [&] {
         At(k, 3);
         k.device->CopyAsync(k.At(k.shared, k.I32(6)), k.At(k.in(), k.I32(6)), 4, k.I32(4));
         k.device->AsyncCommit();
         At(k, 4);
         k.Store(k.Load(k.shared, k.I32(6)), k.out(), k.thread);
       });
     }},
    {"TensorLoadRead", 32, kAsyncPending, 4, 3, "b1", 12, 3, "a tensor load (on the mbarrier at byte 2048)", [](Kernel& k) {
       InitMbarrier(k, 1);
       ByThread(k, 0, [&] {
         At(k, 3);
         Load(k, 0);
         At(k, 4);
         k.Store(k.Load(k.shared, k.I32(3)), k.out(), k.thread);
       });
     }},
    {"TensorLoadLost", 32, kAsyncPending, 3, 0, "b2", 1024, 0, "nobody waited for it", [](Kernel& k) {
       InitMbarrier(k, 1);
       At(k, 3);
       ByThread(k, 0, [&] { Load(k, kOther); });
     }},
    {"TensorStoreOverwritten", 64, kAsyncPending, 4, 3, "b1", 8, 2, "a tensor store by thread 0", [](Kernel& k) {
       Fill(k);
       ByThread(k, 0, [&] {
         At(k, 3);
         Store(k);
         At(k, 4);
         k.Store(k.I32(1), k.shared, k.I32(2));
         k.device->TensorStoreWait(0, false);
       });
     }},
    {"TensorStoreLost", 64, kAsyncPending, 3, 0, "b1", 0, 0, "nothing waited for it", [](Kernel& k) {
       Fill(k);
       At(k, 3);
       ByThread(k, 0, [&] { Store(k); });
     }},
    {"ProductOperandOverwritten", 128, kAsyncPending, 4, 3, "b1", 20, 5, "which wgmma of threads 0-127 reads", [](Kernel& k) {
       const auto c = Product(k);
       At(k, 4);
       ByThread(k, 9, [&] { k.Store(k.I32(1), k.shared, k.I32(5)); });
       Write(k, k.device->MmaWait(c, 0));
     }},
    // --- registers of wgmma ---
    {"ProductRead", 128, kInFlight, 4, 3, "b7", 2, 2, "which wgmma writes", [](Kernel& k) {
       const auto c = Product(k);
       At(k, 4);
       Value* early = k.b.CreateFMul(c[2], llvm::ConstantFP::get(k.b.getFloatTy(), 2));
       auto done = k.device->MmaWait(c, 0);
       done[2] = early;
       Write(k, done);
     }},
    {"ProductChanged", 128, kInFlight, 4, 3, "b7", 1, 1, "which wgmma writes", [](Kernel& k) {
       auto c = Product(k);
       At(k, 4);
       c[1] = llvm::ConstantFP::get(k.b.getFloatTy(), 1);
       Write(k, k.device->MmaWait(c, 0));
     }},
    {"RegisterReplaced", 128, kInFlight, 4, 3, "b7", 3, 3, "which wgmma uses", [](Kernel& k) {
       const auto c = Product(k);
       At(k, 4);
       k.device->AssignRegister(7, 3, k.I32(0));
       Write(k, k.device->MmaWait(c, 0));
     }},
    {"ProductLost", 128, kInFlight, 3, 0, "b7", 0, 0, "never waited for", [](Kernel& k) { Product(k); }},
    // --- proxies ---
    {"NoProxyFence", 64, kUnfenced, 3, 2, "b1", 0, 0, "with no proxy fence behind", [](Kernel& k) {
       Fill(k, false);
       At(k, 3);
       ByThread(k, 0, [&] {
         Store(k);
         k.device->TensorStoreWait(0, false);
       });
     }},
    {"NoFenceAfterInitialisation", 32, kUnfenced, 3, 1, "bar", 2048, 0, "its initialisation by thread 0", [](Kernel& k) {
       InitMbarrier(k, 1, false);
       ByThread(k, 0, [&] {
         At(k, 3);
         Load(k, 0);
         k.device->PhaseWait(Mbarrier(k), k.I32(0));
       });
     }},
    // --- one access ---
    {"Uninitialised", 32, kUninitialized, 3, 0, "b1", 16, 4, "which nobody wrote", [](Kernel& k) {
       At(k, 3);
       ByThread(k, 8, [&] { k.Store(k.Load(k.shared, k.I32(4)), k.out(), k.thread); });
     }},
    {"BeyondSharedMemory", 1, kOutOfBounds, 3, 0, "bar", 4096, 512, "the block has 4096 bytes", [](Kernel& k) {
       At(k, 3);
       k.Store(k.I32(1), k.shared, k.I32(1024));
     }},
    {"BeyondATensor", 1, kOutOfBounds, 3, 0, "out", 1024, 256, "past the end of out", [](Kernel& k) {
       At(k, 3);
       k.Store(k.I32(1), k.out(), k.I32(256));
     }},
    {"BoxBeyondSharedMemory", 32, kOutOfBounds, 3, 0, "bar", 4096, 512, "the block has 4096 bytes", [](Kernel& k) {
       InitMbarrier(k, 1);
       At(k, 3);
       ByThread(k, 0, [&] { Load(k, 4096); });
     }},
    {"OperandBeyondSharedMemory", 128, kOutOfBounds, 3, 0, "bar", 4096, 512, "wgmma of threads 0-127 reads", [](Kernel& k) { Product(k, 3072); }},
    {"MisalignedInSharedMemory", 1, kMisaligned, 3, 0, "b1", 2, 0, "not a multiple of 4", [](Kernel& k) {
       At(k, 3);
       k.Store(Misaligned(k, k.shared), k.out(), k.thread);
     }},
    {"MisalignedInATensor", 1, kMisaligned, 3, 0, "in", 2, 0, "not a multiple of 4", [](Kernel& k) {
       At(k, 3);
       k.Store(Misaligned(k, k.in()), k.out(), k.thread);
     }},
    {"MisalignedRow", 32, kMisaligned, 3, 0, "b1", 8, 2, "not a multiple of 16", [](Kernel& k) {
       Fill(k);
       At(k, 3);
       k.Store(k.device->LoadMatrix(k.Byte(k.shared, 8), 1, false)[0], k.out(), k.thread);
     }},
    {"MisalignedBox", 32, kMisaligned, 3, 0, "b1", 64, 16, "not a multiple of 128", [](Kernel& k) {
       InitMbarrier(k, 1);
       At(k, 3);
       ByThread(k, 0, [&] { Load(k, 64); });
     }},
    {"MisalignedBoxOfATensor", 32, kMisaligned, 3, 0, "in", 8, 2, "not a multiple of 16", [](Kernel& k) {
       InitMbarrier(k, 1);
       At(k, 3);
       ByThread(k, 0, [&] { Load(k, 0, 2); });
     }},
    // --- barriers ---
    {"BarrierThatSomeDoNotReach", 64, kDivergence, 3, 0, kNone, 0, 0, "32-63 ended", [](Kernel& k) {
       At(k, 3);
       k.If(k.Below(k.thread, 32), [&] { k.device->Barrier(); });
     }},
    {"DifferentBarriers", 64, kDivergence, 3, 4, kNone, 0, 0, "waits at another", [](Kernel& k) {
       At(k, 3);
       k.If(k.Below(k.thread, 32), [&] { k.device->Barrier(); k.Store(k.I32(1), k.out(), k.thread); }, [&] {
         At(k, 4);
         k.device->Barrier();
       });
     }},
    {"LanesApart", 32, kDivergence, 3, 4, kNone, 0, 0, "a lane of the same warp", [](Kernel& k) {
       At(k, 3);
       k.If(k.Below(k.thread, 16), [&] { k.Store(k.device->ShuffleXor(k.thread, 1), k.out(), k.thread); }, [&] {
         At(k, 4);
         k.Store(k.device->ShuffleXor(k.thread, 2), k.out(), k.thread);
       });
     }},
    {"NamedBarrierOfOtherSize", 96, kDivergence, 3, 4, kNone, 0, 0, "came as one of", [](Kernel& k) {
       At(k, 3);
       k.If(k.Below(k.thread, 32), [&] { k.device->NamedBarrier(1, 64); }, [&] {
         At(k, 4);
         k.device->NamedBarrier(1, 96);
       });
     }},
    {"DeadlockAtTwoPlaces", 64, kDeadlock, 3, 4, "bar", 2048, 0, "threads 0-31 wait for parity 0 of the mbarrier at byte 2048 (bar[0])", [](Kernel& k) {
       InitMbarrier(k, 1);
       At(k, 3);
       k.If(k.Below(k.thread, 32), [&] { k.device->PhaseWait(Mbarrier(k), k.I32(0)); }, [&] {
         At(k, 4);
         k.device->NamedBarrier(2, 64);
       });
     }},
    {"DeadlockAtOnePlace", 32, kDeadlock, 3, 1, "bar", 2048, 0, "1 of 1 arrivals", [](Kernel& k) {
       InitMbarrier(k, 1);
       At(k, 3);
       k.device->PhaseWait(Mbarrier(k), k.I32(0));
     }},
    // --- mbarriers ---
    {"OneArrivalTooMany", 64, kMbarrier, 4, 3, "bar", 2048, 0, "the last to do something to it was thread 0 of block (0, 0, 0)", [](Kernel& k) {
       InitMbarrier(k, 1);
       At(k, 3);
       ByThread(k, 0, [&] { k.device->PhaseExpect(Mbarrier(k), k.I32(16)); });
       k.device->Barrier();
       At(k, 4);
       ByThread(k, 33, [&] { k.device->PhaseArrive(Mbarrier(k), nullptr); });
     }},
    {"MbarrierNotInitialised", 32, kMbarrier, 3, 0, "bar", 2048, 0, "none was initialised", [](Kernel& k) {
       At(k, 3);
       k.device->PhaseWait(Mbarrier(k), k.I32(0));
     }},
    {"MbarrierInitialisedLate", 64, kMbarrier, 3, 1, "bar", 2048, 0, "which thread 0 initialised with no barrier", [](Kernel& k) {
       At(k, 1);
       ByThread(k, 0, [&] { k.device->PhaseInit(Mbarrier(k), 2); });
       At(k, 3);
       ByThread(k, 33, [&] { k.device->PhaseArrive(Mbarrier(k), nullptr); });
     }},
    {"MbarrierInitialisedInUse", 32, kMbarrier, 3, 2, "bar", 2048, 0, "again while it is in use", [](Kernel& k) {
       InitMbarrier(k, 2);
       ByThread(k, 0, [&] {
         At(k, 2);
         k.device->PhaseArrive(Mbarrier(k), nullptr);
         At(k, 3);
         k.device->PhaseInit(Mbarrier(k), 2);
       });
     }},
    {"MbarrierAsMemory", 32, kMbarrier, 3, 1, "bar", 2048, 0, "as if it were ordinary memory", [](Kernel& k) {
       InitMbarrier(k, 1);
       At(k, 3);
       ByThread(k, 0, [&] { k.Store(k.I32(1), Mbarrier(k), k.I32(0)); });
     }},
    // --- what is about no memory ---
    {"NotUniform", 32, kNotUniform, 3, 0, kNone, 0, 0, "than lane 0", [](Kernel& k) {
       At(k, 3);
       k.Store(k.device->Uniform(k.thread), k.out(), k.thread);
     }},
    {"Operands", 64, kOperands, 3, 0, kNone, 0, 0, "barrier 1 of 48 threads", [](Kernel& k) {
       At(k, 3);
       k.device->NamedBarrier(1, 48);
     }},
};

class FindingsOf : public ::testing::TestWithParam<Planted> {};

// The finding that was planted, under one of many orders of the threads; that which is first may hide it.
Finding Found(const Planted& planted) {
  Kernel k("emu:sm_90a", planted.threads);
  k.Name("b1", 0, 256);
  k.Name("b2", kOther, 256);
  k.Name("bar", kBarriers, 16);
  planted.plant(k);
  std::string others;
  for (uint64_t seed = 0; seed < 40; seed += 2) {
    for (const Finding& finding : k.RunSeeds(seed, 1, planted.blocks).findings) {
      if (finding.kind == planted.kind && std::minmax(finding.location, finding.other_location) == std::minmax(planted.statement, planted.other))
        return finding;
      others += "\n" + Describe(finding, {});
    }
  }
  ADD_FAILURE() << "it was not found, but" << others;
  return {};
}

TEST_P(FindingsOf, SayWhoWhereAndWhat) {
  const Planted& planted = GetParam();
  const Finding finding = Found(planted);
  EXPECT_LT(finding.thread, planted.threads);
  EXPECT_LT(finding.block[0], planted.blocks);
  const std::string message = Message(finding, {});
  EXPECT_THAT(message, ::testing::HasSubstr(planted.says));
  EXPECT_THAT(Describe(finding, {}), ::testing::HasSubstr("in thread " + std::to_string(finding.thread) + " of block ("));
  if (planted.buffer == kNone) {
    EXPECT_TRUE(finding.place.elements.empty());
    return;
  }
  EXPECT_EQ(finding.place.address, planted.address);
  ASSERT_FALSE(finding.place.elements.empty()) << message;
  EXPECT_EQ(ElementOf(finding, {}).buffer, planted.buffer);
  EXPECT_EQ(ElementOf(finding, {}).number, planted.element);
  EXPECT_THAT(message, ::testing::HasSubstr(planted.buffer)) << "people read it there";
}

INSTANTIATE_TEST_SUITE_P(Each, FindingsOf, ::testing::ValuesIn(kPlanted), [](const auto& info) { return std::string(info.param.name); });

TEST(Planted, OfEveryKind) {
  for (size_t kind = 0; kind <= size_t(kInFlight); ++kind) {
    EXPECT_TRUE(std::ranges::any_of(kPlanted, [&](const Planted& p) { return size_t(p.kind) == kind; })) << Name(FindingKind(kind));
  }
}

// A buffer goes by its name in the program; what a user calls like a number of the compiler's keeps its name.
TEST(Names, OfBuffersAndTensors) {
  const Names names{.statements = {}, .buffers = {"a", "tile"}, .allocated = {}, .params = {}};
  const Finding finding{.kind = kRace, .message = "%b1[2] and %b7[0], which b1[3] follows", .place = {.address = 0, .elements = {{"%b1", 2}}}};
  EXPECT_EQ(Message(finding, names), "tile[2] and the compiler's b7[0], which b1[3] follows");
  EXPECT_EQ(ElementOf(finding, names).buffer, "tile");
  EXPECT_EQ(Message(finding, {}), "b1[2] and b7[0], which b1[3] follows");
}

// Of two buffers of one name each is told by its line; of those that share bytes, the finding's own statement decides, whole names alone.
TEST(Names, OfNamesakes) {
  const Names names{.statements = {{}, {"p.py", 7, "copy %tile[0] -> %C[0]"}, {"p.py", 9, "copy %tile_1[0] -> %C[0]"}},
                    .buffers = {"tile", "tile_1"},
                    .allocated = {3, 5},
                    .params = {}};
  const Finding finding{.kind = kUninitialized,
                        .message = "%b0[2, 1] or %b1[0], of 4",
                        .location = 2,
                        .other_location = 1,
                        .place = {.address = 0, .elements = {{"%b0", 2}, {"%b1", 0}}}};
  EXPECT_EQ(Message(finding, names), "tile[2, 1] (of line 3) or tile_1[0] (of line 5), of 4");
  EXPECT_EQ(ElementOf(finding, names).buffer, "tile_1");
}

TEST(Names, OfStatementsWhereThreadsAre) {
  const Names names{
      .statements = {{}, {"/a/p.py", 7, "barrier"}, {"", 9, "barrier"}, {"", 0, "barrier"}}, .buffers = {}, .allocated = {}, .params = {}};
  const Finding finding{.kind = kDeadlock,
                        .message = "threads 0 wait (statement 1); 1 wait (statement 2); 2 wait (statement 3); 3 wait (statement 12)"};
  EXPECT_EQ(Message(finding, names), "threads 0 wait (p.py:7); 1 wait (line 9); 2 wait (statement 3); 3 wait (statement 12)");
}

}  // namespace
}  // namespace kiln::emulator
