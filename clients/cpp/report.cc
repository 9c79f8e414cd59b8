// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/report.h"

#include "kiln/v1/compile.pb.h"

namespace kiln {

std::expected<Report, Error> ReadReport(const Compiled& compiled) {
  v1::Artifact artifact;
  if (!artifact.ParseFromString(compiled.artifact)) {
    return std::unexpected(Error{.code = ErrorCode::kInvalid, .message = "these bytes are no kiln.v1.Artifact"});
  }
  Report out;
  for (const v1::Decision& d : artifact.report().decisions()) out.decisions.push_back({d.pass(), d.subject(), d.decision(), d.reason(), d.line()});
  for (const v1::SharedSlot& s : artifact.report().shared_memory())
    out.shared_memory.push_back({s.buffer(), s.offset(), s.bytes(), s.versions(), s.layout(), s.bank_conflicts()});
  for (const v1::KernelResources& k : artifact.report().kernels()) {
    Report::Resources& resources = out.kernels.emplace_back(k.entry(), k.shared_bytes());
    if (k.has_registers()) resources.registers = k.registers();
    if (k.has_spill_bytes()) resources.spill_bytes = k.spill_bytes();
    if (k.has_local_bytes()) resources.local_bytes = k.local_bytes();
    if (k.has_scalar_registers()) resources.scalar_registers = k.scalar_registers();
  }
  return out;
}

}  // namespace kiln
