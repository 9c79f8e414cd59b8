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
#include "server/wire/request_key.h"
#include "server/wire/wire.h"

namespace kiln::server {
namespace {

using Kind = Failure::Kind;

constexpr std::size_t kMostCandidates = 4096;  // that may take more memory than their bytes say
constexpr std::size_t kOfACandidate = 768;     // so much
constexpr std::size_t kLeastOfACandidate = 4;  // bytes

Failure Malformed(std::string message) { return {.kind = Kind::kMalformed, .message = std::move(message)}; }

std::optional<Failure> ProblemOf(const v1::CompileRequest& request, const v1::TuneSpace& space) {
  const v1::TuneStart& start = space.start();
  if (space.candidates().empty()) return Malformed("a space has candidates");
  if (start.candidates() != 0 && start.candidates() != static_cast<std::uint32_t>(space.candidates_size())) {
    return Malformed(fmt::format("the space says that it has {} candidates, and has {}", start.candidates(), space.candidates_size()));
  }
  if (request.has_explain()) return Malformed("what is explained is one program; a space has several. Explain the one that is chosen");
  if (request.refresh()) return Malformed("a space is tuned anew by its own refresh (TuneStart), and the request's has no meaning beside it");
  if (!request.target().empty()) {  // before it is every candidate's
    if (auto problem = ProblemOfTarget(request.target())) return problem;
  }
  if (start.known_only()) return Malformed("a space that is only looked up (known_only) may have no program; Tune takes that");
  for (int i = 0; i < start.arguments_size(); ++i) {
    const v1::TuneArgument& argument = start.arguments(i);
    if (argument.kind_case() == v1::TuneArgument::kTensor && argument.fill() == v1::TUNE_FILL_DATA) {
      return Malformed(fmt::format("argument {} of the space is data of the caller's, which travel in a Tune alone; give a recipe", i + 1));
    }
  }
  return std::nullopt;
}

std::optional<Failure> ProblemOf(const v1::CompileRequest& program) {
  if (!program.space().empty()) return Malformed("a candidate of a space has no space of its own");
  if (program.has_explain() || program.refresh()) {
    return Malformed("a candidate of a space is neither explained nor compiled anew (refresh); the space's own refresh (TuneStart) measures anew");
  }
  return std::nullopt;
}

// What it is, without a copy of anything; the request's bytes of it are given up.
std::expected<v1::TuneSpace, Failure> SpaceOf(v1::CompileRequest& request) {
  v1::TuneSpace space;
  const std::size_t most = std::min(request.space().size() / kLeastOfACandidate, kMostCandidates);
  if (auto read = ReadMessage(request.space(), space, kOfACandidate * most); !read) return std::unexpected(std::move(read.error()));
  request.clear_space();
  if (auto problem = ProblemOf(request, space)) return std::unexpected(std::move(*problem));
  for (const v1::TuneCandidate& candidate : space.candidates()) {
    if (auto problem = ProblemOf(candidate.program())) return std::unexpected(std::move(*problem));
  }
  space.mutable_start()->set_candidates(static_cast<std::uint32_t>(space.candidates_size()));
  return space;
}

// What a candidate takes from the request. An empty module is the first candidate's, which takes the request's; if that has its own, each takes
// the request's.
struct Lacks {
  bool module = false, target = false, options = false;

  std::size_t BytesOf(const v1::CompileRequest& request) const {
    return (module ? request.module().size() : 0) + (target ? request.target().size() : 0) + (options ? request.options().ByteSizeLong() : 0);
  }
};

Lacks LacksOf(const v1::CompileRequest& program, const v1::CompileRequest& first, const v1::CompileRequest& request) {
  const bool is_firsts = &program != &first && first.module() == request.module();
  return {.module = program.module().empty() && !is_firsts, .target = program.target().empty(), .options = !program.has_options()};
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
  v1::TuneSpace space;         // with what its candidates leave to that
  v1::TuneProgress told;
  std::vector<std::uint32_t> choices;  // from 1; the first that compiles

  // What is under way ends the call; while nothing is, whoever cancels does.
  cache::Mutex mutex;
  bool cancelled KILN_GUARDED_BY(mutex) = false;
  std::vector<TenantBudget::Charge> charges KILN_GUARDED_BY(mutex);  // until the client is told
  std::shared_ptr<TuneFlow::Call> tuning KILN_GUARDED_BY(mutex);
  std::optional<std::size_t> compiles KILN_GUARDED_BY(mutex);  // this one of the choices
  std::shared_ptr<CompileFlow::Call> compiling KILN_GUARDED_BY(mutex);

  bool is_cancelled() {
    cache::MutexLock lock(mutex);
    return cancelled;
  }
  // False: it was cancelled, and has ended.
  bool Begins(std::shared_ptr<TuneFlow::Call> begun) {
    cache::MutexLock lock(mutex);
    if (!cancelled) tuning = std::move(begun);
    return !cancelled;
  }
  bool Begins(std::size_t choice) {
    cache::MutexLock lock(mutex);
    if (!cancelled) compiles = choice;
    return !cancelled;
  }
  void Ended(std::size_t choice) {
    cache::MutexLock lock(mutex);
    if (compiles != choice) return;
    compiles.reset();
    compiling.reset();
  }
  // Under the mutex, so that whoever is told is not gone.
  void Tell(const v1::TuneProgress& progress) {
    cache::MutexLock lock(mutex);
    if (request.done && on_progress) on_progress(progress);
  }
  void Tell(std::string_view stage) {
    cache::MutexLock lock(mutex);
    if (request.done) request.on_stage(stage);
  }
  void Keep(TenantBudget::Charge charge) {
    cache::MutexLock lock(mutex);
    if (request.done) charges.push_back(std::move(charge));
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
  call->Keep(std::move(*charge));
  if (!parts_.compile.Post(parts_.heavy, tenant, [this, call] { Read(call); })) End(call, std::unexpected(ExecutorFull(tenant)));
  return call;
}

void SpaceFlow::Read(const std::shared_ptr<Call>& call) {
  if (auto read = ReadMessage(call->request.bytes, call->compile); !read) return End(call, std::unexpected(std::move(read.error())));
  std::string().swap(call->request.bytes);
  auto space = SpaceOf(call->compile);
  if (!space) return End(call, std::unexpected(std::move(space.error())));
  call->space = std::move(*space);
  if (auto refused = Admit(*call)) return End(call, std::unexpected(std::move(*refused)));
  if (auto refused = Complete(*call)) return End(call, std::unexpected(std::move(*refused)));
  Tune(call);
}

// What is refused before it takes more memory than its bytes.
std::optional<Failure> SpaceFlow::Admit(const Call& call) const {
  if (call.space.start().mode() != v1::TUNE_OFF) {
    if (auto may = parts_.gate.Require(call.request.caller, Scope::kTune, "Compile of a space"); !may) return std::move(may.error());
  }
  return parts_.tunings.Check(call.space.start());
}

// Gives each candidate what it leaves to the request. Each copy is counted before it is made.
std::optional<Failure> SpaceFlow::Complete(Call& call) {
  const v1::CompileRequest& first = call.space.candidates(0).program();
  for (v1::TuneCandidate& candidate : *call.space.mutable_candidates()) {
    if (call.is_cancelled()) return Cancelled();
    v1::CompileRequest& program = *candidate.mutable_program();
    const Lacks lacks = LacksOf(program, first, call.compile);
    if (lacks.target && call.compile.target().empty()) return Malformed("neither the request of a space nor its candidate names a target");
    auto charge = parts_.compile.Hold(call.request.caller.tenant, lacks.BytesOf(call.compile));
    if (!charge) return std::move(charge.error());
    call.Keep(std::move(*charge));
    if (lacks.module) program.set_module(call.compile.module());
    if (lacks.target) program.set_target(call.compile.target());
    if (lacks.options) *program.mutable_options() = call.compile.options();
  }
  return std::nullopt;
}

void SpaceFlow::Tune(const std::shared_ptr<Call>& call) {
  auto begun = parts_.tunings.Begin(call->request.caller, call->request.id, call->request.accepted, call->space.start());
  if (!begun) return End(call, std::unexpected(std::move(begun.error())));
  for (const v1::TuneCandidate& candidate : call->space.candidates()) {
    if (auto problem = parts_.tunings.Add(**begun, candidate)) return End(call, std::unexpected(std::move(*problem)));
  }
  if (!call->Begins(*begun)) return;
  parts_.tunings.Run(
      *begun, [call](const v1::TuneProgress& progress) { call->Tell(progress); },
      [this, call](TuneFlow::Told told) { Choose(call, std::move(told)); });
  if (call->is_cancelled()) parts_.tunings.Cancel(*begun);  // perhaps before it ran
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

v1::CompileRequest SpaceFlow::ProgramOf(const Call& call, std::size_t which) {
  v1::CompileRequest program = call.space.candidates(static_cast<int>(call.choices[which]) - 1).program();
  if (program.module().empty()) program.set_module(call.space.candidates(0).program().module());
  program.set_priority(call.compile.priority());
  program.set_durable(call.compile.durable());
  return program;
}

bool SpaceFlow::TriesAnother(Call& call, std::size_t which, const Outcome& outcome) {
  return !outcome && IsOfProgram(outcome.error().kind) && which + 1 < call.choices.size() && !call.is_cancelled();
}

// The choices from `which` on, until one compiles.
void SpaceFlow::Compile(const std::shared_ptr<Call>& call, std::size_t which) {
  for (;; ++which) {
    const v1::CompileRequest program = ProgramOf(*call, which);
    std::string bytes = program.SerializeAsString();
    const cache::Digest digest = DigestOf("Compile", bytes);
    auto known = parts_.compile.FindHot(digest, call->request.caller.tenant, [&] { return program.durable(); });
    if (!known) return StartCompile(call, which, std::move(bytes), digest);
    if (!TriesAnother(*call, which, *known)) return Answer(call, which, std::move(*known));
  }
}

void SpaceFlow::StartCompile(const std::shared_ptr<Call>& call, std::size_t which, std::string bytes, const cache::Digest& digest) {
  if (!call->Begins(which)) return;
  StageBoard::Listener on_stage;
  if (call->request.on_stage) on_stage = [call](std::string_view stage) { call->Tell(stage); };
  auto started = parts_.compile.Start({.id = call->request.id,
                                       .caller = call->request.caller,
                                       .bytes = std::move(bytes),
                                       .digest = digest,
                                       .accepted = call->request.accepted,
                                       .part_of_another = false,
                                       .held = true,
                                       .via = call->request.via,
                                       .notes = call->request.notes,
                                       .on_stage = std::move(on_stage),
                                       .done = [this, call, which](Outcome outcome) {
                                         call->Ended(which);
                                         if (!TriesAnother(*call, which, outcome)) return Answer(call, which, std::move(outcome));
                                         // One that ended where it was started would start the next within itself.
                                         parts_.heavy.Resume(call->request.caller.tenant, [this, call, which] { Compile(call, which + 1); });
                                       }});
  bool cancel = false;
  {
    cache::MutexLock lock(call->mutex);
    cancel = call->cancelled;
    if (!cancel && call->compiles == which) call->compiling = started;
  }
  if (cancel) parts_.compile.Cancel(started);
}

void SpaceFlow::Answer(const std::shared_ptr<Call>& call, std::size_t which, Outcome outcome) {
  if (outcome) {
    v1::CompileReply more;
    more.set_chosen(call->choices[which]);
    more.set_tuned(call->told.SerializeAsString());
    outcome->more = more.SerializeAsString();
  }
  End(call, std::move(outcome));
}

void SpaceFlow::Cancel(const std::shared_ptr<Call>& call) {
  std::shared_ptr<TuneFlow::Call> tuning;
  std::shared_ptr<CompileFlow::Call> compiling;
  bool ends_itself = false;
  {
    cache::MutexLock lock(call->mutex);
    call->cancelled = true;
    tuning = call->tuning;
    compiling = call->compiling;  // null while it is being started: who starts it looks
    ends_itself = tuning || call->compiles;
  }
  if (tuning) parts_.tunings.Cancel(tuning);
  if (compiling) parts_.compile.Cancel(compiling);
  if (!ends_itself) End(call, std::unexpected(Cancelled()));
}

// Once: whoever comes second finds no `done`.
void SpaceFlow::End(const std::shared_ptr<Call>& call, Outcome outcome) {
  std::move_only_function<void(Outcome)> done;
  std::vector<TenantBudget::Charge> charges;
  {
    cache::MutexLock lock(call->mutex);
    done = std::exchange(call->request.done, {});
    charges.swap(call->charges);
  }
  charges.clear();
  if (done) done(std::move(outcome));
}

}  // namespace kiln::server
