// SPDX-License-Identifier: Apache-2.0
#include "server/tune/data/tune_tensors.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/flow/run_outputs.h"
#include "server/tune/data/fill.h"

namespace kiln::server {
namespace {

using Kind = Failure::Kind;

constexpr std::size_t kPiece = std::size_t{1} << 20;

Failure Malformed(std::string message) { return {.kind = Kind::kMalformed, .message = std::move(message)}; }
Failure Later(std::string_view reason) {
  return {.kind = Kind::kQueueFull, .message = fmt::format("{}; try again in a second", reason), .retry_after = std::chrono::seconds(1)};
}

std::uint64_t RoundUp(std::uint64_t bytes) { return (bytes + RunMemory::kPage - 1) / RunMemory::kPage * RunMemory::kPage; }

}  // namespace

std::expected<std::unique_ptr<TuneTensors>, Failure> TuneTensors::Create(const v1::TuneStart& start, const std::string& tenant, RunBudget& budget,
                                                                         Limits limits) {
  if (static_cast<unsigned>(start.arguments_size()) > limits.arguments) {
    return std::unexpected(Malformed(
        fmt::format("a tuning of kernels with {} arguments; this kilnd takes {} (--max-run-arguments)", start.arguments_size(), limits.arguments)));
  }
  std::unique_ptr<TuneTensors> made(new TuneTensors(start, tenant, budget, limits));
  std::uint64_t all = 0;
  for (int i = 0; i < start.arguments_size(); ++i) {
    const v1::TuneArgument& argument = start.arguments(i);
    if (auto problem = ProblemOf(argument)) return std::unexpected(Malformed(fmt::format("argument {}: {}", i, *problem)));
    if (argument.tensor().storage() != 0) {
      return std::unexpected(Malformed(fmt::format("argument {} shares its bytes with another; in a tuning each tensor has bytes of its own", i)));
    }
    if (argument.tensor().bytes() > limits.call_bytes || all + argument.tensor().bytes() > limits.call_bytes) {
      return std::unexpected(
          Failure{.kind = Kind::kTooMuch,
                  .message = fmt::format("the tensors have more than the {} bytes that this kilnd takes (--run-data)", limits.call_bytes)});
    }
    all += argument.tensor().bytes();
    made->positions_.push_back(made->used_);
    made->used_ += RoundUp(argument.tensor().bytes());
    v1::RunArgument& to = *made->start_.add_arguments();
    if (argument.has_tensor()) *to.mutable_tensor() = argument.tensor();
    if (argument.kind_case() == v1::TuneArgument::kInteger) to.set_integer(argument.integer());
    if (argument.kind_case() == v1::TuneArgument::kReal) to.set_real(argument.real());
  }
  auto hold = budget.Begin(tenant, made->used_);
  if (!hold) return std::unexpected(Later(hold.error()));
  auto memory = RunMemory::Create(made->used_, std::move(*hold));
  if (!memory) return std::unexpected(Later(memory.error()));
  made->memory_ = std::move(*memory);
  return made;
}

std::optional<Failure> TuneTensors::Add(std::string_view data) {
  if (data.size() > kPiece) return Malformed(fmt::format("a piece of data has {} bytes; send at most {}", data.size(), kPiece));
  data_.Update(data);
  while (!data.empty() && filling_ < arguments_.size()) {
    const std::uint64_t bytes = OwnBytes(arguments_[filling_]);
    const std::string_view part = data.substr(0, bytes - filled_);
    if (!memory_->Write(positions_[filling_] + filled_, part)) return Later("there is no memory for the tensors");
    filled_ += part.size();
    data.remove_prefix(part.size());
    if (filled_ < bytes) break;
    ++filling_;
    filled_ = 0;
  }
  if (data.empty()) return std::nullopt;
  return Malformed("more data came than was announced for the tensors");
}

std::optional<Failure> TuneTensors::Missing() const {
  std::uint64_t missing = 0;
  for (std::size_t i = filling_; i < arguments_.size(); ++i) missing += OwnBytes(arguments_[i]);
  if (missing == filled_) return std::nullopt;
  return Malformed(fmt::format("{} bytes of the tensors' data did not come", missing - filled_));
}

cache::Digest TuneTensors::DigestOfGiven() {
  cache::Hasher all;
  all.Update(fmt::format("seed {}\n", seed_));
  for (const v1::TuneArgument& argument : arguments_) all.Update(cache::Sha256(argument.SerializeAsString()).view());
  return all.Update(data_.Finish().view()).Finish();
}

std::expected<void, std::string> TuneTensors::Prepare(std::string_view reply) {
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const auto write = [&](std::uint64_t at, std::string_view data) { return memory_->Write(positions_[i] + at, data); };
    if (!Fill(arguments_[i], seed_ + i, write)) return std::unexpected("there is no memory for the tensors");
  }
  std::uint64_t given = 0;
  for (const v1::TuneArgument& argument : arguments_) given += argument.tensor().bytes();
  outputs_ = OutputBytes(start_, reply, RunMemory::kPage, limits_.call_bytes - given);
  return memory_->Seal(outputs_);
}

std::expected<std::shared_ptr<RunMemory>, std::string> TuneTensors::Copy(Outputs outputs) {
  auto hold = budget_.Begin(tenant_, used_);
  if (!hold) return std::unexpected(std::move(hold.error()));
  auto copy = RunMemory::Create(used_, std::move(*hold));
  if (!copy) return copy;
  constexpr const char* kNoMemory = "there is no memory for the tensors";
  std::string piece;
  for (std::uint64_t at = 0; at < used_; at += piece.size()) {
    piece.resize(std::min<std::uint64_t>(kPiece, used_ - at));
    if (!memory_->Read(at, piece.data(), piece.size()) || !(*copy)->Write(at, piece)) return std::unexpected(kNoMemory);
  }
  if (auto sealed = (*copy)->Seal(outputs_); !sealed) return std::unexpected(std::move(sealed.error()));
  if (outputs == Outputs::kZeros) return copy;
  for (std::uint64_t at = used_; at < used_ + outputs_; at += piece.size()) {
    piece.assign(std::min<std::uint64_t>(kPiece, used_ + outputs_ - at), '\xff');
    if (!(*copy)->Write(at, piece)) return std::unexpected(kNoMemory);
  }
  return copy;
}

void TuneTensors::Describe(const RunMemory& memory, v1::DeviceRun& run) const {
  *run.mutable_arguments() = start_.arguments();
  run.mutable_positions()->Assign(positions_.begin(), positions_.end());
  run.set_memory_bytes(memory.bytes());
  run.set_memory_used(used_);
  run.set_limit_bytes(limits_.call_bytes);
}

}  // namespace kiln::server
