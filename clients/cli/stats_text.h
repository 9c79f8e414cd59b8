// SPDX-License-Identifier: Apache-2.0
//
// What a daemon says about itself, for `kiln stats` and `kiln top`.
#pragma once

#include <deque>
#include <string>
#include <string_view>

#include "clients/cli/json.h"
#include "clients/cpp/client.h"

namespace kiln::cli {

Json ToJson(const Stats& stats);

// Everything since the start.
std::string StatsText(const Stats& stats, std::string_view address, bool colours);

// What happened between two looks, a second.
struct Rates {
  double requests = 0, hits = 0, compiles = 0, joined = 0, refused = 0, failed = 0;
  double hit_ratio = 0;    // of the requests
  double device_busy = 0;  // of all devices' workers, 0 to 1
};
Rates RatesOf(const Stats& before, const Stats& after);
Json ToJson(const Rates& rates);

// One frame of `kiln top`; `history` holds the requests a second of the last looks, oldest first.
std::string TopFrame(const Stats& stats, const Rates& rates, const std::deque<double>& history, std::string_view address, bool colours);

std::string Bar(double part, int width);                  // "████▌     "
std::string Sparkline(const std::deque<double>& values);  // "▁▂▇█"
std::string Duration(double seconds);                     // "3 h 12 min"

}  // namespace kiln::cli
