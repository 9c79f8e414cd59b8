// SPDX-License-Identifier: Apache-2.0
//
// What this kilnd is called, and what of it never changes while it runs.
#pragma once

#include <memory>
#include <string>

#include "kiln/v1/service.pb.h"
#include "server/config/config.h"
#include "server/pool/zygote.h"
#include "server/reply/sealer.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/telemetry.h"

namespace kiln::server {

// As much of Capabilities as needs no asking.
v1::CapabilitiesReply DescribeOurselves(const Sealer& sealer);

std::string HostName();

// Null: what it would get goes into the log.
std::unique_ptr<Telemetry> OpenAuditLog(const Config& config);

Metrics::Options MetricNames(Zygote& zygote);

}  // namespace kiln::server
