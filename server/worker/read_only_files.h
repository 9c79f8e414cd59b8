// SPDX-License-Identifier: Apache-2.0
//
// For kernels without Landlock.
#pragma once

namespace kiln::server {

// Every file system that this process sees becomes read-only for it and for what it starts, by mounts of its own: of root's, or, of
// another user's, in a user namespace in which its user and group keep their numbers and nothing else has one. What has no name (memory
// files, pipes) and devices can be written as before. For a process with one thread. False where the kernel, or who configured it,
// refuses; a process that has tried is to go on to give up its privileges all the same.
bool MakeFilesReadOnly();

}  // namespace kiln::server
