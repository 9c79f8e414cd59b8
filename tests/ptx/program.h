// SPDX-License-Identifier: Apache-2.0
//
// The PTX of an artifact, run on this host in the place of a GPU: what LLVM made of a program is compared with what the emulator, which compiles the
// same program for the host, makes of it. Its instructions are written from the PTX ISA and nothing else. What it does not know it refuses.
#pragma once

#include <expected>
#include <memory>
#include <string>

#include "compiler/emulator/program.h"

namespace kiln::ptx {

// Errors of Run beside the caller's: what the program does wrong, with the instruction and the thread.
std::expected<std::unique_ptr<emulator::Program>, std::string> Load(const std::string& ptx);

}  // namespace kiln::ptx
