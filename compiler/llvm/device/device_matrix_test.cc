// SPDX-License-Identifier: Apache-2.0
//
// Matrix instructions of Device, and the loads and stores that go with them, on every target.
#include <gmock/gmock.h>

#include <algorithm>

#include "compiler/llvm/device/device_test.h"

namespace kiln::llvm_ir {
namespace {

using ir::DType;
using llvm::Value;
using target::Feature;
using ::testing::HasSubstr;

class DeviceMatrixTest : public DeviceTest {};

TEST_P(DeviceMatrixTest, LoadsAndStoresMatrices) {
  if (!GetParam()->Has(Feature::kLdMatrix)) return;
  const bool stores = GetParam()->Has(Feature::kStMatrix);
  const std::string text = Compile([&](TestKernel& k) {
    Value* row = k.builder.CreateGEP(k.builder.getInt8Ty(), k.shared, k.builder.CreateMul(k.device->ThreadIndex(), k.builder.getInt32(16)));
    for (int count : {1, 2, 4}) {
      for (bool transpose : {false, true}) {
        const std::vector<Value*> words = k.device->LoadMatrix(row, count, transpose);
        ASSERT_EQ(words.size(), size_t(count));
        for (Value* word : words) k.Store(word);
        if (stores) k.device->StoreMatrix(row, words, transpose);
      }
    }
  });
  EXPECT_THAT(text, HasSubstr("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"));
  if (stores) {
    EXPECT_THAT(text, HasSubstr("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16"));
  }
}

TEST_P(DeviceMatrixTest, EveryMatrixInstruction) {
  for (const target::MmaInstruction& row : target::MmaInstructions(*GetParam())) {
    SCOPED_TRACE(row.name);
    if (row.IsByGroup()) continue;  // MatrixGroups
    const std::string text = Compile([&](TestKernel& k) {
      const auto words = [&](const ir::Layout& layout, DType type) {
        std::vector<Value*> v;
        for (int64_t i = 0; i < layout.Registers() * ir::Bits(type) / 32; ++i) v.push_back(k.Load(k.builder.getInt32Ty()));
        return v;
      };
      std::vector<Value*> c;
      for (int64_t i = 0; i < row.c_layout.Registers(); ++i) c.push_back(k.Load(ValueType(k.context, row.c)));
      const SparseMetadata metadata{row.IsSparse() ? k.Load(k.builder.getInt32Ty()) : nullptr, row.selectors - 1};
      const auto d = k.device->Mma(row, words(row.a_layout, row.a), words(row.b_layout, row.b), c, metadata);
      ASSERT_EQ(d.size(), c.size());
      for (Value* v : d) k.Store(v);
    });
    EXPECT_EQ(text.find("mma.sp") != text.npos || text.find("v_smfmac") != text.npos, row.IsSparse());
    EXPECT_TRUE(row.IsSparse() || text.find("mma.sync") != text.npos || text.find("v_mfma") != text.npos || text.find("v_wmma") != text.npos);
  }
}

// Every type of wgmma, with the widest and the narrowest N, a from shared memory and from registers: two steps of k.
TEST_P(DeviceMatrixTest, MatrixGroups) {
  for (const target::MmaInstruction& row : target::MmaInstructions(*GetParam())) {
    if (!row.IsByGroup() || (row.n != 8 && row.n != 256)) continue;
    SCOPED_TRACE(row.name);
    for (const bool registers : {false, true}) {
      const std::string text = Compile([&](TestKernel& k) {
        std::vector<Value*> a, b, c;
        std::vector<SparseMetadata> metadata;
        for (int step = 0; step < 2; ++step) {
          if (row.IsSparse()) metadata.push_back({k.Load(k.builder.getInt32Ty()), step % row.selectors});
          for (int word = 0; word < 4 && registers; ++word) a.push_back(k.Load(k.builder.getInt32Ty()));
          if (!registers) a.push_back(k.Load(k.builder.getInt64Ty()));
          b.push_back(k.Load(k.builder.getInt64Ty()));
        }
        for (int64_t i = 0; i < row.c_layout.Registers(); ++i) c.push_back(k.Load(ValueType(k.context, row.c)));
        const bool by_rows = ir::Bits(row.a) == 16;
        k.device->FenceAsyncProxy();
        const auto d = k.device->MmaWait(k.device->MmaGroup(row, a, b, c, false, by_rows && !registers, by_rows, metadata), 0);
        ASSERT_EQ(d.size(), c.size());
        for (Value* v : d) k.Store(v);
      });
      EXPECT_NE(text.find(row.IsSparse() ? "wgmma.mma_async.sp" : "wgmma.mma_async.sync"), text.npos);
    }
  }
}

// Descriptors of a long product are made one by one, as are all where loops would keep many: together they would not fit the registers that they
// must be in.
TEST_P(DeviceMatrixTest, DescriptorsOfManySteps) {
  if (!GetParam()->Has(Feature::kWgmma)) return;
  const auto row = std::ranges::find_if(target::MmaInstructions(*GetParam()), [](const auto& mma) { return mma.IsByGroup() && !mma.swapped; });
  for (const auto& [steps, standing] : {std::pair{16, 64}, {36, 0}, {4, 65}}) {
    const std::string text = Compile([&](TestKernel& k) {
      k.device->ExpectDescriptors(standing);
      std::vector<Value*> a, b, c;
      Value *left = k.Load(k.builder.getInt32Ty()), *right = k.Load(k.builder.getInt32Ty());
      for (int step = 0; step < steps; ++step) {
        a.push_back(k.device->JoinDescriptor(k.builder.CreateAdd(left, k.builder.getInt32(uint32_t(2 * step))), 64));
        b.push_back(k.device->JoinDescriptor(k.builder.CreateAdd(right, k.builder.getInt32(uint32_t(4 * step))), 64));
      }
      for (int64_t i = 0; i < row->c_layout.Registers(); ++i) c.push_back(k.Load(ValueType(k.context, row->c)));
      for (Value* v : k.device->MmaWait(k.device->MmaGroup(*row, a, b, c, false, false, false), 0)) k.Store(v);
    });
    EXPECT_EQ(text.find("mov.b64 left, {low, 64}") != text.npos, steps != 16);
    EXPECT_EQ(text.find(", 140; mov.b64 right, {low, 64}") != text.npos, steps == 36);
  }
}

TEST_P(DeviceMatrixTest, VotesAndReductionsOfAWarp) {
  if (GetParam()->family != target::Family::kNvptx) return;
  const bool redux = GetParam()->Has(Feature::kRedux);
  const std::string text = Compile([&](TestKernel& k) {
    Value* v = k.Load(k.builder.getInt32Ty());
    for (const VoteOp op : {VoteOp::kAll, VoteOp::kAny, VoteOp::kBallot}) {
      k.Store(k.device->Vote(op, k.builder.CreateICmpNE(v, k.builder.getInt32(0))));
    }
    for (size_t op = 0; op < 6 && redux; ++op) {
      for (const DType type : {DType::kI32, DType::kU32}) k.Store(k.device->WarpReduce(WarpReduceOp(op), type, v));
    }
  });
  for (const char* vote : {"vote.sync.all.pred", "vote.sync.any.pred", "vote.sync.ballot.b32"}) EXPECT_NE(text.find(vote), text.npos) << vote;
  for (const char* name : {"add.s32", "min.s32", "min.u32", "max.s32", "max.u32", "and.b32", "or.b32", "xor.b32"}) {
    EXPECT_EQ(text.find(std::string("redux.sync.") + name) != text.npos, redux) << name;
  }
}

// All lanes take part in a matrix instruction: one whose result only some lanes use may not move to where only those
// are.
TEST_P(DeviceMatrixTest, MatrixInstructionsStayOutOfBranches) {
  TestKernel k(*GetParam());
  const target::MmaInstruction& row = target::MmaInstructions(k.target)[0];
  const auto words = [&](const ir::Layout& layout, DType type) {
    std::vector<Value*> v;
    for (int64_t i = 0; i < layout.Registers() * ir::Bits(type) / 32; ++i) v.push_back(k.Load(k.builder.getInt32Ty()));
    return v;
  };
  std::vector<Value*> c;
  for (int64_t i = 0; i < row.c_layout.Registers(); ++i) c.push_back(k.Load(ValueType(k.context, row.c)));
  const auto d = k.device->Mma(row, words(row.a_layout, row.a), words(row.b_layout, row.b), c);
  auto* then = llvm::BasicBlock::Create(k.context, "then", k.kernel);
  auto* done = llvm::BasicBlock::Create(k.context, "done", k.kernel);
  k.builder.CreateCondBr(k.builder.CreateICmpSLT(k.device->ThreadIndex(), k.kernel->getArg(2)), then, done);
  k.builder.SetInsertPoint(then);
  for (Value* v : d) k.Store(v);
  k.builder.CreateBr(done);
  k.builder.SetInsertPoint(done);
  ASSERT_EQ(k.Finish(), "");
  const auto text = EmitAssembly(k.module, *k.machine);
  ASSERT_TRUE(text);
  const size_t instruction = std::min({text->find("mma.sync"), text->find("v_mfma"), text->find("v_wmma")});
  const size_t branch = text->find(IsCuda() ? "bra " : "saveexec");
  ASSERT_NE(branch, text->npos) << *text;
  EXPECT_LT(instruction, branch) << *text;
}

TEST_P(DeviceMatrixTest, Dp4a) {
  const std::string text = Compile([](TestKernel& k) {
    Value* a = k.Load(k.builder.getInt32Ty());
    Value* b = k.Load(k.builder.getInt32Ty());
    for (bool a_signed : {false, true}) {
      for (bool b_signed : {false, true}) k.Store(k.device->Dp4a(a, b, k.Load(k.builder.getInt32Ty()), a_signed, b_signed));
    }
  });
  EXPECT_THAT(text, HasSubstr(IsCuda() ? "dp4a" : "dot4"));
}

INSTANTIATE_TEST_SUITE_P(AllTargets, DeviceMatrixTest, ::testing::ValuesIn(AllTargets()), ArchOf);

}  // namespace
}  // namespace kiln::llvm_ir
