// SPDX-License-Identifier: Apache-2.0
#include "compiler/key.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "cache/digest.h"
#include "compiler/build_id.h"
#include "ir/canonical.h"

namespace kiln::compiler {
namespace {

// The length goes first, so that no two lists of fields are one text.
void Update(cache::Hasher& hasher, std::string_view field) {
  std::array<char, 8> size;
  for (size_t i = 0; i < size.size(); ++i) size[i] = char(uint64_t(field.size()) >> (8 * i));
  hasher.Update({size.data(), size.size()}).Update(field);
}

std::string Bytes(const v1::CompileOptions& options) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  options.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

}  // namespace

std::string_view BuildId() { return kBuildId; }

Key ComputeKey(const ir::Module& module, std::string_view target, const v1::CompileOptions& options) {
  cache::Hasher hasher;
  Update(hasher, "kiln portable key 1");
  Update(hasher, BuildId());
  Update(hasher, target);
  Update(hasher, Bytes(options));
  Update(hasher, ir::CanonicalBytes(module));
  return hasher.Finish().bytes;
}

Key ProgramKey(const ir::Module& module, std::string_view target, const v1::CompileOptions& options) {
  cache::Hasher hasher;
  Update(hasher, "kiln program key 1");
  Update(hasher, target);
  Update(hasher, Bytes(options));
  Update(hasher, ir::CanonicalBytes(module));
  return hasher.Finish().bytes;
}

Key WithPtxas(const Key& key, std::string_view ptxas) {
  return cache::Hasher().Update("ptxas").Update(cache::Digest{key}.view()).Update(ptxas).Finish().bytes;
}

}  // namespace kiln::compiler
