// SPDX-License-Identifier: Apache-2.0
//
// Whose turn it is. Each tenant has a virtual time: the time workers have spent on it. Among those who have work waiting the one
// with the least is served next, so that every tenant gets an equal share of the workers, whatever the others send. What a job
// will take is not known before it ran: it is charged with the average of its tenant's jobs when it is taken, and corrected when
// it ends. A tenant that was idle starts where the others stand, without what they are charged for now: idleness saves up nothing. When
// nobody wants anything any more nobody owes anybody anything.
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
    std::size_t present = 0;  // jobs waiting or running
  };
  double LeastTime() const;
  void ForgetIdle();

  const double first_estimate_ms_;
  std::size_t present_ = 0;  // of all
  std::map<std::string, Tenant> tenants_;  // by name: ties are decided the same way everywhere
};

}  // namespace kiln::server
