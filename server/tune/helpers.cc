// SPDX-License-Identifier: Apache-2.0
#include "server/tune/helpers.h"

#include <algorithm>
#include <utility>

namespace kiln::server {
namespace {

constexpr std::size_t kAhead = 2;  // tasks of a helper: the tuning's thread, which gives them, measures as well

}  // namespace

Helpers::Helpers(Options options, Bench& bench, const cache::Clock& clock, std::function<void()> news)
    : options_(options), bench_(bench), clock_(clock), news_(std::move(news)) {
  cache::MutexLock lock(mutex_);
  for (std::size_t i = 0; i < options_.helpers; ++i) {
    helpers_.push_back(std::make_unique<Helper>());
    helpers_.back()->thread = std::jthread([this, i] { Work(i); });
  }
}

Helpers::~Helpers() {
  std::vector<std::jthread> threads;
  {
    cache::MutexLock lock(mutex_);
    stopping_ = true;
    for (const auto& helper : helpers_) threads.push_back(std::move(helper->thread));
  }
  changed_.NotifyAll();
}  // joins

bool Helpers::HasRoom(std::size_t helper) const {
  cache::MutexLock lock(mutex_);
  return helpers_[helper]->tasks.size() + (helpers_[helper]->measures ? 1 : 0) < kAhead;
}

void Helpers::Give(std::size_t helper, const Task& task) {
  {
    cache::MutexLock lock(mutex_);
    helpers_[helper]->tasks.push_back(task);
  }
  changed_.NotifyAll();
}

std::vector<Helpers::Done> Helpers::Take() {
  cache::MutexLock lock(mutex_);
  return std::exchange(done_, {});
}

std::vector<Helpers::Task> Helpers::Withdraw(std::size_t helper) {
  cache::MutexLock lock(mutex_);
  auto& tasks = helpers_[helper]->tasks;
  std::vector<Task> all(tasks.begin(), tasks.end());
  tasks.clear();
  return all;
}

// Waits for a task. False: there will be none.
bool Helpers::Next(std::size_t which, Task& task) {
  cache::MutexLock lock(mutex_);
  Helper& helper = *helpers_[which];
  helper.measures = false;
  changed_.Wait(mutex_, [&]() KILN_REQUIRES(mutex_) { return stopping_ || !helper.tasks.empty(); });
  if (stopping_) return false;
  task = helper.tasks.front();
  helper.tasks.pop_front();
  helper.measures = true;
  return true;
}

void Helpers::Work(std::size_t which) {
  for (Task task; Next(which, task);) {
    Bench::Measured measured = bench_.Measure(task.candidate, task.samples, task.limit, options_.until, which + 1);
    const auto took = measured.took;
    {
      cache::MutexLock lock(mutex_);
      done_.push_back({which, task, std::move(measured)});
    }
    news_();
    Rest(took);
  }
}

// Leaves the device alone for so long that the share is not exceeded.
void Helpers::Rest(std::chrono::microseconds took) {
  const double rest = static_cast<double>(took.count()) * (1 / options_.device_share - 1);
  const auto end = std::min(clock_.SteadyNow() + std::chrono::microseconds(static_cast<std::int64_t>(rest)), options_.until);
  cache::MutexLock lock(mutex_);
  for (auto now = clock_.SteadyNow(); !stopping_ && now < end; now = clock_.SteadyNow()) {
    changed_.WaitFor(mutex_, std::chrono::ceil<std::chrono::microseconds>(end - now));
  }
}

}  // namespace kiln::server
