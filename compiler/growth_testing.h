// SPDX-License-Identifier: Apache-2.0
//
// How the time of a pass or a compile grows with the length of its program.
#pragma once

#include <algorithm>
#include <ctime>
#include <utility>

namespace kiln::compiler {

// The processor seconds that `work` takes in all threads. They depend far less than the clock's on who else uses the machine.
template <typename Work>
double ProcessorSeconds(Work&& work) {
  const std::clock_t start = std::clock();
  std::forward<Work>(work)();
  return double(std::clock() - start) / CLOCKS_PER_SEC;
}

struct Growth {
  double few;   // seconds
  double many;
  double ratio() const { return many / few; }
};

// The least time of `few`, measured at least twice, and that of `many`; again, up to three times, while they are `bar` times or more apart.
template <typename Few, typename Many>
Growth MeasureGrowth(double bar, Few&& few, Many&& many) {
  Growth growth{few(), 1e9};  // the first one also pays for what a process does once
  for (int round = 0; round == 0 || (round < 3 && growth.ratio() >= bar); ++round) {
    growth.few = std::min(growth.few, few());
    growth.many = std::min(growth.many, many());
  }
  return growth;
}

}  // namespace kiln::compiler
