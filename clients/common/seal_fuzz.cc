// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "clients/common/seal.h"

// What anybody sends as a sealed reply: nothing without the key's signature is accepted, and what is signed survives no change.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kiln;
  static const cache::SigningKey key = cache::SigningKey::Make();
  static const std::vector<cache::PublicKey> trusted = {key.public_key()};
  v1::SealedReply reply;
  if (!reply.ParseFromArray(data, static_cast<int>(size))) return 0;
  if (Verify(reply, trusted)) std::abort();  // the fuzzer does not have the key
  *reply.mutable_seal() = MakeSeal(key, {}, reply.key(), reply.artifact());
  if (!Verify(reply, trusted)) std::abort();
  reply.mutable_artifact()->push_back('x');
  if (Verify(reply, trusted)) std::abort();
  return 0;
}
