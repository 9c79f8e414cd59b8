// SPDX-License-Identifier: Apache-2.0
//
// What a device worker does with a job (WorkerProgram::Device): the emulator, or the GPUs of this host through their drivers. They keep
// the programs they loaded last, by their bytes.
#pragma once

#include <memory>

#include "server/worker_process.h"

namespace kiln::server {

std::unique_ptr<WorkerProgram::Device> MakeEmulatedDevice();
std::unique_ptr<WorkerProgram::Device> MakeGpuDevice();

}  // namespace kiln::server
