// SPDX-License-Identifier: Apache-2.0
//
// A Compile that leaves its program open (CompileRequest.space): a tuning finds which candidate it shall be, as TuneStart.mode says, and then that
// one is compiled as any other request. What the tuning says stands in the reply.
//
// Threads. Start returns at once and may be called from gRPC's threads. The space is read on the executor for heavy work. `on_progress` and `done`
// are called on any thread, or on the one that cancels, `done` exactly once; they should only hand over. Once `done` is called, neither `on_progress`
// nor the request's `on_stage` is.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cache/digest.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/tune.pb.h"
#include "server/access/gate.h"
#include "server/flow/compile_flow.h"
#include "server/queue/executor.h"
#include "server/tune/tune_flow.h"

namespace kiln::server {

class SpaceFlow {
 public:
  struct Parts {
    CompileFlow& compile;
    TuneFlow& tunings;
    Executor& heavy;
    const Gate& gate;
  };
  class Call;

  explicit SpaceFlow(Parts parts) : parts_(parts) {}

  // `request` as CompileFlow's; its `done` gets the reply. `on_progress` may be empty.
  std::shared_ptr<Call> Start(CompileFlow::Request request, Tuning::OnProgress on_progress);
  void Cancel(const std::shared_ptr<Call>& call);

 private:
  void Read(const std::shared_ptr<Call>& call);
  std::optional<Failure> Admit(const Call& call) const;
  std::optional<Failure> Complete(Call& call);
  void Tune(const std::shared_ptr<Call>& call);
  void Choose(const std::shared_ptr<Call>& call, TuneFlow::Told told);
  void Compile(const std::shared_ptr<Call>& call, std::size_t which);
  void StartCompile(const std::shared_ptr<Call>& call, std::size_t which, std::string bytes, const cache::Digest& digest);
  static void Answer(const std::shared_ptr<Call>& call, std::size_t which, Outcome outcome);
  static v1::CompileRequest ProgramOf(const Call& call, std::size_t which);
  static bool TriesAnother(Call& call, std::size_t which, const Outcome& outcome);
  static void End(const std::shared_ptr<Call>& call, Outcome outcome);

  const Parts parts_;
};

}  // namespace kiln::server
