// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/tune.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "clients/cpp/client_impl.h"
#include "clients/cpp/convert.h"
#include "clients/runtime/dtype.h"

namespace kiln {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr double kTransferSeconds = 120;       // as a run's
constexpr double kLongestSeconds = 25 * 3600;  // more than any kilnd allows a tuning (--tune-limit), and what it takes to compare

std::uint64_t BytesOf(const Recipe& recipe) {
  const runtime::DTypeInfo* type = runtime::Find(static_cast<runtime::DType>(recipe.dtype));
  std::uint64_t elements = 1;
  for (const std::int64_t extent : recipe.shape) elements *= static_cast<std::uint64_t>(std::max<std::int64_t>(extent, 0));
  return type == nullptr ? 0 : runtime::Bytes(*type, elements);
}

v1::TuneFill ToProto(Recipe::Fill fill) {
  switch (fill) {
    case Recipe::Fill::kRandom: return v1::TUNE_FILL_RANDOM;
    case Recipe::Fill::kRange: return v1::TUNE_FILL_RANGE;
    case Recipe::Fill::kZeros: return v1::TUNE_FILL_ZEROS;
  }
  return v1::TUNE_FILL_RANDOM;
}

void ToProto(const TuneArgument& argument, v1::TuneArgument& to) {
  if (const auto* integer = std::get_if<std::int64_t>(&argument)) to.set_integer(*integer);
  if (const auto* real = std::get_if<double>(&argument)) to.set_real(*real);
  if (const auto* recipe = std::get_if<Recipe>(&argument)) {
    to.mutable_tensor()->set_dtype(static_cast<v1::DType>(recipe->dtype));
    to.mutable_tensor()->mutable_shape()->Assign(recipe->shape.begin(), recipe->shape.end());
    to.mutable_tensor()->set_bytes(BytesOf(*recipe));
    to.set_fill(ToProto(recipe->fill));
    to.set_low(recipe->low);
    to.set_high(recipe->high);
  }
  if (const auto* tensor = std::get_if<HostTensor>(&argument)) {
    v1::RunTensor& described = *to.mutable_tensor();
    described.set_dtype(static_cast<v1::DType>(tensor->dtype));
    described.mutable_shape()->Assign(tensor->shape.begin(), tensor->shape.end());
    described.mutable_strides()->Assign(tensor->strides.begin(), tensor->strides.end());
    described.set_offset(tensor->offset);
    described.set_bytes(tensor->bytes.size());
  }
}

v1::TuneStart ToStart(const TuneRequest& request) {
  v1::TuneStart start;
  start.set_device(request.device);
  for (const TuneArgument& argument : request.arguments) ToProto(argument, *start.add_arguments());
  start.set_candidates(static_cast<std::uint32_t>(request.candidates.size()));
  start.set_reference(request.reference ? static_cast<std::uint32_t>(*request.reference) + 1 : 0);
  start.set_budget_seconds(request.budget_seconds);
  start.set_budget_candidates(request.budget_candidates);
  start.set_candidate_seconds(request.candidate_seconds);
  start.set_measure_on_emulator(request.measure_on_emulator);
  start.set_refresh(request.refresh);
  start.set_known_only(request.known_only);
  start.set_seed(request.seed);
  start.set_mode(static_cast<v1::TuneMode>(request.mode));
  start.set_devices(request.devices);
  if (request.energy_candidates) start.set_energy_candidates(*request.energy_candidates);
  return start;
}

// False when the daemon takes no more; its status says why.
bool SendAll(grpc::ClientReaderWriter<v1::TuneRequest, v1::TuneProgress>& stream, const TuneRequest& request) {
  v1::TuneRequest message;
  *message.mutable_start() = ToStart(request);
  if (!stream.Write(message)) return false;
  for (const TuneCandidate& candidate : request.candidates) {
    *message.mutable_candidate()->mutable_program() = ToProto(candidate.program);
    message.mutable_candidate()->set_label(candidate.label);
    if (!stream.Write(message)) return false;
  }
  for (const TuneArgument& argument : request.arguments) {
    const auto* tensor = std::get_if<HostTensor>(&argument);
    if (tensor == nullptr) continue;
    for (std::size_t at = 0; at < tensor->bytes.size(); at += kPiece) {
      const auto piece = tensor->bytes.subspan(at, std::min(kPiece, tensor->bytes.size() - at));
      message.set_data(piece.data(), piece.size());
      if (!stream.Write(message)) return false;
    }
  }
  return true;
}

TuneProgress ProgressOf(const v1::TuneProgress& said) {
  return {.candidates = said.candidates(),
          .ranked = said.ranked(),
          .compiled = said.compiled(),
          .measured = said.measured(),
          .dropped = said.dropped(),
          .failed = said.failed(),
          .best = said.best() == 0 ? std::nullopt : std::optional<std::size_t>(said.best() - 1),
          .best_microseconds = said.best_microseconds(),
          .elapsed_seconds = said.elapsed_seconds(),
          .left_seconds = said.left_seconds()};
}

std::optional<LaunchEnergy> EnergyOf(const v1::TuneMeasurement& said) {
  if (!said.has_energy()) return std::nullopt;
  const v1::LaunchEnergy& energy = said.energy();
  return LaunchEnergy{energy.joules(), energy.watts(), energy.microseconds(), energy.launches(), energy.compute_mhz()};
}

Tuned TunedOf(const v1::TuneRecord& record, v1::Origin origin) {
  Tuned tuned{.winner = record.winner() - 1,
              .reference = record.reference() == 0 ? 0 : record.reference() - 1,
              .measurements = {},
              .key = record.key(),
              .device = record.device(),
              .target = record.target(),
              .driver = record.driver(),
              .compiler = record.compiler(),
              .seconds = record.seconds(),
              .rounds = record.rounds(),
              .energy_problem = record.energy_problem(),
              .caution = record.caution(),
              .origin = static_cast<Origin>(origin)};
  for (const v1::TuneDevice& said : record.devices()) tuned.devices.push_back({said.name(), said.scale(), said.measured(), said.left()});
  for (const v1::TuneMeasurement& said : record.measurements()) {
    tuned.measurements.push_back({said.label(),
                                  said.key(),
                                  static_cast<TuneOutcome>(said.outcome()),
                                  {said.microseconds().begin(), said.microseconds().end()},
                                  said.median(),
                                  said.noise(),
                                  said.problem(),
                                  said.has_estimate() ? std::optional(FromProto(said.estimate())) : std::nullopt,
                                  {said.compute_mhz().begin(), said.compute_mhz().end()},
                                  {said.memory_mhz().begin(), said.memory_mhz().end()},
                                  EnergyOf(said)});
  }
  return tuned;
}
static_assert(static_cast<int>(TuneMode::kBackground) == v1::TUNE_BACKGROUND && static_cast<int>(TuneMode::kOff) == v1::TUNE_OFF);
static_assert(static_cast<int>(TuneBasis::kNearRecord) == v1::TUNE_BASIS_NEAR_RECORD &&
              static_cast<int>(TuneBasis::kCaller) == v1::TUNE_BASIS_CALLER);
static_assert(static_cast<int>(TuneOutcome::kWrong) == v1::TUNE_WRONG && static_cast<int>(TuneOutcome::kRefused) == v1::TUNE_REFUSED);

// Without a record.
Tuned ChosenOf(const v1::TuneProgress& said) {
  Tuned tuned{.winner = said.choices(0) - 1, .basis = static_cast<TuneBasis>(said.basis()), .watch = said.watch(), .untuned = said.untuned()};
  for (const std::uint32_t choice : said.choices()) tuned.choices.push_back(choice - 1);
  return tuned;
}

v1::CompileRequest SpaceOf(const CompileRequest& request, const TuneRequest& space) {
  v1::TuneSpace said;
  *said.mutable_start() = ToStart(space);
  for (const TuneCandidate& candidate : space.candidates) {
    v1::TuneCandidate& to = *said.add_candidates();
    *to.mutable_program() = ToProto(candidate.program);
    to.set_label(candidate.label);
  }
  v1::CompileRequest wanted = ToProto(request);
  wanted.set_space(said.SerializeAsString());
  return wanted;
}

// The request that the reply is one to.
v1::CompileRequest ChosenFrom(const CompileRequest& request, const TuneRequest& space, std::size_t candidate) {
  CompileRequest whole = space.candidates[candidate].program;
  if (whole.module.empty()) whole.module = request.module;
  if (whole.module.empty()) whole.module = space.candidates.front().program.module;
  if (whole.target.empty()) whole.target = request.target;
  return ToProto(whole);
}

Error NotOfThese() { return {.code = ErrorCode::kInternal, .message = "the daemon's record is not one of these candidates"}; }

}  // namespace

std::pair<std::uint32_t, std::uint32_t> ClocksOf(const TuneMeasurement& said) {
  if (said.compute_mhz.empty()) return {0, 0};
  const auto [low, high] = std::ranges::minmax(said.compute_mhz);
  return {low, high};
}

Client::Result<Tuned> Client::WatchTune(const std::string& watch, const OnTuneProgress& on_progress) { return impl_->WatchTune(watch, on_progress); }

Client::Result<Tuned> Client::Impl::WatchTune(const std::string& watch, const OnTuneProgress& on_progress) const {
  v1::TuneProgress last;
  v1::WatchRequest request;
  request.set_key(watch);
  const auto call = [&](grpc::ClientContext& context) {
    const auto stream = stub->Watch(&context, request);
    last.Clear();
    while (stream->Read(&last)) {
      if (on_progress && !last.has_record()) on_progress(ProgressOf(last));
    }
    return stream->Finish();
  };
  auto called = Try(call, {.at_least = std::chrono::milliseconds(static_cast<std::int64_t>(kLongestSeconds * 1000))});
  if (!called) return std::unexpected(std::move(called.error()));
  const v1::TuneRecord& record = last.record();
  if (record.winner() == 0 || record.winner() > static_cast<std::uint32_t>(record.measurements_size())) return std::unexpected(NotOfThese());
  return TunedOf(record, last.origin());
}

Client::Result<Tuned> Client::Tune(const TuneRequest& request, const OnTuneProgress& on_progress) { return impl_->Tune(request, on_progress); }

Client::Result<Tuned> Client::Impl::Tune(const TuneRequest& request, const OnTuneProgress& on_progress) const {
  v1::TuneProgress last;
  const auto call = [&](grpc::ClientContext& context) {
    const auto stream = stub->Tune(&context);
    last.Clear();
    if (SendAll(*stream, request)) stream->WritesDone();
    while (stream->Read(&last)) {
      if (on_progress && !last.has_record()) on_progress(ProgressOf(last));
    }
    return stream->Finish();
  };
  const double budget = request.budget_seconds > 0 ? std::min(request.budget_seconds, kLongestSeconds) : kLongestSeconds;  // or it is the daemon's
  auto called = Try(call, {.at_least = std::chrono::milliseconds(static_cast<std::int64_t>((budget + kTransferSeconds) * 1000))});
  if (!called) return std::unexpected(std::move(called.error()));
  const auto is_candidate = [&](std::uint32_t number) { return number > 0 && number <= request.candidates.size(); };
  if (!last.has_record() && request.mode != TuneMode::kWait) {
    if (last.choices().empty() || !std::ranges::all_of(last.choices(), is_candidate)) return std::unexpected(NotOfThese());
    return ChosenOf(last);
  }
  const v1::TuneRecord& record = last.record();
  if (!is_candidate(record.winner()) || static_cast<std::size_t>(record.measurements_size()) != request.candidates.size()) {
    return std::unexpected(NotOfThese());
  }
  return TunedOf(record, last.origin());
}

Client::Result<Chosen> Client::CompileSpace(const CompileRequest& request, const TuneRequest& space, const OnTuneProgress& on_progress) {
  return impl_->CompileSpace(request, space, on_progress);
}

Client::Result<Chosen> Client::Impl::CompileSpace(const CompileRequest& request, const TuneRequest& space, const OnTuneProgress& on_progress) const {
  const v1::CompileRequest wanted = SpaceOf(request, space);
  if (auto learnt = trust.Learn(AskDaemon()); !learnt) return std::unexpected(std::move(learnt.error()));
  const grpc::internal::RpcMethod method("/kiln.v1.Kiln/CompileStream", grpc::internal::RpcMethod::SERVER_STREAMING);
  v1::SealedReply reply;
  const auto call = [&](grpc::ClientContext& context) {
    const std::unique_ptr<grpc::ClientReader<v1::SealedProgress>> reader(
        grpc::internal::ClientReaderFactory<v1::SealedProgress>::Create(channel.get(), method, &context, wanted));
    for (v1::SealedProgress progress; reader->Read(&progress);) {
      if (progress.has_reply()) reply.Swap(progress.mutable_reply());
      if (progress.has_tuning() && on_progress) on_progress(ProgressOf(progress.tuning()));
    }
    return reader->Finish();
  };
  const double budget = space.budget_seconds > 0 ? std::min(space.budget_seconds, kLongestSeconds) : kLongestSeconds;
  const double at_least = space.mode == TuneMode::kWait ? budget + kTransferSeconds : 0;
  auto called = Try(call, {.trace_parent = request.trace_parent, .at_least = std::chrono::milliseconds(static_cast<std::int64_t>(at_least * 1000))});
  if (!called) return std::unexpected(std::move(called.error()));
  v1::CompileReply said;  // of which nothing is believed but what is verified below
  v1::TuneProgress told;
  if (!said.ParseFromString(reply.SerializeAsString()) || said.chosen() == 0) {
    return std::unexpected(
        Error{.code = ErrorCode::kUnsupported, .message = "this kilnd is older than its client: it does not choose among programs"});
  }
  const auto is_candidate = [&](std::uint32_t number) { return number > 0 && number <= space.candidates.size(); };
  const bool whole = told.ParseFromString(said.tuned()) && is_candidate(said.chosen()) &&
                     (told.has_record() ? is_candidate(told.record().winner()) : !told.choices().empty()) &&
                     std::ranges::all_of(told.choices(), is_candidate);
  if (!whole) return std::unexpected(NotOfThese());
  const std::size_t candidate = said.chosen() - 1;
  const v1::CompileRequest chosen = ChosenFrom(request, space, candidate);
  return recorder.Around(chosen, [&]() -> Client::Result<Chosen> {
    auto compiled = Open(reply, {.request = &chosen});
    if (!compiled) return std::unexpected(std::move(compiled.error()));
    return Chosen{std::move(*compiled), candidate, told.has_record() ? TunedOf(told.record(), told.origin()) : ChosenOf(told)};
  });
}

}  // namespace kiln
