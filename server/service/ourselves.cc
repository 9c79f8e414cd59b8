// SPDX-License-Identifier: Apache-2.0
#include "server/service/ourselves.h"

#include <unistd.h>

#include <array>
#include <iterator>
#include <string>
#include <vector>

#include "compiler/key.h"
#include "compiler/target/target.h"
#include "ir/codec/decode.h"
#include "server/reply/status_map.h"

namespace kiln::server {
namespace {

// The stages of a compile that are no passes.
constexpr const char* kOtherStages[] = {"decode", "llvm", "emit", "link", "ptxas"};

}  // namespace

v1::CapabilitiesReply DescribeOurselves(const Sealer& sealer) {
  v1::CapabilitiesReply reply;
  reply.set_version(KILN_VERSION);
  reply.set_compiler(std::string(compiler::BuildId()));
  reply.set_ir_version(ir::kFormatVersion);
  for (const target::Target& target : target::All()) reply.add_targets(std::string(target.name));
  const auto* ops = v1::Stmt::descriptor()->FindOneofByName("op");
  for (int i = 0; i < ops->field_count(); ++i) reply.add_ops(ops->field(i)->name());
  reply.set_signing_key(std::string(sealer.public_key().view()));
  return reply;
}

std::string HostName() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::unique_ptr<Telemetry> OpenAuditLog(const Config& config) {
  if (config.audit_log.empty()) return nullptr;
  return std::make_unique<Telemetry>(LogOptions{.json = config.log.json, .file = config.audit_log});
}

Metrics::Options MetricNames(Zygote& zygote) {
  Metrics::Options options{.version = KILN_VERSION, .compiler = std::string(compiler::BuildId()), .reasons = AllReasons()};
  for (const target::Target& target : target::All()) options.targets.emplace_back(target.name);
  options.stages = [&zygote] {
    std::vector<std::string> stages = zygote.Passes();
    stages.insert(stages.end(), std::begin(kOtherStages), std::end(kOtherStages));
    return stages;
  };
  return options;
}

}  // namespace kiln::server
