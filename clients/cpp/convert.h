// SPDX-License-Identifier: Apache-2.0
//
// Between the wire's messages and the client's structs. Not part of the client's interface.
#pragma once

#include "clients/cpp/client.h"
#include "clients/cpp/rank.h"
#include "kiln/v1/service.pb.h"

namespace kiln {

v1::CompileRequest ToProto(const CompileRequest& request);
CompileRequest FromProto(const v1::CompileRequest& request);
Diagnostic FromProto(const v1::Diagnostic& diagnostic);
Compiled FromProto(v1::CompileReply reply);
EnsureProgress FromProto(const v1::EnsureProgress& progress);
Stats FromProto(const v1::StatsReply& reply);
Capabilities FromProto(const v1::CapabilitiesReply& reply);
CacheEntry FromProto(const v1::CacheEntry& entry);
Estimate FromProto(const v1::Estimate& said);

}  // namespace kiln
