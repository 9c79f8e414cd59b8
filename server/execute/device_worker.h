// SPDX-License-Identifier: Apache-2.0
//
// What a device worker does with a job (WorkerProgram::Device): the emulator, or the GPUs of this host through their drivers. They keep
// the programs they loaded last, by their bytes. Or it runs nothing, and tells what the GPUs do.
#pragma once

#include <memory>

#include "cache/clock.h"
#include "server/worker/worker_process.h"

namespace kiln::server {

std::unique_ptr<WorkerProgram::Device> MakeEmulatedDevice(const cache::Clock& clock);
std::unique_ptr<WorkerProgram::Device> MakeGpuDevice(const cache::Clock& clock);
std::unique_ptr<WorkerProgram::Device> MakeSensorDevice();

}  // namespace kiln::server
