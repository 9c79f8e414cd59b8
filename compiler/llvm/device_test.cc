// SPDX-License-Identifier: Apache-2.0
//
// Every method of Device on every target: the kernel verifies, optimises and emits, ptxas takes the PTX and lld the
// object.
#include "compiler/llvm/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using ir::DType;
using ir::ExprOp;
using llvm::Value;
using target::Feature;
using target::Target;
using ::testing::HasSubstr;

class DeviceTest : public ::testing::TestWithParam<const Target*> {
 protected:
  // Builds with `body`, compiles, and gives the assembly (PTX or GCN).
  std::string Compile(const std::function<void(TestKernel&)>& body) {
    {
      TestKernel k(*GetParam());
      body(k);
      EXPECT_EQ(k.Finish(), "");
      if (k.target.family == target::Family::kAmdgpu) {
        const auto hsaco = EmitHsaco(k.module, *k.machine);
        EXPECT_TRUE(hsaco) << hsaco.error();
      }
    }
    TestKernel k(*GetParam());
    body(k);
    EXPECT_EQ(k.Finish(), "");
    const auto text = EmitAssembly(k.module, *k.machine);
    EXPECT_TRUE(text);
    if (k.target.family == target::Family::kNvptx) Assemble(*text);
    return *text;
  }

  void Assemble(const std::string& ptx) {
    const std::string ptxas = FindPtxas();
    if (ptxas.empty()) {
      std::fprintf(stderr, "NO PTXAS ON THIS MACHINE: PTX of %s is not checked\n", GetParam()->name.data());
      return;
    }
    const auto output = RunPtxas(ptxas, *GetParam(), ptx);
    ASSERT_TRUE(output) << output.error() << "\n" << ptx;
    EXPECT_FALSE(output->cubin.empty());
    ASSERT_EQ(output->kernels.size(), 1u);
    EXPECT_EQ(output->kernels[0].local_bytes(), 0u) << ptx;
    EXPECT_TRUE(output->warnings.empty()) << output->warnings[0];
  }

  bool IsCuda() const { return GetParam()->family == target::Family::kNvptx; }
};

TEST_P(DeviceTest, Indices) {
  const std::string text = Compile([](TestKernel& k) {
    k.Store(k.device->Uniform(k.builder.CreateLShr(k.device->ThreadIndex(), 5)));
    for (int axis = 0; axis < 3; ++axis) {
      k.Store(k.device->BlockIndex(axis));
      k.Store(k.device->GridSize(axis));
    }
  });
  EXPECT_THAT(text, HasSubstr(IsCuda() ? ".reqntid 128" : ".max_flat_workgroup_size: 128"));
  if (IsCuda()) {
    EXPECT_THAT(text, HasSubstr("shfl.sync.idx"));
    EXPECT_THAT(text, HasSubstr("%nctaid.z"));
  }
}

TEST_P(DeviceTest, RegisterLimit) {
  TestKernel k(*GetParam(), 128, 64);
  EXPECT_EQ(k.Finish(), "");
  const auto text = EmitAssembly(k.module, *k.machine);
  ASSERT_TRUE(text);
  if (IsCuda()) {
    EXPECT_THAT(*text, HasSubstr(".maxnreg 64"));
    Assemble(*text);
  }
}

TEST_P(DeviceTest, ShufflesEveryWidth) {
  const std::string text = Compile([](TestKernel& k) {
    llvm::Type* types[] = {k.builder.getInt8Ty(),   k.builder.getInt16Ty(), k.builder.getHalfTy(),
                           k.builder.getBFloatTy(), k.builder.getInt32Ty(), k.builder.getFloatTy(),
                           k.builder.getInt64Ty(),  k.builder.getDoubleTy()};
    for (llvm::Type* type : types) {
      Value* v = k.Load(type);
      for (int mask = 1; mask < int(k.target.warp_size); mask = mask * 2 + (mask % 3))
        v = k.device->ShuffleXor(v, mask);
      k.Store(v);
    }
    Value* v = k.Load(k.builder.getInt32Ty());
    for (int mask = 1; mask < int(k.target.warp_size); ++mask) k.Store(k.device->ShuffleXor(v, mask));
  });
  EXPECT_THAT(text, HasSubstr(IsCuda() ? "shfl.sync.bfly.b32" : "dpp"));
}

TEST_P(DeviceTest, BarrierOrdersSharedMemory) {
  const std::string text = Compile([](TestKernel& k) {
    Value* thread = k.device->ThreadIndex();
    Value* other = k.builder.CreateXor(thread, k.builder.getInt32(64));
    llvm::Type* type = k.builder.getInt32Ty();
    k.builder.CreateStore(thread, k.builder.CreateGEP(type, k.shared, thread));
    k.device->Barrier();
    k.Store(k.builder.CreateLoad(type, k.builder.CreateGEP(type, k.shared, other)));
  });
  EXPECT_THAT(text, HasSubstr(IsCuda() ? "bar.sync" : "s_barrier"));
}

TEST_P(DeviceTest, AsyncCopies) {
  if (!GetParam()->Has(Feature::kCpAsync)) return;
  const std::string text = Compile([](TestKernel& k) {
    Value* valid = k.builder.CreateICmpSLT(k.device->ThreadIndex(), k.kernel->getArg(2));
    for (int bytes : {4, 8, 16}) {
      Value* offset = k.builder.CreateMul(k.device->ThreadIndex(), k.builder.getInt32(uint32_t(bytes)));
      Value* shared = k.builder.CreateGEP(k.builder.getInt8Ty(), k.shared, offset);
      Value* global = k.builder.CreateGEP(k.builder.getInt8Ty(), k.kernel->getArg(0), offset);
      k.device->CopyAsync(shared, global, bytes, nullptr);
      k.device->CopyAsync(shared, global, bytes, valid);
    }
    k.device->AsyncCommit();
    k.device->AsyncWait(0);
    k.device->Barrier();
    k.Store(k.builder.CreateLoad(k.builder.getInt32Ty(),
                                 k.builder.CreateGEP(k.builder.getInt32Ty(), k.shared, k.device->ThreadIndex())));
  });
  EXPECT_THAT(text, HasSubstr("cp.async.ca.shared.global"));
  EXPECT_THAT(text, HasSubstr("cp.async.cg.shared.global"));
  EXPECT_THAT(text, HasSubstr("cp.async.wait_group"));
}

TEST_P(DeviceTest, LoadsAndStoresMatrices) {
  if (!GetParam()->Has(Feature::kLdMatrix)) return;
  const bool stores = GetParam()->Has(Feature::kStMatrix);
  const std::string text = Compile([&](TestKernel& k) {
    Value* row = k.builder.CreateGEP(k.builder.getInt8Ty(), k.shared,
                                     k.builder.CreateMul(k.device->ThreadIndex(), k.builder.getInt32(16)));
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

TEST_P(DeviceTest, EveryMatrixInstruction) {
  for (const target::MmaInstruction& row : target::MmaInstructions(*GetParam())) {
    SCOPED_TRACE(row.name);
    if (row.warps > 1) continue;  // MatrixGroups
    const std::string text = Compile([&](TestKernel& k) {
      const auto words = [&](const ir::Layout& layout, DType type) {
        std::vector<Value*> v;
        for (int64_t i = 0; i < layout.Registers() * ir::Bits(type) / 32; ++i)
          v.push_back(k.Load(k.builder.getInt32Ty()));
        return v;
      };
      std::vector<Value*> c;
      for (int64_t i = 0; i < row.c_layout.Registers(); ++i) c.push_back(k.Load(ValueType(k.context, row.c)));
      const auto d = k.device->Mma(row, words(row.a_layout, row.a), words(row.b_layout, row.b), c);
      ASSERT_EQ(d.size(), c.size());
      for (Value* v : d) k.Store(v);
    });
    EXPECT_TRUE(text.find("mma.sync") != text.npos || text.find("v_mfma") != text.npos ||
                text.find("v_wmma") != text.npos);
  }
}

// Every type of wgmma, with the widest and the narrowest N, a from shared memory and from registers: two steps of k.
TEST_P(DeviceTest, MatrixGroups) {
  for (const target::MmaInstruction& row : target::MmaInstructions(*GetParam())) {
    if (row.warps == 1 || (row.n != 8 && row.n != 256)) continue;
    SCOPED_TRACE(row.name);
    for (const bool registers : {false, true}) {
      const std::string text = Compile([&](TestKernel& k) {
        std::vector<Value*> a, b, c;
        for (int step = 0; step < 2; ++step) {
          for (int word = 0; word < 4 && registers; ++word) a.push_back(k.Load(k.builder.getInt32Ty()));
          if (!registers) a.push_back(k.Load(k.builder.getInt64Ty()));
          b.push_back(k.Load(k.builder.getInt64Ty()));
        }
        for (int64_t i = 0; i < row.c_layout.Registers(); ++i) c.push_back(k.Load(ValueType(k.context, row.c)));
        const bool by_rows = ir::Bits(row.a) == 16;
        k.device->FenceAsyncProxy();
        const auto d = k.device->MmaWait(k.device->MmaGroup(row, a, b, c, false, by_rows && !registers, by_rows), 0);
        ASSERT_EQ(d.size(), c.size());
        for (Value* v : d) k.Store(v);
      });
      EXPECT_NE(text.find("wgmma.mma_async"), text.npos);
    }
  }
}

TEST_P(DeviceTest, VotesAndReductionsOfAWarp) {
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

// What warps of different roles say to each other: mbarriers, tensor copies of every rank, named barriers, the cluster.
TEST_P(DeviceTest, RolesAndTensorCopies) {
  if (!GetParam()->Has(Feature::kTma | Feature::kWgmma)) return;  // what passes ask for it
  const std::string text = Compile([&](TestKernel& k) {
    Device& device = *k.device;
    Value* mbarrier = k.builder.CreateConstGEP1_32(k.builder.getInt8Ty(), k.shared, 2048);
    Value* first = k.builder.CreateICmpEQ(device.ThreadIndex(), k.builder.getInt32(0));
    device.PhaseInit(mbarrier, 1);
    device.PhaseInitFence();
    device.ClusterBarrier();
    device.TensorPrefetch(k.map);
    for (size_t rank = 1; rank <= 5; ++rank) {
      const std::vector<Value*> at(rank, k.kernel->getArg(2));
      device.PhaseExpect(mbarrier, k.builder.getInt32(256));
      device.TensorLoad(k.shared, k.map, at, mbarrier, rank == 2 ? k.builder.getInt16(3) : nullptr);
      device.TensorStore(k.map, at, k.shared);
      device.TensorReduce(AtomicOp::kAdd, k.map, at, k.shared);
    }
    device.PhaseWait(mbarrier, k.builder.getInt32(0));
    device.PhaseArrive(mbarrier, first);
    device.PhaseArriveAt(mbarrier, device.ClusterRank(), first);
    device.TensorStoreCommit();
    device.TensorStoreWait(1, /*read_only=*/true);
    device.TensorStoreWait(0, /*read_only=*/false);
    device.NamedBarrierArrive(2, 128);
    device.NamedBarrier(1, 128);
    device.SetRegisters(40, /*more=*/false);
    k.Store(device.ElectOne());
  });
  EXPECT_THAT(text, HasSubstr(".param .align 64 .b8 test_kernel_param_3[128]"));
  EXPECT_EQ(text.find("ld.param.b8"), text.npos) << "the map was copied";
  EXPECT_THAT(text, HasSubstr("multicast::cluster"));
  EXPECT_THAT(text, HasSubstr("prefetch.tensormap"));
}

// All lanes take part in a matrix instruction: one whose result only some lanes use may not move to where only those
// are.
TEST_P(DeviceTest, MatrixInstructionsStayOutOfBranches) {
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

TEST_P(DeviceTest, Dp4a) {
  const std::string text = Compile([](TestKernel& k) {
    Value* a = k.Load(k.builder.getInt32Ty());
    Value* b = k.Load(k.builder.getInt32Ty());
    for (bool a_signed : {false, true}) {
      for (bool b_signed : {false, true})
        k.Store(k.device->Dp4a(a, b, k.Load(k.builder.getInt32Ty()), a_signed, b_signed));
    }
  });
  EXPECT_THAT(text, HasSubstr(IsCuda() ? "dp4a" : "dot4"));
}

TEST_P(DeviceTest, Atomics) {
  Compile([](TestKernel& k) {
    for (DType type :
         {DType::kI32, DType::kU32, DType::kI64, DType::kU64, DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
      for (AtomicOp op : {AtomicOp::kAdd, AtomicOp::kMax, AtomicOp::kMin}) {
        Value* v = k.Load(ValueType(k.context, type));
        k.device->Atomic(op, type, k.Place(k.kernel->getArg(1), v->getType(), 0), v);
        k.device->Atomic(op, type, k.shared, v);
      }
    }
  });
}

constexpr DType kFloats[] = {DType::kF16, DType::kBF16, DType::kTF32, DType::kF32, DType::kF64};

TEST_P(DeviceTest, EveryMathOperation) {
  for (DType type : kFloats) {
    for (bool fast : {false, true}) {
      SCOPED_TRACE(std::string(ir::Name(type)) + (fast ? " fast" : ""));
      Compile([&](TestKernel& k) {
        if (fast) FlushSubnormals(*k.kernel);
        for (ExprOp op : {ExprOp::kFloor, ExprOp::kCeil, ExprOp::kRound, ExprOp::kTrunc, ExprOp::kSqrt, ExprOp::kRsqrt,
                          ExprOp::kExp, ExprOp::kExp2, ExprOp::kLog, ExprOp::kLog2, ExprOp::kSin, ExprOp::kCos,
                          ExprOp::kTanh, ExprOp::kErf, ExprOp::kPow, ExprOp::kSigmoid, ExprOp::kFma, ExprOp::kIsNan}) {
          std::vector<Value*> args;
          for (int i = 0; i < ir::ArgCount(op); ++i) args.push_back(k.Load(ValueType(k.context, type)));
          Value* v = k.device->Math(op, type, args, fast);
          EXPECT_EQ(v->getType(), op == ExprOp::kIsNan ? k.builder.getInt1Ty() : args[0]->getType());
          k.Store(v);
        }
      });
    }
  }
}

// What lowering does to elements without asking the device.
TEST_P(DeviceTest, ArithmeticOfEveryFloat) {
  for (bool flush : {false, true}) {
    Compile([&](TestKernel& k) {
      if (flush) FlushSubnormals(*k.kernel);
      llvm::IRBuilder<>& b = k.builder;
      for (DType type : kFloats) {
        llvm::Type* t = ValueType(k.context, type);
        Value* x = k.Load(t);
        Value* y = k.Load(t);
        Value* less = b.CreateFCmpOLT(x, y);
        for (Value* v :
             {b.CreateFAdd(x, y), b.CreateFSub(x, y), b.CreateFMul(x, y), b.CreateFDiv(x, y), b.CreateFNeg(x),
              b.CreateFAdd(b.CreateFMul(x, y), x), b.CreateSelect(less, x, y), b.CreateMaxNum(x, y),
              b.CreateMinNum(x, y), static_cast<Value*>(b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x))}) {
          k.Store(v);
        }
        k.Store(less);
      }
    });
  }
}

TEST_P(DeviceTest, ApproximateDivision) {
  Compile([](TestKernel& k) {
    FlushSubnormals(*k.kernel);
    llvm::FastMathFlags flags;
    flags.setApproxFunc();
    flags.setAllowReciprocal();
    k.builder.setFastMathFlags(flags);
    for (DType type : kFloats) {
      llvm::Type* t = ValueType(k.context, type);
      k.Store(k.builder.CreateFDiv(k.Load(t), k.Load(t)));
    }
  });
}

constexpr DType kAll[] = {
#define KILN_DTYPE(number, id, name, bits, kind) DType::id,
#include "ir/dtypes.def"
};

TEST_P(DeviceTest, EveryConversion) {
  Compile([](TestKernel& k) {
    for (DType from : kAll) {
      const bool nibble = ir::Bits(from) == 4;
      Value* v = k.Load(nibble ? k.builder.getInt8Ty() : MemoryType(k.context, from));
      if (v->getType() != ValueType(k.context, from)) v = k.builder.CreateTrunc(v, ValueType(k.context, from));
      for (DType to : kAll) {
        Value* result = k.device->Convert(v, from, to);
        ASSERT_EQ(result->getType(), ValueType(k.context, to)) << ir::Name(from) << " to " << ir::Name(to);
        k.Store(ir::Bits(to) == 4 ? k.builder.CreateZExt(result, k.builder.getInt8Ty()) : result);
      }
    }
  });
}

TEST_P(DeviceTest, PackedConversions) {
  Compile([](TestKernel& k) {
    for (DType to : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2, DType::kF8E4M3FNUZ, DType::kF8E5M2FNUZ,
                     DType::kI8}) {
      std::vector<Value*> v;
      for (int i = 0; i < 32 / ir::Bits(to); ++i) v.push_back(k.Load(k.builder.getFloatTy()));
      Value* packed = k.device->ConvertPacked(v, DType::kF32, to);
      EXPECT_EQ(packed->getType(), k.builder.getInt32Ty());
      k.Store(packed);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(AllTargets, DeviceTest, ::testing::ValuesIn([] {
                           std::vector<const Target*> targets;
                           for (const Target& target : target::All()) targets.push_back(&target);
                           return targets;
                         }()),
                         [](const auto& info) { return std::string(info.param->arch); });

}  // namespace
}  // namespace kiln::llvm_ir
