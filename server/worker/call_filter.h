// SPDX-License-Identifier: Apache-2.0
//
// The system calls a worker may make.
#pragma once

#include <linux/filter.h>

#include <vector>

namespace kiln::server {

using CallFilter = std::vector<sock_filter>;  // a program for seccomp(2); empty where it cannot be made

struct CallFilters {
  CallFilter compile;         // an allow-list; everything else fails with EPERM
  CallFilter emulator;        // that without opening files and starting programs
  CallFilter driver;          // everything but sockets (local ones remain), other processes, kernel code, namespaces and mounts
  CallFilter started_driver;  // an allow-list: the emulator's, reading files, and what a driver that has started asks of its devices
};

// `starts_programs` lets compile workers fork and exec, for ptxas. Made once, for many workers.
CallFilters MakeCallFilters(bool starts_programs);

// In force for this process and what it starts. Needs no_new_privs.
bool ApplyCallFilter(const CallFilter& filter);

// Likewise, for all threads that there are already.
bool ApplyCallFilterToThreads(const CallFilter& filter);

// It can signal nobody else. To be applied before an allow-list, which does not allow to apply another.
bool OnlySignalsItself();

}  // namespace kiln::server
