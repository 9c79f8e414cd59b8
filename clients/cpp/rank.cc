// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/rank.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "clients/cpp/client_impl.h"
#include "clients/cpp/convert.h"

namespace kiln {
namespace {

KernelEstimate ToKernel(const v1::KernelEstimate& said) {
  const auto terms = [](const auto& from) {
    std::vector<PlanTerm> to;
    for (const v1::PlanTerm& term : from) to.push_back({term.name(), term.microseconds()});
    return to;
  };
  return {.microseconds = said.microseconds(),
          .units = terms(said.units()),
          .waits = terms(said.waits()),
          .launch = said.launch(),
          .turns = said.turns(),
          .grid = said.grid(),
          .l2_bytes = said.l2_bytes(),
          .memory_bytes = said.memory_bytes(),
          .registers = said.registers(),
          .spilled = said.spilled(),
          .shared_bytes = said.shared_bytes(),
          .blocks = said.blocks()};
}

}  // namespace

Estimate FromProto(const v1::Estimate& said) {
  Estimate estimate{.microseconds = said.microseconds(), .board = said.board(), .kernels = {}};
  for (const v1::KernelEstimate& kernel : said.kernels()) estimate.kernels.push_back(ToKernel(kernel));
  return estimate;
}

namespace {

Ranked ToRanked(const v1::RankedCandidate& said) {
  Ranked ranked{.candidate = said.candidate(), .microseconds = std::numeric_limits<double>::infinity(), .problem = said.message()};
  if (!said.has_estimate()) return ranked;
  Estimate estimate = FromProto(said.estimate());
  ranked.microseconds = estimate.microseconds;
  ranked.board = std::move(estimate.board);
  ranked.kernels = std::move(estimate.kernels);
  return ranked;
}

}  // namespace

Client::Result<std::vector<Ranked>> Client::Rank(const RankRequest& request) {
  v1::RankRequest message;
  for (const CompileRequest& candidate : request.candidates) *message.add_candidates() = ToProto(candidate);
  message.mutable_options()->set_board(request.board);
  message.mutable_options()->mutable_symbols()->insert(request.symbols.begin(), request.symbols.end());
  message.set_space(request.space);
  std::vector<Ranked> ranked;
  auto called = impl_->Try([&](grpc::ClientContext& context) {
    const auto reader = impl_->stub->Rank(&context, message);
    ranked.clear();
    for (v1::RankProgress news; reader->Read(&news);)
      for (const v1::RankedCandidate& said : news.candidates()) ranked.push_back(ToRanked(said));
    return reader->Finish();
  });
  if (!called) return std::unexpected(std::move(called.error()));
  if (ranked.size() != request.candidates.size() ||
      std::ranges::any_of(ranked, [&](const Ranked& one) { return one.candidate >= request.candidates.size(); })) {
    return std::unexpected(Error{.code = ErrorCode::kInternal, .message = "the daemon's ranking is not of these candidates"});
  }
  std::ranges::sort(ranked, {}, [](const Ranked& one) { return std::pair(one.microseconds, one.candidate); });
  return ranked;
}

}  // namespace kiln
