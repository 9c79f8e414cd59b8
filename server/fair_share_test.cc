// SPDX-License-Identifier: Apache-2.0
//
// Tenants before the workers, simulated: time is a number, a worker is when its job ends.
#include "server/fair_share.h"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "server/admission.h"
#include "server/tenant_budget.h"
#include "server/tenant_pacer.h"

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
      : tenants_(std::move(tenants)), admission_(capacity, workers), running_(workers) {}

  std::map<std::string, double> Run(double until_ms) {
    for (double now = 0; now < until_ms; ++now) {
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
    admission_.Finished(*worker.job, {.end = JobOutcome::End::kResult,
                                      .ran = std::chrono::microseconds(static_cast<std::int64_t>(worker.took * 1000))});
    worker.job.reset();
  }

  std::vector<Tenant> tenants_;
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
  auto used = Simulation({{"urgent", 10, 1'000, v1::INTERACTIVE}, {"patient", 10, 8, v1::BATCH}, {"tuner", 10, 8, v1::TUNING}},
                         256, 2).Run(20'000);
  EXPECT_GE(used["patient"], 0.9 * 20'000);
  EXPECT_EQ(used["tuner"], 0);
}

TEST(FairShare, IdlenessSavesUpNothing) {
  FairShare shares(10);
  for (int i = 0; i < 100; ++i) {
    shares.Enter("busy");
    shares.Finish("busy", shares.Begin("busy"), 10);
  }
  shares.Enter("busy");
  shares.Enter("late");
  EXPECT_LE(shares.TimeOf("busy") - shares.TimeOf("late"), 10);
}

TEST(FairShare, WhatRanWhileNobodyElseWantedAnythingIsOwedToNobody) {
  FairShare shares(10);
  for (int i = 0; i < 4; ++i) shares.Enter("early");
  for (int i = 0; i < 4; ++i) shares.Begin("early");
  for (int i = 0; i < 4; ++i) shares.Finish("early", 10, 1'000);
  shares.Enter("late");
  shares.Enter("early");
  EXPECT_EQ(shares.TimeOf("early"), shares.TimeOf("late"));
}

TEST(FairShare, WhoComesLaterDoesNotStandBehindAnEstimate) {
  FairShare shares(1'000);
  for (int i = 0; i < 4; ++i) shares.Enter("cheap");
  for (int i = 0; i < 3; ++i) shares.Begin("cheap");  // as if they took a second each
  shares.Enter("late");
  for (int i = 0; i < 3; ++i) shares.Finish("cheap", 1'000, 1);
  EXPECT_LE(shares.TimeOf("late"), shares.TimeOf("cheap"));
}

// Of workers that serve `tenants` in turn for so long, each with more waiting, one has spent how much on each of them.
std::map<std::string, double> Served(FairShare& shares, const std::vector<std::string>& tenants, double job_ms, int jobs) {
  std::map<std::string, double> spent;
  for (const std::string& tenant : tenants) {
    shares.Enter(tenant);
    spent[tenant] = 0;
  }
  for (int i = 0; i < jobs; ++i) {
    const std::string& next = *std::ranges::min_element(tenants, {}, [&](const std::string& tenant) { return shares.TimeOf(tenant); });
    const double charged = shares.Begin(next);
    shares.Enter(next);
    shares.Finish(next, charged, job_ms);
    spent[next] += job_ms;
  }
  return spent;
}

TEST(FairShare, ALongJobHoldsNobodysTimeBack) {
  for (const std::string newcomer : {"long", "new"}) {
    FairShare shares(10);
    shares.Enter("long");
    const double charged = shares.Begin("long");
    shares.Enter("other");
    Served(shares, {"other"}, 10, 1000);
    const auto spent = Served(shares, {"other", newcomer}, 10, 200);
    EXPECT_GE(spent.at("other"), 900) << newcomer;
    EXPECT_GE(spent.at(newcomer), 900);
    shares.Finish("long", charged, 10'000);
    const auto after = Served(shares, {"other", newcomer}, 10, 200);
    EXPECT_GE(after.at("other"), 900) << newcomer;
    EXPECT_GE(after.at(newcomer), 900) << "what it ran while it wanted nothing else took nothing from anybody";
  }
}

TEST(FairShare, TenantsThatAreGoneAreForgotten) {
  FairShare shares(10);
  for (int i = 0; i < 10'000; ++i) {
    const std::string name = "tenant " + std::to_string(i);
    shares.Enter(name);
    shares.Finish(name, shares.Begin(name), 10);
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
    Admission admission(256, 1);
    auto tuning = Waiting("tuner", v1::TUNING, "tuned");
    ASSERT_TRUE(admission.Submit(tuning));
    EXPECT_EQ(GetsOf(admission, "other", "third", 10'000), 5'000) << "the tuning job waits all the while";
    if (promoted) admission.Promote(cache::Sha256("tuned"), v1::BATCH);
    EXPECT_NEAR(GetsOf(admission, "other", "tuner", 1'000), 500, 50) << promoted;
  }
}

TEST(Admission, TuningIsSharedToo) {
  Admission admission(1'000, 1);
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
  Admission admission(256, 1);
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
