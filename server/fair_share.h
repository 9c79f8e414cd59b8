// SPDX-License-Identifier: Apache-2.0
//
// Whose turn it is. Each tenant has a virtual time: the time workers have spent on it. Among those who have work waiting the one
// with the least is served next, so that every tenant gets an equal share of the workers, whatever the others send. What a job
// will take is not known before it ran: it is charged with the average of its tenant's jobs when it is taken, and corrected when
// it ends. A tenant for whom nothing waited starts where the last that was served stood then, without what that was charged for: to want
// nothing saves up nothing, however long something of the tenant's runs meanwhile. When nobody wants anything any more nobody owes anybody
// anything.
//
// (Start-time fair queueing: Goyal, Vin, Cheng, "Start-time Fair Queueing", IEEE/ACM Transactions on Networking 5(5), 1997.)
//
// Not synchronised; no clock.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace kiln::server {

class FairShare {
 public:
  explicit FairShare(double first_estimate_ms) : first_estimate_ms_(first_estimate_ms) {}

  // The tenant of a job that was submitted, before `Take` may be asked about it.
  void Enter(const std::string& tenant);
  // That job left without having been taken.
  void Leave(const std::string& tenant);

  // Orders tenants that have entered: the least goes first.
  double TimeOf(const std::string& tenant) const;

  // A job of the tenant begins; what it is charged for now. It ends with Finish.
  double Begin(const std::string& tenant);
  void Finish(const std::string& tenant, double charged_ms, double took_ms);

  // How many tenants are remembered: those with jobs waiting or running, and those who have used more than the others since.
  std::size_t tenants() const { return tenants_.size(); }

 private:
  struct Tenant {
    double time_ms = 0;
    double average_ms = 0;
    double charged_ms = 0;    // of that, for jobs that run
    double ahead_ms = 0;      // of that, for nothing yet: what running jobs take above their charge goes off it first
    std::size_t waiting = 0, running = 0;  // jobs
  };
  void ForgetIdle();

  const double first_estimate_ms_;
  double served_ms_ = 0;     // the time, without charges, at which a tenant was served; the latest
  std::size_t present_ = 0;  // jobs of all
  std::map<std::string, Tenant> tenants_;  // by name: ties are decided the same way everywhere
};

}  // namespace kiln::server
