// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <prometheus/metric_family.h>

#include "server/telemetry/metrics.h"

namespace kiln::server {

// The sample as metric families, and what the kernel says about this process. A family is there even where it has no member.
std::vector<prometheus::MetricFamily> Describe(const Sample& sample);

}  // namespace kiln::server
