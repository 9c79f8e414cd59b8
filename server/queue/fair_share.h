// SPDX-License-Identifier: Apache-2.0
//
// Whose turn it is. Each tenant has a virtual time: the time workers have spent on it. Among the tenants with waiting work, the one with
// the least virtual time is served next. So every tenant gets an equal share of the workers, whatever the others send. A running job counts
// with the time it has taken so far, but at least with the average of its tenant's jobs, since its own duration is not known yet.
//
// A tenant with nothing waiting starts at the virtual time of the tenants being served, including the time of their running jobs: it does
// not save up time while it is idle. From then on all of its jobs' time counts, even that of jobs which began earlier. When no tenant has
// work any more, all accounts are closed.
//
// (Start-time fair queueing: Goyal, Vin, Cheng, "Start-time Fair Queueing", IEEE/ACM Transactions on Networking 5(5), 1997.)
//
// Not synchronised; asks no clock: `now` never goes back.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kiln::server {

class FairShare {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Turn = std::uint64_t;  // a job that runs

  explicit FairShare(double first_estimate_ms) : first_estimate_ms_(first_estimate_ms) {}

  // The tenant of a job that was submitted, before `Begin` or `TimeOf` may be asked about it.
  void Enter(const std::string& tenant, Time now);
  // The tenant's submitted job left the queue without being taken.
  void Leave(const std::string& tenant);

  // Orders tenants that have entered: the least, in milliseconds, goes first.
  double TimeOf(const std::string& tenant, Time now) const;

  // A job of the tenant begins. It ends with Finish.
  Turn Begin(const std::string& tenant, Time now);
  void Finish(const std::string& tenant, Turn turn, double took_ms);

  // How many tenants are remembered: those with jobs waiting or running, and those who have used more than the others since.
  std::size_t tenants() const { return tenants_.size(); }

 private:
  struct Running {
    Turn turn;
    Time began;
    double least_ms;  // what it counts for before it has taken more
  };
  struct Tenant {
    double time_ms = 0;  // without what runs
    double average_ms = 0;
    std::size_t waiting = 0;  // jobs
    std::vector<Running> running;
  };
  static double Taken(const Tenant& tenant, Time now);
  double Served(Time now) const;
  void ForgetIdle();

  const double first_estimate_ms_;
  Turn last_turn_ = 0;
  double served_ms_ = 0;                   // what a tenant had taken when it was served; the most
  std::size_t present_ = 0;                // jobs of all
  std::map<std::string, Tenant> tenants_;  // by name: ties are decided the same way everywhere
};

}  // namespace kiln::server
