// SPDX-License-Identifier: Apache-2.0
//
// Every method of Device on every target, matrix instructions apart (device_matrix_test.cc).
#include "compiler/llvm/device/device_test.h"

#include <gmock/gmock.h>
#include <ranges>

namespace kiln::llvm_ir {
namespace {

using ir::DType;
using ir::ExprOp;
using llvm::Value;
using target::Feature;
using ::testing::HasSubstr;

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

TEST_P(DeviceTest, BlocksOfAMultiprocessor) {
  TestKernel k(*GetParam(), 128, 0, 4);
  EXPECT_EQ(k.Finish(), "");
  if (!IsCuda()) {
    // Of 64 lanes: eight waves on four units; of 32, sixteen on two.
    EXPECT_EQ(k.kernel->getFnAttribute("amdgpu-waves-per-eu").getValueAsString(), k.target.warp_size == 64 ? "2" : "8");
    return;
  }
  const auto text = EmitAssembly(k.module, *k.machine);
  ASSERT_TRUE(text);
  EXPECT_THAT(*text, HasSubstr(".minnctapersm 4"));
  Assemble(*text);
}

TEST_P(DeviceTest, ShufflesEveryWidth) {
  const std::string text = Compile([](TestKernel& k) {
    llvm::Type* types[] = {k.builder.getInt8Ty(),  k.builder.getInt16Ty(), k.builder.getHalfTy(),  k.builder.getBFloatTy(),
                           k.builder.getInt32Ty(), k.builder.getFloatTy(), k.builder.getInt64Ty(), k.builder.getDoubleTy()};
    for (llvm::Type* type : types) {
      Value* v = k.Load(type);
      for (int mask = 1; mask < int(k.target.warp_size); mask = mask * 2 + (mask % 3)) v = k.device->ShuffleXor(v, mask);
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
      k.device->CopyAsync(shared, global, bytes, k.builder.getInt32(uint32_t(bytes)));
      k.device->CopyAsync(shared, global, bytes, k.builder.CreateSelect(valid, k.builder.getInt32(uint32_t(bytes)), k.builder.getInt32(0)));
    }
    k.device->AsyncCommit();
    k.device->AsyncWait(0);
    k.device->Barrier();
    k.Store(k.builder.CreateLoad(k.builder.getInt32Ty(), k.builder.CreateGEP(k.builder.getInt32Ty(), k.shared, k.device->ThreadIndex())));
  });
  EXPECT_THAT(text, HasSubstr("cp.async.ca.shared.global"));
  EXPECT_THAT(text, HasSubstr("cp.async.cg.shared.global"));
  EXPECT_THAT(text, HasSubstr("cp.async.wait_group"));
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
    device.StoreAsyncAt(k.shared, device.ClusterRank(), k.builder.getInt32(7), mbarrier);
    device.StoreAsyncAt(k.shared, device.ClusterRank(), k.builder.getInt64(7), mbarrier);
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

TEST_P(DeviceTest, Atomics) {
  Compile([](TestKernel& k) {
    for (DType type : {DType::kI32, DType::kU32, DType::kI64, DType::kU64, DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
      for (AtomicOp op : {AtomicOp::kAdd, AtomicOp::kMax, AtomicOp::kMin}) {
        Value* v = k.Load(ValueType(k.context, type));
        k.device->Atomic({op, type}, k.Place(k.kernel->getArg(1), v->getType(), 0), v);
        k.device->Atomic({op, type}, k.shared, v);
      }
    }
  });
}

TEST_P(DeviceTest, AtomicsOfEveryOrder) {
  using ir::MemoryOrder;
  Compile([](TestKernel& k) {
    for (DType type : {DType::kI32, DType::kU64, DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI16}) {
      for (MemoryOrder order : {MemoryOrder::kRelaxed, MemoryOrder::kAcquire, MemoryOrder::kRelease, MemoryOrder::kAcqRel, MemoryOrder::kSeqCst}) {
        for (AtomicOp op : {AtomicOp::kAdd, AtomicOp::kMax, AtomicOp::kAnd, AtomicOp::kOr, AtomicOp::kXor, AtomicOp::kExchange,
                            AtomicOp::kCompareExchange, AtomicOp::kLoad}) {
          const bool bitwise = op == AtomicOp::kAnd || op == AtomicOp::kOr || op == AtomicOp::kXor;
          if ((bitwise && ir::IsFloat(type)) || (op == AtomicOp::kLoad && (order == MemoryOrder::kRelease || order == MemoryOrder::kAcqRel)))
            continue;
          for (bool gives_old : {true, false}) {
            if (op == AtomicOp::kLoad && !gives_old) continue;
            Value* v = op == AtomicOp::kLoad ? nullptr : k.Load(ValueType(k.context, type));
            for (Value* pointer : std::initializer_list<Value*>{k.Place(k.kernel->getArg(1), ValueType(k.context, type), 0), k.shared}) {
              Value* old = k.device->Atomic({op, type, order, gives_old}, pointer, v, op == AtomicOp::kCompareExchange ? v : nullptr);
              EXPECT_EQ(old != nullptr, gives_old);
              if (old != nullptr) k.Store(old);
            }
          }
        }
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
        for (ExprOp op : {ExprOp::kFloor, ExprOp::kCeil, ExprOp::kRound, ExprOp::kTrunc, ExprOp::kSqrt, ExprOp::kRsqrt, ExprOp::kExp, ExprOp::kExp2,
                          ExprOp::kLog, ExprOp::kLog2, ExprOp::kSin, ExprOp::kCos, ExprOp::kTanh, ExprOp::kErf, ExprOp::kPow, ExprOp::kSigmoid,
                          ExprOp::kFma, ExprOp::kIsNan, ExprOp::kMod}) {
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
      llvm::IRBuilderBase& b = k.builder;
      for (DType type : kFloats) {
        llvm::Type* t = ValueType(k.context, type);
        Value* x = k.Load(t);
        Value* y = k.Load(t);
        Value* less = b.CreateFCmpOLT(x, y);
        for (Value* v : {b.CreateFAdd(x, y), b.CreateFSub(x, y), b.CreateFMul(x, y), b.CreateFDiv(x, y), b.CreateFNeg(x),
                         b.CreateFAdd(b.CreateFMul(x, y), x), b.CreateSelect(less, x, y), b.CreateMaxNum(x, y), b.CreateMinNum(x, y),
                         static_cast<Value*>(b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x))}) {
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
    const auto has_values = [](DType type) { return type != DType::kF4E2M1; };  // front/unpack leaves none
    for (DType from : kAll | std::views::filter(has_values)) {
      const bool nibble = ir::Bits(from) == 4;
      Value* v = k.Load(nibble ? k.builder.getInt8Ty() : MemoryType(k.context, from));
      if (v->getType() != ValueType(k.context, from)) v = k.builder.CreateTrunc(v, ValueType(k.context, from));
      for (DType to : kAll | std::views::filter(has_values)) {
        Value* result = k.device->Convert(v, from, to);
        ASSERT_EQ(result->getType(), ValueType(k.context, to)) << ir::Name(from) << " to " << ir::Name(to);
        k.Store(ir::Bits(to) == 4 ? k.builder.CreateZExt(result, k.builder.getInt8Ty()) : result);
      }
    }
  });
}

TEST_P(DeviceTest, PackedConversions) {
  Compile([](TestKernel& k) {
    for (DType to : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2, DType::kF8E4M3FNUZ, DType::kF8E5M2FNUZ, DType::kI8}) {
      std::vector<Value*> v;
      for (int i = 0; i < 32 / ir::Bits(to); ++i) v.push_back(k.Load(k.builder.getFloatTy()));
      Value* packed = k.device->ConvertPacked(v, DType::kF32, to);
      EXPECT_EQ(packed->getType(), k.builder.getInt32Ty());
      k.Store(packed);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(AllTargets, DeviceTest, ::testing::ValuesIn(AllTargets()), ArchOf);

}  // namespace
}  // namespace kiln::llvm_ir
