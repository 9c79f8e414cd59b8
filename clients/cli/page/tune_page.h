// SPDX-License-Identifier: Apache-2.0
//
// One HTML page that shows what a tuning found: each candidate's time, what the planner expected of it, and by which terms. It needs nothing
// beside itself and runs no script.
#pragma once

#include <string>

#include "clients/cpp/tune.h"

namespace kiln::cli {

// How good the planner's word was. Of the candidates that have both an estimate and a time.
struct PlannerScore {
  std::size_t judged = 0;
  std::size_t winners_place = 0;  // of the fastest, in the planner's order, from 1; 0: it has no estimate
  std::string board;              // that the planner counted with
  double first_choice = 0;        // the time of the fastest, by the time of the planner's first choice; 1: it is the fastest
};
PlannerScore ScoreOf(const Tuned& tuned);

std::string MakeTunePage(const Tuned& tuned);

}  // namespace kiln::cli
