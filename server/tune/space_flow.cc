// SPDX-License-Identifier: Apache-2.0
#include "server/tune/space_flow.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <expected>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cache/mutex.h"
#include "server/queue/refusals.h"
#include "server/telemetry/telemetry.h"
#include "server/wire/message_reader.h"
#include "server/wire/wire.h"

namespace kiln::server {
namespace {

using Kind = Failure::Kind;

constexpr std::size_t kMostCandidates = 4096;  // that may take more memory than their bytes say
constexpr std::size_t kOfACandidate = 768;     // so much
constexpr std::size_t kLeastOfACandidate = 4;  // bytes

Failure Malformed(std::string message) { return {.kind = Kind::kMalformed, .message = std::move(message)}; }

// What a space says, with what its candidates leave to the request.
struct Space {
  v1::TuneStart start;
  std::vector<v1::TuneCandidate> candidates;
};

std::optional<Failure> ProblemOf(const v1::CompileRequest& request, const v1::TuneSpace& space) {
  const v1::TuneStart& start = space.start();
  if (space.candidates().empty()) return Malformed("a space has candidates");
  if (start.candidates() != 0 && start.candidates() != static_cast<std::uint32_t>(space.candidates_size())) {
    return Malformed(fmt::format("the space says that it has {} candidates, and has {}", start.candidates(), space.candidates_size()));
  }
  if (request.has_explain()) return Malformed("what is explained is one program; a space has several. Explain the one that is chosen");
  if (request.refresh()) return Malformed("a space is tuned anew by its own refresh (TuneStart), and the request's has no meaning beside it");
  if (start.known_only()) return Malformed("a space that is only looked up (known_only) may have no program; Tune takes that");
  for (int i = 0; i < start.arguments_size(); ++i) {
    const v1::TuneArgument& argument = start.arguments(i);
    if (argument.kind_case() == v1::TuneArgument::kTensor && argument.fill() == v1::TUNE_FILL_DATA) {
      return Malformed(fmt::format("argument {} of the space is data of the caller's, which travel in a Tune alone; give a recipe", i + 1));
    }
  }
  return std::nullopt;
}

std::expected<Space, Failure> SpaceOf(v1::CompileRequest& request) {
  v1::TuneSpace said;
  const std::size_t most = std::min(request.space().size() / kLeastOfACandidate, kMostCandidates);
  if (auto read = ReadMessage(request.space(), said, kOfACandidate * most); !read) return std::unexpected(std::move(read.error()));
  request.clear_space();
  if (auto problem = ProblemOf(request, said)) return std::unexpected(std::move(*problem));
  Space space{.start = std::move(*said.mutable_start()), .candidates = {}};
  space.start.set_candidates(static_cast<std::uint32_t>(said.candidates_size()));
  for (v1::TuneCandidate& candidate : *said.mutable_candidates()) {
    v1::CompileRequest& program = *candidate.mutable_program();
    if (!program.space().empty()) return std::unexpected(Malformed("a candidate of a space has no space of its own"));
    // An empty module is the first candidate's, which takes the request's; if that has its own, each takes the request's.
    const bool is_firsts = !space.candidates.empty() && space.candidates.front().program().module() == request.module();
    if (program.module().empty() && !is_firsts) program.set_module(request.module());
    if (program.target().empty()) program.set_target(request.target());
    if (program.target().empty()) return std::unexpected(Malformed("neither the request of a space nor its candidate names a target"));
    if (!program.has_options()) *program.mutable_options() = request.options();
    space.candidates.push_back(std::move(candidate));
  }
  return space;
}

// Whether another choice may compile where this one does not.
bool IsOfProgram(Kind kind) { return kind == Kind::kInvalid || kind == Kind::kUnsupported || kind == Kind::kDefect; }

}  // namespace

class SpaceFlow::Call {
 public:
  Call(CompileFlow::Request asked, Tuning::OnProgress progress) : request(std::move(asked)), on_progress(std::move(progress)) {}

  CompileFlow::Request request;  // `done` under the mutex
  const Tuning::OnProgress on_progress;
  v1::CompileRequest compile;  // what the candidates share
  Space space;
  v1::TuneProgress told;
  std::vector<std::uint32_t> choices;  // from 1; the first that compiles
  std::optional<TenantBudget::Charge> charge;

  cache::Mutex mutex;
  bool cancelled KILN_GUARDED_BY(mutex) = false;
  std::shared_ptr<TuneFlow::Call> tuning KILN_GUARDED_BY(mutex);
  std::shared_ptr<CompileFlow::Call> compiling KILN_GUARDED_BY(mutex);

  bool is_cancelled() {
    cache::MutexLock lock(mutex);
    return cancelled;
  }
};

std::shared_ptr<SpaceFlow::Call> SpaceFlow::Start(CompileFlow::Request request, Tuning::OnProgress on_progress) {
  auto call = std::make_shared<Call>(std::move(request), std::move(on_progress));
  const std::string& tenant = call->request.caller.tenant;
  constexpr std::size_t kCopies = 2;  // the bytes, and what is read of them
  auto charge = parts_.compile.Hold(tenant, kCopies * call->request.bytes.size());
  if (!charge) {
    End(call, std::unexpected(std::move(charge.error())));
    return call;
  }
  call->charge.emplace(std::move(*charge));
  if (!parts_.compile.Post(parts_.heavy, tenant, [this, call] { Read(call); })) End(call, std::unexpected(ExecutorFull(tenant)));
  return call;
}

void SpaceFlow::Read(const std::shared_ptr<Call>& call) {
  if (auto read = ReadMessage(call->request.bytes, call->compile); !read) return End(call, std::unexpected(std::move(read.error())));
  std::string().swap(call->request.bytes);
  auto space = SpaceOf(call->compile);
  if (!space) return End(call, std::unexpected(std::move(space.error())));
  call->space = std::move(*space);
  if (call->space.start.mode() != v1::TUNE_OFF) {
    auto may = parts_.gate.Require(call->request.caller, Scope::kTune, "Compile of a space");
    if (!may) return End(call, std::unexpected(std::move(may.error())));
  }
  Tune(call);
}

void SpaceFlow::Tune(const std::shared_ptr<Call>& call) {
  auto begun = parts_.tunings.Begin(call->request.caller, call->request.id, call->request.accepted, call->space.start);
  if (!begun) return End(call, std::unexpected(std::move(begun.error())));
  for (const v1::TuneCandidate& candidate : call->space.candidates) {
    if (auto problem = parts_.tunings.Add(**begun, candidate)) return End(call, std::unexpected(std::move(*problem)));
  }
  {
    cache::MutexLock lock(call->mutex);
    call->tuning = *begun;
  }
  parts_.tunings.Run(
      *begun,
      [call](const v1::TuneProgress& progress) {
        if (call->on_progress) call->on_progress(progress);
      },
      [this, call](TuneFlow::Told told) { Choose(call, std::move(told)); });
  if (call->is_cancelled()) parts_.tunings.Cancel(*begun);
}

void SpaceFlow::Choose(const std::shared_ptr<Call>& call, TuneFlow::Told told) {
  {
    cache::MutexLock lock(call->mutex);
    call->tuning.reset();
  }
  if (!told) return End(call, std::unexpected(std::move(told.error())));
  call->told = std::move(*told);
  if (call->told.has_record()) call->choices = {call->told.record().winner()};
  else call->choices.assign(call->told.choices().begin(), call->told.choices().end());
  Compile(call, 0);
}

void SpaceFlow::Compile(const std::shared_ptr<Call>& call, std::size_t which) {
  const std::size_t candidate = call->choices[which] - 1;
  v1::CompileRequest program = call->space.candidates[candidate].program();
  if (program.module().empty()) program.set_module(call->space.candidates.front().program().module());
  program.clear_explain();
  program.clear_refresh();
  program.set_priority(call->compile.priority());
  program.set_durable(call->compile.durable());
  std::string bytes = program.SerializeAsString();
  const cache::Digest digest = DigestOf("Compile", bytes);
  const auto end = [this, call, which](Outcome outcome) {
    {
      cache::MutexLock lock(call->mutex);
      call->compiling.reset();
    }
    const bool another = !outcome && IsOfProgram(outcome.error().kind) && which + 1 < call->choices.size() && !call->is_cancelled();
    if (another) return Compile(call, which + 1);
    if (outcome) {
      v1::CompileReply more;
      more.set_chosen(call->choices[which]);
      more.set_tuned(call->told.SerializeAsString());
      outcome->more = more.SerializeAsString();
    }
    End(call, std::move(outcome));
  };
  if (call->is_cancelled()) return End(call, std::unexpected(Cancelled()));
  if (auto hit = parts_.compile.FindHot(digest, call->request.caller.tenant, [&] { return program.durable(); })) return end(std::move(*hit));
  auto started = parts_.compile.Start({.id = call->request.id,
                                       .caller = call->request.caller,
                                       .bytes = std::move(bytes),
                                       .digest = digest,
                                       .accepted = call->request.accepted,
                                       .part_of_another = false,
                                       .held = true,
                                       .via = call->request.via,
                                       .notes = call->request.notes,
                                       .on_stage = call->request.on_stage,
                                       .done = end});
  bool cancel = false;
  {
    cache::MutexLock lock(call->mutex);
    cancel = call->cancelled;
    if (!cancel) call->compiling = started;
  }
  if (cancel) parts_.compile.Cancel(started);
}

void SpaceFlow::Cancel(const std::shared_ptr<Call>& call) {
  std::shared_ptr<TuneFlow::Call> tuning;
  std::shared_ptr<CompileFlow::Call> compiling;
  {
    cache::MutexLock lock(call->mutex);
    call->cancelled = true;
    tuning = call->tuning;
    compiling = call->compiling;
  }
  if (tuning) parts_.tunings.Cancel(tuning);
  if (compiling) parts_.compile.Cancel(compiling);
  if (!tuning && !compiling) End(call, std::unexpected(Cancelled()));
}

// Once: whoever comes second finds no `done`.
void SpaceFlow::End(const std::shared_ptr<Call>& call, Outcome outcome) {
  std::move_only_function<void(Outcome)> done;
  {
    cache::MutexLock lock(call->mutex);
    done = std::exchange(call->request.done, {});
    call->charge.reset();
  }
  if (done) done(std::move(outcome));
}

}  // namespace kiln::server
