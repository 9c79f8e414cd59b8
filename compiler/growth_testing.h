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
  double few;  // seconds
  double many;
  double ratio() const { return many / few; }
};

// Programs of 16 times the length take 16 times as long in proportion and 256 times in quadratic time. The bar is the geometric middle:
// caches that overflow and neighbours that use the machine cost a factor of two, not four.
inline constexpr int kTimesAsLong = 16;
inline constexpr double kBar = 64;

// The least seconds of `work(length)` and of `work(kTimesAsLong * length)`; again, up to three times, while they are kBar or more apart.
template <typename Work>
Growth MeasureGrowth(int length, Work&& work) {
  work(length);  // also pays for what a process does once
  Growth growth{work(length), 1e9};
  for (int round = 0; round == 0 || (round < 3 && growth.ratio() >= kBar); ++round) {
    growth.few = std::min(growth.few, work(length));
    growth.many = std::min(growth.many, work(kTimesAsLong * length));
  }
  return growth;
}

}  // namespace kiln::compiler
