// SPDX-License-Identifier: Apache-2.0
//
// The plain paths of every operation, run on the host against the C library's long double functions.
#include "compiler/llvm/math/math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "compiler/llvm/test_host.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/IR/InstIterator.h>
#pragma GCC diagnostic pop

namespace kiln::llvm_ir {
namespace {

using ir::DType;
using ir::ExprOp;

struct Case {
  ExprOp op;
  long double (*reference)(long double, long double);
  double ulp_f32, ulp_f64;  // the bounds stated beside the functions
};

long double Sigmoid(long double x) { return x < -11000 ? 0 : 1 / (1 + std::exp(-x)); }

const Case kCases[] = {
    {ExprOp::kExp, [](long double x, long double) { return std::exp(x); }, 2, 1},
    {ExprOp::kExp2, [](long double x, long double) { return std::exp2(x); }, 2, 1},
    {ExprOp::kLog, [](long double x, long double) { return std::log(x); }, 2, 1},
    {ExprOp::kLog2, [](long double x, long double) { return std::log2(x); }, 2, 2},
    {ExprOp::kSin, [](long double x, long double) { return std::sin(x); }, 2, 2},
    {ExprOp::kCos, [](long double x, long double) { return std::cos(x); }, 2, 2},
    {ExprOp::kTanh, [](long double x, long double) { return std::tanh(x); }, 3, 3},
    {ExprOp::kErf, [](long double x, long double) { return std::erf(x); }, 2, 3},
    {ExprOp::kSigmoid, [](long double x, long double) { return Sigmoid(x); }, 4, 4},
    {ExprOp::kPow, [](long double x, long double y) { return std::pow(x, y); }, 3, 2},
    {ExprOp::kExp2Ftz, [](long double x, long double) { return std::exp2(x); }, 2, 1},
    {ExprOp::kDivFull, [](long double x, long double y) { return x / y; }, 2, 1},
    {ExprOp::kSqrt, [](long double x, long double) { return std::sqrt(x); }, 0.5, 0.5},
    {ExprOp::kRsqrt, [](long double x, long double) { return 1 / std::sqrt(x); }, 2, 2},
};

// a[0] ± a[1] where a[term] is a product; null where it is none.
llvm::Value* FusedSum(llvm::BinaryOperator& sum, unsigned term) {
  auto* product = llvm::dyn_cast<llvm::BinaryOperator>(sum.getOperand(term));
  if (product == nullptr || product->getOpcode() != llvm::Instruction::FMul) return nullptr;
  llvm::IRBuilder<> b(&sum);
  llvm::Value *x = product->getOperand(0), *other = sum.getOperand(1 - term);
  if (sum.getOpcode() == llvm::Instruction::FSub) (term == 0 ? other : x) = b.CreateFNeg(term == 0 ? other : x);
  return b.CreateIntrinsic(llvm::Intrinsic::fma, {sum.getType()}, {x, product->getOperand(1), other});
}

// Each sum with a product becomes one operation with it, as compilers for GPUs do it.
llvm::Value* FuseAll(llvm::Value* result, llvm::Module& module) {
  llvm::WeakTrackingVH kept(result);
  for (llvm::Function& function : module) {
    for (llvm::Instruction& at : llvm::make_early_inc_range(llvm::instructions(function))) {
      auto* sum = llvm::dyn_cast<llvm::BinaryOperator>(&at);
      if (sum == nullptr || (sum->getOpcode() != llvm::Instruction::FAdd && sum->getOpcode() != llvm::Instruction::FSub)) continue;
      llvm::Value* whole = FusedSum(*sum, 0);
      if (whole == nullptr) whole = FusedSum(*sum, 1);
      if (whole == nullptr) continue;
      sum->replaceAllUsesWith(whole);
      sum->eraseFromParent();
    }
  }
  return kept;
}

HostFunction Function(ExprOp op, DType dtype, bool fast = false, bool fused = false) {
  static const NativeMath plain;
  const std::vector<DType> inputs(size_t(ir::ArgCount(op)), dtype);
  return HostFunction(inputs, [&](auto& b, auto args) {
    llvm::Value* result = BuildMath(b, plain, op, dtype, args, fast);
    return fused ? FuseAll(result, *b.GetInsertBlock()->getModule()) : result;
  });
}

template <typename T>
std::vector<T> Call(const HostFunction& f, ExprOp op, const std::vector<T>& x, const std::vector<T>& y) {
  return ir::ArgCount(op) == 2 ? f.template operator()<T>(x, y) : f.template operator()<T>(x);
}

template <typename T>
double Ulps(T got, long double want) {
  const int least = std::numeric_limits<T>::min_exponent - std::numeric_limits<T>::digits;
  const int exponent = want == 0 ? least : std::max(std::ilogb(want) - std::numeric_limits<T>::digits + 1, least);
  return double(std::fabs((long double)got - want) / std::ldexp(1.0L, exponent));
}

template <typename T>
bool Overflows(long double want) {
  const long double largest = std::numeric_limits<T>::max();
  return std::fabs(want) > largest + std::ldexp(1.0L, std::ilogb(largest) - std::numeric_limits<T>::digits);
}

// Bit patterns of every kind, and values around 0 and 1 where most of the work is.
template <typename T>
std::vector<T> Samples(uint64_t seed, size_t count) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<T> samples;
  for (size_t i = 0; i < count; ++i) {
    const T any = std::bit_cast<T>(Bits(random()));
    const T usual = T(normal(random) * std::ldexp(1.0, int(random() % 14) - 4));
    const T near_one = T(1 + normal(random) * std::ldexp(1.0, -int(random() % 30)));
    samples.push_back(i % 4 == 0 ? any : i % 4 == 1 ? near_one : usual);
  }
  return samples;
}

template <typename T>
std::vector<T> Specials() {
  using Limits = std::numeric_limits<T>;
  std::vector<T> v = {0, T(0.5), 1, 2, 3, T(1.5), Limits::min(), Limits::denorm_min(), Limits::max(), Limits::infinity(), T(1e-5)};
  for (size_t i = 0, n = v.size(); i < n; ++i) v.push_back(-v[i]);
  v.push_back(Limits::quiet_NaN());
  return v;
}

template <typename T>
void Check(const Case& test, const std::vector<T>& x, const std::vector<T>& y, double bound, bool fused = false) {
  const std::vector<T> got = Call(Function(test.op, sizeof(T) == 4 ? DType::kF32 : DType::kF64, false, fused), test.op, x, y);
  double worst = 0;
  size_t failures = 0;
  for (size_t i = 0; i < x.size() && failures < 8; ++i) {
    const long double want = test.reference(x[i], y[i]);
    bool good;
    if (std::isnan(want)) {
      good = std::isnan(got[i]);
    } else if (Overflows<T>(want) || std::isinf(want)) {
      good = std::isinf(got[i]) && std::signbit(got[i]) == std::signbit(want);
    } else {
      // Sigmoid leaves out results that are subnormal.
      const bool tiny = test.op == ExprOp::kSigmoid && want < std::numeric_limits<T>::min() * 4;
      const double ulps = tiny ? 0 : Ulps(got[i], want);
      worst = std::max(worst, ulps);
      good = ulps <= bound;
    }
    failures += !good;
    EXPECT_TRUE(good) << std::hexfloat << "f(" << x[i] << ", " << y[i] << ") = " << got[i] << ", not " << double(want);
  }
  std::printf("%-8s f%zu  %.3f ulp\n", ir::Name(test.op).data(), sizeof(T) * 8, worst);
}

class Math : public ::testing::TestWithParam<Case> {};

TEST_P(Math, F32) { Check<float>(GetParam(), Samples<float>(1, 400000), Samples<float>(2, 400000), GetParam().ulp_f32); }

TEST_P(Math, F64) {
  // The reference has 64 bits: its own error is 1/2048 of our unit.
  Check<double>(GetParam(), Samples<double>(3, 200000), Samples<double>(4, 200000), GetParam().ulp_f64);
}

TEST_P(Math, HoldsItsBoundsWhereProductsAndSumsAreFused) {
  Check<float>(GetParam(), Samples<float>(5, 200000), Samples<float>(6, 200000), GetParam().ulp_f32, true);
  Check<double>(GetParam(), Samples<double>(7, 200000), Samples<double>(8, 200000), GetParam().ulp_f64, true);
}

template <typename T>
void CheckSpecials(const Case& test, double bound) {
  std::vector<T> x, y;
  for (T a : Specials<T>()) {
    for (T b : Specials<T>()) {
      x.push_back(a);
      y.push_back(b);
    }
  }
  Check<T>(test, x, y, bound);
}

TEST_P(Math, Specials) {
  CheckSpecials<float>(GetParam(), GetParam().ulp_f32);
  CheckSpecials<double>(GetParam(), GetParam().ulp_f64);
}

// pow with the exponents and bases that real programs have.
TEST(Pow, SmallIntegersAndNegativeBases) {
  std::vector<double> x, y;
  for (double a : Samples<double>(7, 20000)) {
    for (double b : {2.0, 3.0, -1.0, 0.5, 7.0, -3.0, 1e3}) {
      x.push_back(a);
      y.push_back(b);
    }
  }
  const Case& pow = kCases[9];
  ASSERT_EQ(pow.op, ExprOp::kPow);
  Check<double>(pow, x, y, pow.ulp_f64);
  Check<float>(pow, std::vector<float>(x.begin(), x.end()), std::vector<float>(y.begin(), y.end()), pow.ulp_f32);
}

TEST(SinCos, LargeAndNearMultiplesOfPi) {
  std::vector<double> x;
  for (int e = 10; e < 1024; ++e) {
    for (double m : {1.0, 1.2345678901234567, 1.9999999999999998}) x.push_back(std::ldexp(m, e));
  }
  for (int k = 1; k < 20000; k += 7) x.push_back(double(k * 1.57079632679489661923L));
  x.push_back(6381956970095103.0 * 0x1p797);  // the double that is nearest to a multiple of π/2
  for (const Case& test : {kCases[4], kCases[5]}) {
    Check<double>(test, x, x, test.ulp_f64);
    const std::vector<float> narrow(x.begin(), x.end());
    Check<float>(test, narrow, narrow, test.ulp_f32);
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, Math, ::testing::ValuesIn(kCases), [](const auto& info) { return std::string(ir::Name(info.param.op)); });

template <typename T>
void CheckRemainders(uint64_t seed) {
  std::vector<T> x = Samples<T>(seed, 200000), y = Samples<T>(seed + 1, 200000);
  for (T a : Specials<T>()) {
    for (T b : Specials<T>()) {
      x.push_back(a);
      y.push_back(b);
    }
  }
  for (int i = 0; i < 2000; ++i) {
    x.push_back(std::numeric_limits<T>::max() / T(i + 1));
    y.push_back(std::numeric_limits<T>::denorm_min() * T(2 * i + 1));
  }
  const DType type = sizeof(T) == 4 ? DType::kF32 : DType::kF64;
  static const NativeMath plain;
  const HostFunction mod(std::vector<DType>{type, type}, [&](auto& b, auto args) { return BuildMath(b, plain, ExprOp::kMod, type, args, false); });
  const std::vector<T> got = mod.template operator()<T>(x, y);
  size_t failures = 0;
  for (size_t i = 0; i < x.size() && failures < 8; ++i) {
    const T want = std::fmod(x[i], y[i]);
    const bool good = std::isnan(want) ? std::isnan(got[i]) : got[i] == want && std::signbit(got[i]) == std::signbit(want);
    failures += !good;
    EXPECT_TRUE(good) << std::hexfloat << x[i] << " mod " << y[i] << " = " << got[i] << ", not " << want;
  }
}

TEST(Mod, IsExact) {
  CheckRemainders<float>(21);
  CheckRemainders<double>(23);
}

// Hooks as a GPU's: IR whose host code is the C library's, exact enough to see that the formulas around them are right.
class HostHooks : public NativeMath {
 public:
  using B = llvm::IRBuilderBase;
  llvm::Value* Exp2(B& b, llvm::Value* v, bool) const override { return b.CreateUnaryIntrinsic(llvm::Intrinsic::exp2, v); }
  llvm::Value* FastLog2(B& b, llvm::Value* v) const override { return b.CreateUnaryIntrinsic(llvm::Intrinsic::log2, v); }
  llvm::Value* FastSin(B& b, llvm::Value* v) const override { return b.CreateUnaryIntrinsic(llvm::Intrinsic::sin, v); }
  llvm::Value* FastCos(B& b, llvm::Value* v) const override { return b.CreateUnaryIntrinsic(llvm::Intrinsic::cos, v); }
  llvm::Value* FastSqrt(B& b, llvm::Value* v) const override { return b.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, v); }
  llvm::Value* FastReciprocal(B& b, llvm::Value* v) const override { return b.CreateFDiv(llvm::ConstantFP::get(v->getType(), 1), v); }
};

TEST(Hooks, FormulasAroundThemHold) {
  const HostHooks hooks;
  std::mt19937 random(11);
  std::vector<float> x, y;
  for (int i = 0; i < 20000; ++i) {
    x.push_back(float(random() % 200001) / 10000 - 10);
    y.push_back(float(random() % 9) - 4);
  }
  for (const Case& test : kCases) {
    for (bool fast : {false, true}) {
      const std::vector<DType> inputs(size_t(ir::ArgCount(test.op)), DType::kF32);
      const HostFunction f(inputs, [&](auto& b, auto args) { return BuildMath(b, hooks, test.op, DType::kF32, args, fast); });
      const std::vector<float> got = Call(f, test.op, x, y);
      size_t failures = 0;
      for (size_t i = 0; i < x.size() && failures < 5; ++i) {
        const long double want = test.reference(x[i], y[i]);
        const double error = double(std::fabs(got[i] - want));
        const double bound = fast ? 1e-5 * double(std::fabs(want)) + 1e-6 : test.ulp_f32 * 0x1p-23 * double(std::fabs(want));
        const bool good = std::isnan(want) ? std::isnan(got[i]) : std::isinf(want) ? std::isinf(got[i]) : error <= bound;
        failures += !good;
        EXPECT_TRUE(good) << ir::Name(test.op) << (fast ? " fast (" : " (") << x[i] << ", " << y[i] << ") = " << got[i] << ", not " << double(want);
      }
    }
  }
}

// Where there is no instruction: 2^-20 of the result, however small.
TEST(Hooks, FastTanhKeepsItsDigits) {
  const HostHooks hooks;
  std::vector<float> x;
  for (int e = -120; e < 5; ++e)
    for (float m : {1.0f, 1.1f, 1.37f, -1.9f}) x.push_back(std::ldexp(m, e));
  for (int i = 1; i < 4000; ++i) x.push_back(float(i) / 1000);
  const DType inputs[] = {DType::kF32};
  const HostFunction tanh(inputs, [&](auto& b, auto args) { return BuildMath(b, hooks, ExprOp::kTanh, DType::kF32, args, true); });
  const std::vector<float> got = tanh.operator()<float>(x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::tanh(double(x[i]));
    ASSERT_NEAR(got[i] / want, 1, 0x1p-20) << "of " << x[i];
  }
}

TEST(Hooks, FastKeepsTheLimits) {
  const HostHooks hooks;
  const std::vector<float> x = {INFINITY, -INFINITY, 1e30f, -1e30f, NAN};
  const auto fast = [&](ExprOp op) {
    const DType inputs[] = {DType::kF32};
    return HostFunction(inputs, [&](auto& b, auto args) { return BuildMath(b, hooks, op, DType::kF32, args, true); }).operator()<float>(x);
  };
  const auto expect = [&](ExprOp op, std::vector<float> want) {
    const std::vector<float> got = fast(op);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(got[i], want[i]) << ir::Name(op) << " of " << x[i];
    EXPECT_TRUE(std::isnan(got[4])) << ir::Name(op);
  };
  expect(ExprOp::kExp, {INFINITY, 0, INFINITY, 0});
  expect(ExprOp::kTanh, {1, -1, 1, -1});
  expect(ExprOp::kSigmoid, {1, 0, 1, 0});
  expect(ExprOp::kErf, {1, -1, 1, -1});
}

TEST(Rounding, HalvesGoToEven) {
  const std::vector<float> x = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 2.4f, -2.6f, 8388609.0f};
  EXPECT_EQ(Function(ExprOp::kRound, DType::kF32).operator()<float>(x), (std::vector<float>{0, 2, 2, -0.0f, -2, 2, -3, 8388609.0f}));
  EXPECT_EQ(Function(ExprOp::kFloor, DType::kF32).operator()<float>(x), (std::vector<float>{0, 1, 2, -1, -2, 2, -3, 8388609.0f}));
  EXPECT_EQ(Function(ExprOp::kCeil, DType::kF32).operator()<float>(x), (std::vector<float>{1, 2, 3, 0, -1, 3, -2, 8388609.0f}));
  EXPECT_EQ(Function(ExprOp::kTrunc, DType::kF32).operator()<float>(x), (std::vector<float>{0, 1, 2, 0, -1, 2, -2, 8388609.0f}));
}

TEST(Rounding, IsNan) {
  const std::vector<float> x = {0, INFINITY, NAN, -NAN, 1};
  EXPECT_EQ(Function(ExprOp::kIsNan, DType::kF32).operator()<uint8_t>(x), (std::vector<uint8_t>{0, 0, 1, 1, 0}));
}

// f16 and bf16 are one rounding of f32's result: within 0.51 of their unit.
TEST(Halves, RoundOnce) {
  for (DType type : {DType::kF16, DType::kBF16}) {
    std::vector<uint16_t> x(65536);
    for (size_t i = 0; i < x.size(); ++i) x[i] = uint16_t(i);
    const auto value = [&](uint16_t bits) {
      if (type == DType::kBF16) return double(std::bit_cast<float>(uint32_t(bits) << 16));
      const double magnitude = (bits & 0x7c00) ? std::ldexp(1024 + (bits & 0x3ff), ((bits >> 10) & 31) - 25) : std::ldexp(bits & 0x3ff, -24);
      const double finite = (bits & 0x7c00) == 0x7c00 ? ((bits & 0x3ff) ? NAN : INFINITY) : magnitude;
      return bits & 0x8000 ? -finite : finite;
    };
    const int digits = type == DType::kF16 ? 11 : 8, least = type == DType::kF16 ? -24 : -133;
    const double largest = type == DType::kF16 ? 65504 : 0x1.fep127;
    for (const Case& test : kCases) {
      if (ir::ArgCount(test.op) != 1) continue;
      const auto got = Function(test.op, type).operator()<uint16_t>(x);
      size_t failures = 0;
      for (size_t i = 0; i < x.size() && failures < 8; ++i) {
        const double want = double(test.reference(value(x[i]), 0)), result = value(got[i]);
        if (std::isnan(want)) {
          failures += !std::isnan(result);
          EXPECT_TRUE(std::isnan(result)) << ir::Name(test.op) << " of " << value(x[i]);
          continue;
        }
        if (std::fabs(want) > largest || (test.op == ExprOp::kSigmoid && want < 0x1p-124)) continue;
        const double unit = std::ldexp(1.0, want == 0 ? least : std::max(std::ilogb(want) - digits + 1, least));
        const bool good = std::fabs(result - want) <= 0.51 * unit;
        failures += !good;
        EXPECT_TRUE(good) << ir::Name(test.op) << " of " << value(x[i]) << " is " << result << ", not " << want;
      }
    }
  }
}

}  // namespace
}  // namespace kiln::llvm_ir
