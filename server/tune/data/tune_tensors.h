// SPDX-License-Identifier: Apache-2.0
//
// The arguments that all candidates of a tuning get: the caller's own data, and what recipes make. One memory holds them as they were given;
// who lets a kernel write into its tensors takes a copy.
//
// Threads. Add before Prepare, by one thread at a time; then Prepare, Copy and Describe by the tuning's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/digest.h"
#include "kiln/v1/run.pb.h"
#include "kiln/v1/tune.pb.h"
#include "server/flow/run_memory.h"
#include "server/reply/failure.h"

namespace kiln::server {

class TuneTensors {
 public:
  struct Limits {
    std::uint64_t call_bytes = 0;  // of the tensors of one call, outputs included
    unsigned arguments = 0;
  };

  // What is wrong with the arguments, or that there is no memory for them.
  static std::expected<std::unique_ptr<TuneTensors>, Failure> Create(const v1::TuneStart& start, const std::string& tenant, RunBudget& budget,
                                                                     Limits limits);

  // The next bytes of the caller's own data.
  std::optional<Failure> Add(std::string_view data);
  std::optional<Failure> Missing() const;  // bytes that were announced and have not come

  // Of what was given: recipes, shapes, numbers and data.
  cache::Digest DigestOfGiven();

  // Makes what the recipes describe, and room for the outputs of a kernel that a serialized CompileReply holds. Once; on the error nothing
  // can be measured.
  std::expected<void, std::string> Prepare(std::string_view reply);

  // As given, for one kernel. What outputs hold before it is zeros, or bytes that are no number in most types: what a kernel leaves out then
  // shows, even where the right value is 0.
  enum class Outputs : std::uint8_t { kZeros, kNoNumbers };
  std::expected<std::shared_ptr<RunMemory>, std::string> Copy(Outputs outputs);
  // For kernels that write nowhere but on their device.
  const std::shared_ptr<RunMemory>& given() const { return memory_; }

  // Fills in all that a run says of its arguments.
  void Describe(const RunMemory& memory, v1::DeviceRun& run) const;

 private:
  TuneTensors(const v1::TuneStart& start, std::string tenant, RunBudget& budget, Limits limits)
      : tenant_(std::move(tenant)),
        budget_(budget),
        limits_(limits),
        seed_(start.seed()),
        arguments_(start.arguments().begin(), start.arguments().end()) {}
  std::uint64_t OwnBytes(const v1::TuneArgument& argument) const { return argument.fill() == v1::TUNE_FILL_DATA ? argument.tensor().bytes() : 0; }

  const std::string tenant_;
  RunBudget& budget_;
  const Limits limits_;
  const std::uint64_t seed_;
  const std::vector<v1::TuneArgument> arguments_;
  v1::RunStart start_;                    // the same arguments, as a run has them
  std::vector<std::uint64_t> positions_;  // of each argument's bytes
  std::uint64_t used_ = 0;                // of the memory, by the arguments
  std::uint64_t outputs_ = 0;             // behind them
  std::shared_ptr<RunMemory> memory_;
  cache::Hasher data_;        // what has come of the caller's own
  std::size_t filling_ = 0;   // the argument whose bytes come next
  std::uint64_t filled_ = 0;  // of it
};

}  // namespace kiln::server
