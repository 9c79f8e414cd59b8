// SPDX-License-Identifier: Apache-2.0
//
// C = relu(A · B + bias): built here, compiled by kilnd, and run where there is a GPU.
//   kiln-example-gemm [TARGET]      TARGET: "cuda:sm_90a", …; default: that of the first GPU, else cuda:sm_90a
#include <cmath>
#include <cstdio>
#include <iostream>
#include <random>

#include "clients/cpp/builder.h"
#include "clients/cpp/kernel.h"
#include "clients/cpp/report.h"

namespace {

using kiln::DType;
using kiln::Expr;

constexpr int kTile = 128, kTileK = 32;

// A: m × k, B: k × n, bias: n, C: m × n, all known at launch only.
kiln::Builder GemmBiasRelu() {
  kiln::Builder b("gemm_bias_relu");
  const Expr m = b.Symbol("m"), n = b.Symbol("n"), k = b.Symbol("k");
  const kiln::Tile a = b.Tensor("A", DType::kF16, {m, k});
  const kiln::Tile w = b.Tensor("B", DType::kF16, {k, n});
  const kiln::Tile bias = b.Tensor("bias", DType::kF16, {n});
  const kiln::Tile c = b.Output("C", DType::kF16, {m, n});
  b.Launch({.grid = {CeilDiv(n, kTile), CeilDiv(m, kTile)}}, [&](Expr bx, Expr by) {
    const kiln::Tile a_tile = b.Shared("a_tile", DType::kF16, {kTile, kTileK});
    const kiln::Tile b_tile = b.Shared("b_tile", DType::kF16, {kTileK, kTile});
    const kiln::Tile bias_tile = b.Shared("bias_tile", DType::kF16, {kTile});
    const kiln::Tile sum = b.Fragment("sum", DType::kF32, {kTile, kTile});
    b.Copy(bias[bx * kTile], bias_tile);
    b.Fill(sum, 0);
    b.Pipelined(CeilDiv(k, kTileK), 3, [&](Expr ko) {
      b.Copy(a[by * kTile, ko * kTileK], a_tile);
      b.Copy(w[ko * kTileK, bx * kTile], b_tile);
      b.Gemm(a_tile, b_tile, sum);
    });
    b.Parallel({kTile, kTile}, [&](Expr i, Expr j) { b.Store(sum[i, j], Max(sum[i, j] + Cast(DType::kF32, bias_tile[j]), 0)); });
    b.Copy(sum, c[by * kTile, bx * kTile]);
  });
  return b;
}

int Fail(const kiln::Error& error) {
  std::cerr << error.message << '\n';
  for (const kiln::Diagnostic& d : error.diagnostics) std::cerr << d.file << ':' << d.line << ": " << d.message << "\n  " << d.hint << '\n';
  return 1;
}

void Print(const kiln::Compiled& compiled, const kiln::Report& report) {
  std::cout << compiled.target << ": " << compiled.code.size() << " bytes\n";
  for (const auto& d : report.decisions) std::cout << "  " << d.pass << ": " << d.subject << ": " << d.decision << '\n';
  for (const auto& k : report.kernels) std::cout << "  " << k.entry << ": " << k.shared_bytes << " bytes of shared memory\n";
}

std::vector<_Float16> Random(std::size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<_Float16> values(count);
  for (_Float16& value : values) value = _Float16(normal(random));
  return values;
}

// The largest error of a few elements against sums in double, relative to the largest of them.
double WorstError(const std::vector<_Float16>& a, const std::vector<_Float16>& b, const std::vector<_Float16>& bias, const std::vector<_Float16>& c,
                  std::int64_t n, std::int64_t k, std::mt19937& random) {
  double worst = 0, largest = 1e-30;
  for (int sample = 0; sample < 1000; ++sample) {
    const std::size_t at = random() % c.size(), i = at / std::size_t(n), j = at % std::size_t(n);
    double sum = double(bias[j]);
    for (std::size_t l = 0; l < std::size_t(k); ++l) sum += double(a[i * std::size_t(k) + l]) * double(b[l * std::size_t(n) + j]);
    worst = std::max(worst, std::abs(std::max(sum, 0.0) - double(c[at])));
    largest = std::max(largest, sum);
  }
  return worst / largest;
}

int Run(const kiln::Compiled& compiled, const kiln::Builder& builder) {
  const std::int64_t m = 1000, n = 777, k = 333;
  std::mt19937 random(std::random_device{}());
  const auto a = Random(m * k, random), b = Random(k * n, random), bias = Random(n, random);
  std::vector<_Float16> c(m * n);
  std::vector<kiln::DeviceMemory> memory;
  for (const auto* host : {&a, &b, &bias, const_cast<const std::vector<_Float16>*>(&c)}) {
    auto allocated = kiln::DeviceMemory::Allocate(host->size() * 2, compiled.target);
    if (!allocated) return Fail(allocated.error());
    if (auto ok = allocated->CopyFrom(host->data(), allocated->bytes()); !ok) return Fail(ok.error());
    memory.push_back(std::move(*allocated));
  }
  auto kernel = kiln::Kernel::Load(compiled, {.name = "gemm_bias_relu", .parameters = builder.ParameterNames()});
  if (!kernel) return Fail(kernel.error());
  const std::vector<kiln::Argument> arguments = {
      kiln::Tensor{memory[0].data(), DType::kF16, {m, k}, {}}, kiln::Tensor{memory[1].data(), DType::kF16, {k, n}, {}},
      kiln::Tensor{memory[2].data(), DType::kF16, {n}, {}}, kiln::Tensor{memory[3].data(), DType::kF16, {m, n}, {}}};
  if (auto ok = kernel->Launch(arguments); !ok) return Fail(ok.error());
  if (auto ok = memory[3].CopyTo(c.data(), memory[3].bytes()); !ok) return Fail(ok.error());
  const double error = WorstError(a, b, bias, c, n, k, random);
  const auto times = kernel->Measure(arguments);
  std::printf("%lld × %lld × %lld: error %.1e, %.1f µs\n", static_cast<long long>(m), static_cast<long long>(n), static_cast<long long>(k), error,
              times && !times->empty() ? times->front() : NAN);
  return error <= 2e-3 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const auto devices = kiln::Devices();
  const std::string here = devices ? devices->front().target : "";
  const std::string target = argc > 1 ? argv[1] : here.empty() ? "cuda:sm_90a" : here;

  const kiln::Builder builder = GemmBiasRelu();
  auto module = builder.Finish();
  if (!module) return Fail(module.error());
  auto client = kiln::Client::Connect();
  if (!client) return Fail(client.error());
  const auto compiled = client->Compile({.module = std::move(*module), .target = target});
  if (!compiled) return Fail(compiled.error());
  const auto report = kiln::ReadReport(*compiled);
  if (!report) return Fail(report.error());
  Print(*compiled, *report);
  if (target == here) return Run(*compiled, builder);
  std::cout << "not run: " << (devices ? "the GPU here is " + here : devices.error().message) << '\n';
  return 0;
}
