// SPDX-License-Identifier: Apache-2.0
#include "server/wire/request_key.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include "compiler/key.h"
#include "compiler/target/target.h"
#include "ir/codec/decode.h"
#include "server/system/utf8.h"

namespace kiln::server {
namespace {

v1::Diagnostic ToProto(const ir::Diagnostic& from) {
  v1::Diagnostic to;
  to.set_severity(static_cast<v1::Diagnostic::Severity>(from.severity));
  to.set_kind(static_cast<v1::Diagnostic::Kind>(from.kind));
  to.set_message(Utf8(from.message));
  to.set_hint(Utf8(from.hint));
  to.set_statement(Utf8(from.statement));
  to.set_line(from.loc.line);
  return to;
}
static_assert(static_cast<int>(ir::Severity::kNote) == v1::Diagnostic::NOTE);
static_assert(static_cast<int>(ir::FaultKind::kInternal) == v1::Diagnostic::INTERNAL);

Failure ToFailure(const ir::Diagnostics& diagnostics) {
  Failure failure{.kind = Failure::Kind::kUnsupported, .message = "the module cannot be read"};
  for (const ir::Diagnostic& diagnostic : diagnostics.all()) {
    if (diagnostic.severity != ir::Severity::kError) continue;
    if (diagnostic.kind != ir::FaultKind::kUnsupported) failure.kind = Failure::Kind::kInvalid;
    failure.diagnostics.push_back(ToProto(diagnostic));
  }
  if (!failure.diagnostics.empty()) failure.message = failure.diagnostics.front().message();
  if (diagnostics.errors() > 1) failure.message += " (and " + std::to_string(diagnostics.errors() - 1) + " more)";
  return failure;
}

Failure UnknownTarget(std::string message) {
  Failure failure{.kind = Failure::Kind::kInvalid, .message = std::move(message)};
  v1::Diagnostic& diagnostic = failure.diagnostics.emplace_back();
  diagnostic.set_message(failure.message);
  diagnostic.set_hint("`kiln devices` lists the targets");
  return failure;
}

}  // namespace

std::optional<Failure> ProblemOfTarget(std::string_view target) {
  const auto known = target::Find(target);
  return known ? std::nullopt : std::optional(UnknownTarget(known.error()));
}

std::expected<ResolvedRequest, Failure> Resolve(const v1::CompileRequest& request, const std::string& ptxas, const RequestLimits& limits,
                                                CallNotes* notes, WantsProgram wants_program) {
  if (!request.space().empty()) {
    return std::unexpected(Failure{.kind = Failure::Kind::kMalformed,
                                   .message = "this request leaves its program open (space), which Compile and CompileStream alone take; name one"});
  }
  const auto target = target::Find(request.target());
  if (!target) return std::unexpected(UnknownTarget(target.error()));
  ir::Diagnostics diagnostics;
  const auto module = ir::DecodeModule(request.module(), diagnostics);
  if (notes != nullptr) notes->Mark("decode");
  if (!module) return std::unexpected(ToFailure(diagnostics));
  if (auto over = OverLimit(*module, request.module().size(), limits)) return std::unexpected(std::move(*over));

  const std::string_view name = (*target)->name;
  const compiler::Key portable = compiler::ComputeKey(*module, name, request.options());
  const bool wants_cubin = (*target)->family == target::Family::kNvptx && !(*target)->emulated;
  const bool gets_cubin = wants_cubin && !ptxas.empty();
  const compiler::Key key = gets_cubin ? compiler::WithPtxas(portable, ptxas) : portable;
  if (notes != nullptr) {
    notes->Mark("key");
    notes->Identify(name, cache::Digest{key}.ToHex());
  }
  std::optional<cache::Digest> program;
  if (wants_program == WantsProgram::kYes) program = cache::Digest{compiler::ProgramKey(*module, name, request.options())};
  return ResolvedRequest{.key = cache::Digest{key},
                         .target = std::string(name),
                         .name = Utf8(module->name),
                         .has_functions = !module->functions.empty(),
                         .ptxas = wants_cubin ? std::optional(ptxas) : std::nullopt,
                         .portable = gets_cubin ? std::optional(cache::Digest{portable}) : std::nullopt,
                         .program = program};
}

RequestSettings SettingsOf(std::string_view request) {
  using google::protobuf::internal::WireFormatLite;
  constexpr int kMostFields = 64;  // of a request that a client of ours makes, a handful
  constexpr auto kPriority = WireFormatLite::MakeTag(v1::CompileRequest::kPriorityFieldNumber, WireFormatLite::WIRETYPE_VARINT);
  constexpr auto kDurable = WireFormatLite::MakeTag(v1::CompileRequest::kDurableFieldNumber, WireFormatLite::WIRETYPE_VARINT);
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const std::uint8_t*>(request.data()), static_cast<int>(request.size()));
  constexpr auto kSpace = WireFormatLite::MakeTag(v1::CompileRequest::kSpaceFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  std::uint64_t priority = v1::INTERACTIVE, durable = 0;
  bool has_space = false;
  for (int field = 0; field < kMostFields; ++field) {
    const std::uint32_t tag = stream.ReadTag();
    has_space |= tag == kSpace;
    const bool read = tag == kPriority  ? stream.ReadVarint64(&priority)
                      : tag == kDurable ? stream.ReadVarint64(&durable)
                                        : tag != 0 && WireFormatLite::SkipField(&stream, tag);
    if (!read) break;
  }
  return {static_cast<v1::Priority>(priority), durable != 0, has_space};
}

}  // namespace kiln::server
