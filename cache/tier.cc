// SPDX-License-Identifier: Apache-2.0
#include "cache/tier.h"

#include <future>
#include <memory>
#include <utility>

namespace kiln::cache {

std::expected<void, Error> PutAndWait(Tier& tier, Entry entry) {
  std::promise<std::expected<void, Error>> promise;
  auto outcome = promise.get_future();
  tier.Put(std::move(entry), [&promise](std::expected<void, Error> result) { promise.set_value(std::move(result)); });
  return outcome.get();
}

}  // namespace kiln::cache
