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
              .caution = record.caution(),
              .origin = static_cast<Origin>(origin)};
  for (const v1::TuneMeasurement& said : record.measurements()) {
    tuned.measurements.push_back({said.label(),
                                  said.key(),
                                  static_cast<TuneOutcome>(said.outcome()),
                                  {said.microseconds().begin(), said.microseconds().end()},
                                  said.median(),
                                  said.noise(),
                                  said.problem(),
                                  said.has_estimate() ? std::optional(FromProto(said.estimate())) : std::nullopt});
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

Error NotOfThese() { return {.code = ErrorCode::kInternal, .message = "the daemon's record is not one of these candidates"}; }

}  // namespace

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

}  // namespace kiln
