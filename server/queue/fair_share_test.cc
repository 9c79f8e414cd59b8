// SPDX-License-Identifier: Apache-2.0
//
// Tenants before the workers, simulated: time is a number, a worker is when its job ends.
#include "server/queue/fair_share.h"
#include "cache/testing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "server/queue/admission.h"
#include "server/queue/tenant_budget.h"
#include "server/queue/tenant_pacer.h"

namespace kiln::server {
namespace {

struct Tenant {
  std::string name;
  double job_ms;
  std::size_t outstanding;  // what it keeps waiting or running; so many that most are refused: a flood
  v1::Priority priority = v1::INTERACTIVE;
};

// Runs so many workers for so long; the worker time each tenant got, in ms.
class Simulation {
 public:
  Simulation(std::vector<Tenant> tenants, std::size_t capacity, unsigned workers)
      : tenants_(std::move(tenants)), admission_(capacity, workers, clock_), running_(workers) {}

  std::map<std::string, double> Run(double until_ms) {
    for (double now = 0; now < until_ms; ++now, clock_.Advance(std::chrono::milliseconds(1))) {
      for (Running& worker : running_) {
        if (worker.job && worker.ends <= now) End(worker);
      }
      for (const Tenant& tenant : tenants_) Fill(tenant);
      for (Running& worker : running_) {
        if (!worker.job && admission_.queued() > 0) Begin(worker, now);
      }
    }
    return used_;
  }

 private:
  struct Running {
    std::unique_ptr<Job> job;
    double took = 0;
    double ends = 0;
  };

  void Fill(const Tenant& tenant) {
    while (present_[tenant.name] < tenant.outstanding) {
      auto job = std::make_unique<Job>();
      job->caller.tenant = tenant.name;
      job->priority = tenant.priority;
      job->done = [](JobOutcome) {};
      if (!admission_.Submit(job)) return;
      ++present_[tenant.name];
    }
  }

  void Begin(Running& worker, double now) {
    worker.job = admission_.Take();
    for (const Tenant& tenant : tenants_) {
      if (tenant.name == worker.job->caller.tenant) worker.took = tenant.job_ms;
    }
    worker.ends = now + worker.took;
  }

  void End(Running& worker) {
    const std::string& name = worker.job->caller.tenant;
    used_[name] += worker.took;
    --present_[name];
    admission_.Finished(*worker.job,
                        {.end = JobOutcome::End::kResult, .ran = std::chrono::microseconds(static_cast<std::int64_t>(worker.took * 1000))});
    worker.job.reset();
  }

  std::vector<Tenant> tenants_;
  cache::testing::ManualClock clock_;
  Admission admission_;
  std::vector<Running> running_;
  std::map<std::string, std::size_t> present_;
  std::map<std::string, double> used_;
};

TEST(FairShare, AFloodLeavesTheOtherItsHalf) {
  auto used = Simulation({{"flood", 10, 100'000}, {"small", 10, 4}}, 256, 2).Run(20'000);
  EXPECT_GE(used["small"], 0.9 * 20'000);
  EXPECT_GE(used["flood"], 0.9 * 20'000);
}

TEST(FairShare, SharesAreOfTimeAndNotOfJobs) {
  auto used = Simulation({{"long", 200, 100'000}, {"short", 5, 8}}, 256, 2).Run(60'000);
  EXPECT_GE(used["short"], 0.9 * 60'000);
  EXPECT_LE(used["short"], 1.1 * 60'000);
}

TEST(FairShare, OneThatAsksForLessGetsItAllAndTheOthersGetTheRest) {
  auto used = Simulation({{"a", 10, 1'000}, {"b", 10, 1'000}, {"modest", 10, 1}}, 256, 4).Run(20'000);
  EXPECT_GE(used["modest"], 0.45 * 20'000) << "it has one job at a time, and waits for a worker in between";
  EXPECT_NEAR(used["a"], used["b"], 0.05 * used["a"]);
  EXPECT_GE(used["a"] + used["b"] + used["modest"], 0.95 * 4 * 20'000);
}

TEST(FairShare, UrgencyIsATenantsOwnBusinessAndTuningIsNobodys) {
  auto used = Simulation({{"urgent", 10, 1'000, v1::INTERACTIVE}, {"patient", 10, 8, v1::BATCH}, {"tuner", 10, 8, v1::TUNING}}, 256, 2).Run(20'000);
  EXPECT_GE(used["patient"], 0.9 * 20'000);
  EXPECT_EQ(used["tuner"], 0);
}

FairShare::Time At(double ms) {
  return FairShare::Time(std::chrono::duration_cast<FairShare::Time::duration>(std::chrono::duration<double, std::milli>(ms)));
}

TEST(FairShare, IdlenessSavesUpNothing) {
  FairShare shares(10);
  double now = 0;
  for (int i = 0; i < 100; ++i) {
    shares.Enter("busy", At(now));
    const FairShare::Turn turn = shares.Begin("busy", At(now));
    shares.Finish("busy", turn, 10);
    now += 10;
  }
  shares.Enter("busy", At(now));
  shares.Enter("late", At(now));
  EXPECT_LE(shares.TimeOf("busy", At(now)) - shares.TimeOf("late", At(now)), 10);
}

TEST(FairShare, WhatRanWhileNobodyElseWantedAnythingIsOwedToNobody) {
  FairShare shares(10);
  std::vector<FairShare::Turn> turns;
  for (int i = 0; i < 4; ++i) shares.Enter("early", At(0));
  for (int i = 0; i < 4; ++i) turns.push_back(shares.Begin("early", At(0)));
  for (const FairShare::Turn turn : turns) shares.Finish("early", turn, 1'000);
  shares.Enter("late", At(1'000));
  shares.Enter("early", At(1'000));
  EXPECT_EQ(shares.TimeOf("early", At(1'000)), shares.TimeOf("late", At(1'000)));
}

TEST(FairShare, WhoComesLaterDoesNotStandBehindAnEstimate) {
  FairShare shares(1'000);
  std::vector<FairShare::Turn> turns;
  for (int i = 0; i < 4; ++i) shares.Enter("cheap", At(0));
  for (int i = 0; i < 3; ++i) turns.push_back(shares.Begin("cheap", At(0)));  // as if they took a second each
  shares.Enter("late", At(1));
  for (const FairShare::Turn turn : turns) shares.Finish("cheap", turn, 1);
  EXPECT_LE(shares.TimeOf("late", At(1)), shares.TimeOf("cheap", At(1)));
}

TEST(FairShare, AnEstimateThatWasTooLongSavesUpNothing) {
  FairShare shares(60'000);
  shares.Enter("long", At(0));
  const FairShare::Turn turn = shares.Begin("long", At(0));  // as if it took a minute
  std::vector<FairShare::Turn> turns;
  for (int i = 0; i < 14; ++i) shares.Enter("flood", At(0));
  for (int i = 0; i < 7; ++i) turns.push_back(shares.Begin("flood", At(0)));
  for (const FairShare::Turn one : turns) shares.Finish("flood", one, 30'000);
  shares.Enter("long", At(30'000));
  shares.Finish("long", turn, 31'000);
  EXPECT_NEAR(shares.TimeOf("long", At(31'000)), shares.TimeOf("flood", At(31'000)), 2'000);
}

TEST(FairShare, OneWhoseJobRunsOnIsNotWhereOthersStart) {
  FairShare shares(1'000);
  shares.Enter("long", At(0));
  shares.Begin("long", At(0));
  for (int i = 0; i < 100; ++i) {
    shares.Enter("flood", At(i * 200));
    shares.Finish("flood", shares.Begin("flood", At(i * 200)), 1'000);
  }
  shares.Enter("new", At(20'000));
  shares.Enter("flood", At(20'000));
  EXPECT_NEAR(shares.TimeOf("new", At(20'000)), shares.TimeOf("flood", At(20'000)), 1'000);
}

// Eight workers and who comes to them, each when it pleases and with jobs of lengths of its own.
class Eight {
 public:
  struct Comer {
    std::string tenant;
    double from_ms, to_ms;                 // when it submits
    std::size_t outstanding;               // jobs of its that wait or run
    std::function<double(int)> length_ms;  // of its n-th job
    std::size_t most = SIZE_MAX;           // jobs in all
  };

  Eight(std::vector<Comer> comers, double until_ms) : comers_(std::move(comers)), states_(comers_.size()) {
    while (now_ < until_ms) {
      Submit();
      Begin();
      Advance();
    }
  }

  // Of the eight, how many worked for the tenant in the mean.
  double Had(const std::string& tenant, double from_ms, double to_ms) const {
    double sum = 0;
    for (const std::vector<Ran>* jobs : {&ran_, &running_}) {
      for (const Ran& job : *jobs) {
        if (comers_[job.comer].tenant == tenant) sum += std::max(0.0, std::min(job.to_ms, to_ms) - std::max(job.from_ms, from_ms));
      }
    }
    return sum / (to_ms - from_ms);
  }

 private:
  struct State {
    std::size_t submitted = 0, waiting = 0, running = 0;
  };
  struct Ran {
    std::size_t comer;
    FairShare::Turn turn;
    double from_ms, to_ms;
  };

  void Submit() {
    for (std::size_t i = 0; i < comers_.size(); ++i) {
      const Comer& comer = comers_[i];
      if (now_ < comer.from_ms || now_ >= comer.to_ms) continue;
      for (State& state = states_[i]; state.submitted < comer.most && state.waiting + state.running < comer.outstanding; ++state.submitted) {
        shares_.Enter(comer.tenant, At(now_));
        ++state.waiting;
      }
    }
  }

  void Begin() {
    const auto time_of = [&](std::size_t i) { return states_[i].waiting == 0 ? HUGE_VAL : shares_.TimeOf(comers_[i].tenant, At(now_)); };
    while (running_.size() < 8) {
      std::size_t next = 0;
      for (std::size_t i = 1; i < comers_.size(); ++i) next = time_of(i) < time_of(next) ? i : next;
      State& state = states_[next];
      if (state.waiting == 0) return;
      const double length = comers_[next].length_ms(static_cast<int>(state.submitted - state.waiting));
      running_.push_back({next, shares_.Begin(comers_[next].tenant, At(now_)), now_, now_ + length});
      --state.waiting;
      ++state.running;
    }
  }

  // To when a job ends or somebody comes.
  void Advance() {
    double next = HUGE_VAL;
    for (const Ran& job : running_) next = std::min(next, job.to_ms);
    for (const Comer& comer : comers_) next = comer.from_ms > now_ ? std::min(next, comer.from_ms) : next;
    now_ = next;
    std::erase_if(running_, [&](const Ran& job) {
      if (job.to_ms > now_) return false;
      shares_.Finish(comers_[job.comer].tenant, job.turn, job.to_ms - job.from_ms);
      --states_[job.comer].running;
      ran_.push_back(job);
      return true;
    });
  }

  std::vector<Comer> comers_;
  std::vector<State> states_;
  FairShare shares_{50};
  double now_ = 0;
  std::vector<Ran> running_, ran_;
};

constexpr double kMinute = 60'000;
double Short(int) { return 10; }
double TwoMinutes(int) { return 2 * kMinute; }
double Mixed(int n) { return n % 10 == 0 ? 500 : 10; }

TEST(FairShare, ALongJobHoldsNobodysTimeBack) {
  for (const std::string newcomer : {"long", "new"}) {
    const Eight eight({{"long", 0, 1, 1, TwoMinutes}, {"flood", 0, 4 * kMinute, 64, Short}, {newcomer, kMinute, 4 * kMinute, 64, Short}},
                      4 * kMinute);
    const double each = newcomer == "long" ? 4 : 3.5;  // beside the long job's worker; its time is its tenant's
    EXPECT_NEAR(eight.Had("flood", kMinute, 2 * kMinute), each, 0.1) << newcomer;
    EXPECT_NEAR(eight.Had("flood", 2 * kMinute, 4 * kMinute), 4, 0.1) << newcomer;
  }
}

// It has been caught up while jobs of its ran, once or again and again; what it runs later is its own.
TEST(FairShare, JobsOfUnequalLengthAfterALongOneCountInFull) {
  const Eight once({{"mixed", 0, 1, 1, TwoMinutes}, {"flood", 0, 4 * kMinute, 64, Short}, {"mixed", kMinute, 4 * kMinute, 64, Mixed}}, 4 * kMinute);
  EXPECT_NEAR(once.Had("flood", kMinute, 2 * kMinute), 4, 0.2);
  EXPECT_NEAR(once.Had("flood", 2 * kMinute, 4 * kMinute), 4, 0.2);
  const auto seconds = [](int n) { return n % 2 == 0 ? 2'500.0 : 5'000.0; };
  const Eight often({{"mixed", 0, 4 * kMinute, 2, seconds}, {"flood", 0, 7 * kMinute, 64, Short}, {"mixed", 4 * kMinute, 7 * kMinute, 64, Mixed}},
                    7 * kMinute);
  EXPECT_NEAR(often.Had("mixed", 0, 4 * kMinute), 2, 0.1) << "all it wants";
  for (double from = 4 * kMinute; from < 7 * kMinute; from += kMinute / 2) {
    EXPECT_NEAR(often.Had("flood", from, from + kMinute / 2), 4, 0.2) << from;
  }
}

// What the workers did for one while nobody else wanted anything.
TEST(FairShare, WhoComesWhileOthersJobsRunHasNoCreditForThem) {
  const double comes = 2 * kMinute - 1'000;
  const Eight waiting({{"early", 0, 1, 16, TwoMinutes, 16}, {"late", comes, 4 * kMinute, 64, Short}}, 4 * kMinute);
  EXPECT_GE(waiting.Had("early", 2 * kMinute, 4 * kMinute), 3.5) << "its next jobs begin";
  EXPECT_GE(waiting.Had("late", 2 * kMinute, 4 * kMinute), 3.2);
  const Eight running(
      {{"early", 0, 1, 8, TwoMinutes, 8}, {"late", comes, 4 * kMinute, 64, Short}, {"early", 2 * kMinute + 1'000, 4 * kMinute, 64, Short}},
      4 * kMinute);
  EXPECT_NEAR(running.Had("early", 2 * kMinute + 5'000, 4 * kMinute), 4, 0.1);
}

TEST(FairShare, TenantsThatAreGoneAreForgotten) {
  FairShare shares(10);
  for (int i = 0; i < 10'000; ++i) {
    const std::string name = "tenant " + std::to_string(i);
    shares.Enter(name, At(i));
    shares.Finish(name, shares.Begin(name, At(i)), 10);
  }
  EXPECT_LE(shares.tenants(), 200u);
}

TEST(TenantBudget, OneLeavesRoomForOthersAndGetsBackWhatItGives) {
  TenantBudget budget(100);
  std::vector<TenantBudget::Charge> flood;
  while (auto charge = budget.Take("flood", 8)) flood.push_back(std::move(*charge));
  EXPECT_EQ(budget.used(), 80u);
  std::vector<TenantBudget::Charge> other;
  while (auto charge = budget.Take("other", 8)) other.push_back(std::move(*charge));
  EXPECT_EQ(other.size(), 2u);
  EXPECT_TRUE(budget.Take("third", 8)) << "whoever holds nothing may be over by one";
  EXPECT_FALSE(budget.Take("other", 8));
  flood.clear();
  EXPECT_TRUE(budget.Take("other", 8));
  other.clear();
  EXPECT_TRUE(budget.Take("nothing", 0));
  EXPECT_EQ(budget.used(), 0u);
}

// As the calls and the bytes of runs (run_memory.h).
TEST(TenantBudget, OfTheWholeOneGetsFourFifthsAndAnotherAllThatIsLeft) {
  using Full = TenantBudget::Full;
  TenantBudget budget(10, TenantBudget::Part::kOfTheWhole);
  EXPECT_EQ(budget.part_of_the_whole(), 8u);
  auto most = budget.Take("flood", 7);
  ASSERT_TRUE(most);
  EXPECT_EQ(budget.Take("flood", 2).error(), Full::kForTenant);
  EXPECT_EQ(budget.Take("flood", 4).error(), Full::kForAll);
  EXPECT_EQ(budget.Take("other", 4).error(), Full::kForAll) << "its first, too";
  auto rest = budget.Take("other", 2);
  ASSERT_TRUE(rest);
  EXPECT_TRUE(rest->Grow(1));
  EXPECT_EQ(rest->Grow(1).error(), Full::kForAll);
  EXPECT_EQ(budget.used(), 10u);
  rest = std::unexpected(Full::kForAll);
  EXPECT_EQ(budget.used(), 7u);
  auto second = budget.Take("flood", 1);
  ASSERT_TRUE(second);
  EXPECT_EQ(most->Grow(1).error(), Full::kForTenant);
}

TEST(TenantBudget, OfTheWholeTheOnlyPieceMayExceedItsPartAndTheOnlyOneOfAllTheWhole) {
  using Full = TenantBudget::Full;
  TenantBudget budget(10, TenantBudget::Part::kOfTheWhole);
  auto only = budget.Take("large", 9);
  ASSERT_TRUE(only);
  {
    const auto small = budget.Take("small", 1);
    EXPECT_TRUE(small);
    EXPECT_EQ(only->Grow(1).error(), Full::kForAll);
  }
  EXPECT_TRUE(only->Grow(11));
  EXPECT_EQ(budget.used(), 20u);
  EXPECT_EQ(budget.Take("small", 1).error(), Full::kForAll);
  EXPECT_TRUE(only->Grow(0)) << "which needs nothing";
  only = std::unexpected(Full::kForAll);
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_TRUE(budget.Take("small", 12));
}

TEST(TenantPacer, TheLouderGetsNoMoreTimes) {
  using std::chrono::milliseconds;
  TenantPacer pacer;
  int loud = 0, quiet = 0;
  for (milliseconds at{0}; at < std::chrono::seconds(10); ++at) {
    const TenantPacer::Clock::time_point now{at};
    for (int i = 0; i < 20; ++i) loud += pacer.Take("loud", now, milliseconds(10));
    if (at.count() % 15 == 0) quiet += pacer.Take("quiet", now, milliseconds(10));
  }
  EXPECT_GE(quiet, 300) << "of the 500 it might have, each time as late as it comes";
  EXPECT_GE(loud, 490);
  EXPECT_LE(loud, 510);
  int alone = 0;
  for (milliseconds at = std::chrono::seconds(20); at < std::chrono::seconds(30); ++at) {
    alone += pacer.Take("loud", TenantPacer::Clock::time_point{at}, milliseconds(10));
  }
  EXPECT_GE(alone, 990);
  EXPECT_LE(alone, 1001);
}

// A job of so much urgency that waits.
std::unique_ptr<Job> Waiting(const std::string& tenant, v1::Priority priority, const std::string& key = "") {
  auto job = std::make_unique<Job>();
  job->key = cache::Sha256(key);
  job->caller.tenant = tenant;
  job->priority = priority;
  job->done = [](JobOutcome) {};
  return job;
}

// Of the next so many milliseconds of one worker, each job taking ten, how many `tenant` gets: both keep many interactive jobs waiting.
double GetsOf(Admission& admission, const std::string& tenant, const std::string& other, double total_ms) {
  double got = 0;
  std::map<std::string, int> waiting;
  for (double now = 0; now < total_ms; now += 10) {
    for (const std::string& name : {tenant, other}) {
      for (; waiting[name] < 4; ++waiting[name]) {
        auto job = Waiting(name, v1::INTERACTIVE);
        EXPECT_TRUE(admission.Submit(job));
      }
    }
    const auto job = admission.Take();
    --waiting[job->caller.tenant];
    if (job->caller.tenant == tenant) got += 10;
    admission.Finished(*job, {.end = JobOutcome::End::kResult, .ran = std::chrono::milliseconds(10)});
  }
  return got;
}

TEST(Admission, TuningThatWaitsHoldsItsTenantsTimeNotBack) {
  for (const bool promoted : {false, true}) {
    const cache::testing::ManualClock clock;
    Admission admission(256, 1, clock);
    auto tuning = Waiting("tuner", v1::TUNING, "tuned");
    ASSERT_TRUE(admission.Submit(tuning));
    EXPECT_EQ(GetsOf(admission, "other", "third", 10'000), 5'000) << "the tuning job waits all the while";
    if (promoted) admission.Promote(cache::Sha256("tuned"), v1::BATCH);
    EXPECT_NEAR(GetsOf(admission, "other", "tuner", 1'000), 500, 50) << promoted;
  }
}

TEST(Admission, TuningIsSharedToo) {
  const cache::testing::ManualClock clock;
  Admission admission(1'000, 1, clock);
  std::map<std::string, int> got;
  for (const std::string name : {"flood", "other"}) {
    for (int i = 0; i < 100; ++i) {
      auto job = Waiting(name, v1::TUNING);
      ASSERT_TRUE(admission.Submit(job));
    }
  }
  for (int i = 0; i < 100; ++i) {
    const auto job = admission.Take();
    ++got[job->caller.tenant];
    admission.Finished(*job, {.end = JobOutcome::End::kResult, .ran = std::chrono::milliseconds(10)});
  }
  EXPECT_NEAR(got["other"], 50, 2);
}

TEST(Admission, AFloodLeavesRoomInTheQueue) {
  const cache::testing::ManualClock clock;
  Admission admission(256, 1, clock);
  const auto submit = [&](const std::string& tenant, v1::Priority priority) {
    auto job = std::make_unique<Job>();
    job->caller.tenant = tenant;
    job->priority = priority;
    job->done = [](JobOutcome) {};
    return admission.Submit(job).has_value();
  };
  std::size_t taken = 0;
  while (submit("flood", v1::BATCH)) ++taken;
  EXPECT_GT(taken, 200u);
  EXPECT_LT(taken, 256u);
  EXPECT_TRUE(admission.Refuses({.tenant = "flood"}, v1::BATCH));
  EXPECT_FALSE(admission.Refuses({.tenant = "flood"}, v1::INTERACTIVE)) << "its urgent ones are welcome";
  EXPECT_FALSE(admission.Refuses({.tenant = "other"}, v1::BATCH));
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(submit("other", v1::BATCH)) << i;
    EXPECT_TRUE(submit("flood", v1::INTERACTIVE)) << i << ": its own urgent requests are not shut out either";
  }
  while (submit("flood", v1::INTERACTIVE) || submit("flood", v1::TUNING)) {
  }
  EXPECT_TRUE(admission.Refuses({.tenant = "flood"}, v1::INTERACTIVE));
}

}  // namespace
}  // namespace kiln::server
