// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/config/config.h"

// kilnd's TOML file: any text gives a configuration, or words to print and a status.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const int file = ::memfd_create("config", MFD_CLOEXEC);
  if (file < 0 || ::write(file, data, size) != static_cast<ssize_t>(size)) std::abort();
  std::string program = "kilnd";
  std::string option = "--config=/proc/self/fd/" + std::to_string(file);
  std::array<char*, 3> argv = {program.data(), option.data(), nullptr};
  const auto config = kiln::server::ReadConfig(2, argv.data());
  ::close(file);
  if (!config && config.error().text.empty()) std::abort();
  return 0;
}
