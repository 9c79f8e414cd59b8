// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string>

#include "clients/common/seal.h"
#include "server/access/access_file.h"
#include "server/access/tokens.h"

// The files that say who may do what: any text gives rules or an error that is not empty, and tokens survive being written.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kiln::server;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0: {
      const auto tokens = ParseTokens(text);
      if (!tokens && tokens.error().empty()) std::abort();
      if (!tokens) return 0;
      std::string written;
      for (const Token& token : *tokens) written += Format(token) + "\n";
      const auto again = ParseTokens(written);
      if (!again || again->size() != tokens->size()) std::abort();
      for (std::size_t i = 0; i < tokens->size(); ++i) {
        if (Format((*again)[i]) != Format((*tokens)[i])) std::abort();
      }
      break;
    }
    case 1: {
      const auto file = ParseAccessFile(text);
      if (!file && file.error().empty()) std::abort();
      break;
    }
    default: {
      const auto keys = kiln::ParseTrustedKeys(text);
      if (!keys && keys.error().empty()) std::abort();
    }
  }
  return 0;
}
