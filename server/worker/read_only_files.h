// SPDX-License-Identifier: Apache-2.0
//
// For kernels without Landlock.
#pragma once

namespace kiln::server {

// Every file system that this process sees becomes read-only for it and for what it starts, by mounts of its own. Root makes them directly;
// another user makes them in a user namespace that maps its user and group to themselves and nothing else. Files without a name (memory
// files, pipes) and devices can be written as before. For a process with one thread. False if the kernel or its configuration refuses this;
// the process must then still give up its privileges.
bool MakeFilesReadOnly();

}  // namespace kiln::server
