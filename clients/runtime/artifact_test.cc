// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/artifact.h"

#include <gtest/gtest.h>

#include "kiln/v1/compile.pb.h"

namespace kiln::runtime {
namespace {

// Fills every field of a message by reflection, each with a value of its own; sub-messages to a depth, lists with two entries.
void FillAll(google::protobuf::Message& message, int& next, int depth = 8) {
  const auto* descriptor = message.GetDescriptor();
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    for (int entry = 0; entry < (field->is_repeated() ? 2 : 1); ++entry) {
      const int n = ++next;
      const bool list = field->is_repeated();
      using Cpp = google::protobuf::FieldDescriptor;
      switch (field->cpp_type()) {
        case Cpp::CPPTYPE_UINT32:
          list ? reflection->AddUInt32(&message, field, uint32_t(n)) : reflection->SetUInt32(&message, field, uint32_t(n));
          break;
        case Cpp::CPPTYPE_INT64: list ? reflection->AddInt64(&message, field, -n) : reflection->SetInt64(&message, field, -n); break;
        case Cpp::CPPTYPE_BOOL: reflection->SetBool(&message, field, true); break;
        case Cpp::CPPTYPE_STRING:
          list ? reflection->AddString(&message, field, "s" + std::to_string(n)) : reflection->SetString(&message, field, "s" + std::to_string(n));
          break;
        case Cpp::CPPTYPE_ENUM: {
          const auto* type = field->enum_type();
          reflection->SetEnumValue(&message, field, type->value(1 + n % (type->value_count() - 1))->number());
          break;
        }
        case Cpp::CPPTYPE_MESSAGE:
          if (depth == 0) break;
          FillAll(list ? *reflection->AddMessage(&message, field) : *reflection->MutableMessage(&message, field), next, depth - 1);
          break;
        default: break;
      }
    }
  }
}

void Expect(const v1::HostExpr& want, const HostNodes& got) {
  ASSERT_EQ(size_t(want.nodes_size()), got.size());
  for (int i = 0; i < want.nodes_size(); ++i) {
    EXPECT_EQ(int(want.nodes(i).op()), int(got[size_t(i)].op));
    EXPECT_EQ(want.nodes(i).value(), got[size_t(i)].value);
    EXPECT_EQ(want.nodes(i).a(), got[size_t(i)].a);
    EXPECT_EQ(want.nodes(i).b(), got[size_t(i)].b);
  }
}
template <class List>
void ExpectAll(const List& want, const std::vector<HostNodes>& got) {
  ASSERT_EQ(size_t(want.size()), got.size());
  for (int i = 0; i < want.size(); ++i) Expect(want[i], got[size_t(i)]);
}

TEST(Artifact, EveryFieldTheLauncherUsesArrivesAsProtobufWroteIt) {
  v1::Artifact want;
  int next = 0;
  FillAll(want, next);
  auto decoded = DecodeArtifact(want.SerializeAsString());
  ASSERT_TRUE(decoded) << decoded.error().message;
  const Artifact& got = *decoded;
  EXPECT_EQ(want.target(), got.target);
  EXPECT_EQ(int(want.kind()), int(got.kind));
  EXPECT_EQ(want.code(), got.code);
  EXPECT_EQ(want.cubin(), got.cubin);
  EXPECT_EQ(want.unoptimized(), got.unoptimized);
  ASSERT_EQ(size_t(want.launch().params_size()), got.launch.params.size());
  for (int i = 0; i < want.launch().params_size(); ++i) {
    const auto& w = want.launch().params(i);
    const auto& g = got.launch.params[size_t(i)];
    EXPECT_EQ(w.name(), g.name);
    EXPECT_EQ(int(w.dtype()), int(g.dtype));
    EXPECT_EQ(w.tensor(), g.tensor);
    EXPECT_EQ(w.output(), g.output);
    EXPECT_EQ(w.written(), g.written);
    EXPECT_EQ(w.alignment(), g.alignment);
    EXPECT_EQ(w.may_alias(), g.may_alias);
    EXPECT_EQ(w.unused(), g.unused);
    ExpectAll(w.shape(), g.shape);
    ExpectAll(w.strides(), g.strides);
  }
  ASSERT_EQ(size_t(want.launch().symbols_size()), got.launch.symbols.size());
  EXPECT_EQ(want.launch().symbols(1).name(), got.launch.symbols[1].name);
  EXPECT_EQ(int(want.launch().symbols(1).dtype()), int(got.launch.symbols[1].dtype));
  ASSERT_EQ(size_t(want.launch().workspaces_size()), got.launch.workspaces.size());
  EXPECT_EQ(int(want.launch().workspaces(1).dtype()), int(got.launch.workspaces[1].dtype));
  ExpectAll(want.launch().workspaces(1).shape(), got.launch.workspaces[1].shape);
  EXPECT_EQ(want.launch().workspaces(1).zeroed(), got.launch.workspaces[1].zeroed);
  ASSERT_EQ(size_t(want.launch().launches_size()), got.launch.launches.size());
  const auto& w = want.launch().launches(1);
  const auto& g = got.launch.launches[1];
  EXPECT_EQ(w.entry(), g.entry);
  ExpectAll(w.grid(), g.grid);
  EXPECT_EQ(w.threads(), g.threads);
  EXPECT_EQ(g.cluster, (std::array{w.cluster_x(), w.cluster_y(), w.cluster_z()}));
  EXPECT_EQ(w.dynamic_shared_bytes(), g.dynamic_shared_bytes);
  ASSERT_EQ(size_t(w.args_size()), g.args.size());
  ASSERT_EQ(size_t(w.assumptions_size()), g.assumptions.size());
  Expect(w.assumptions(1).left(), g.assumptions[1].left);
  Expect(w.assumptions(1).right(), g.assumptions[1].right);
  EXPECT_EQ(int(w.assumptions(1).relation()), int(g.assumptions[1].relation));
  ASSERT_EQ(size_t(want.launch().tensor_maps_size()), got.launch.tensor_maps.size());
  const auto& map = want.launch().tensor_maps(1);
  EXPECT_EQ(map.tensor(), got.launch.tensor_maps[1].tensor);
  EXPECT_EQ(std::vector<uint32_t>(map.box().begin(), map.box().end()), got.launch.tensor_maps[1].box);
  EXPECT_EQ(map.swizzle_bytes(), got.launch.tensor_maps[1].swizzle_bytes);
  EXPECT_EQ(map.view(), got.launch.tensor_maps[1].view);
  ASSERT_EQ(size_t(want.launch().views_size()), got.launch.views.size());
  const auto& view = want.launch().views(1);
  EXPECT_EQ(view.tensor(), got.launch.views[1].tensor);
  ExpectAll(view.shape(), got.launch.views[1].shape);
  ExpectAll(view.strides(), got.launch.views[1].strides);
  ExpectAll(view.positive(), got.launch.views[1].positive);
}

TEST(Artifact, BoxesArePackedOrNot) {
  const auto box = [](std::string_view map) {  // LaunchInfo of one map, field 5 of the artifact
    std::string bytes("\x0a\x01t\x2a", 4);
    bytes += char(map.size() + 2);
    bytes += '\x2a';
    bytes += char(map.size());
    auto decoded = DecodeArtifact(bytes.append(map));
    return decoded ? decoded->launch.tensor_maps[0].box : std::vector<uint32_t>{0};
  };
  EXPECT_EQ(box("\x12\x03\x40\x80\x02"), (std::vector<uint32_t>{64, 256}));
  EXPECT_EQ(box("\x10\x40\x10\x80\x02"), (std::vector<uint32_t>{64, 256}));
  EXPECT_EQ(box(std::string_view("\x12\x00", 2)), std::vector<uint32_t>());
  EXPECT_EQ(box("\x12\x02\x40\x80"), std::vector<uint32_t>{0});              // cut off inside a number
  EXPECT_EQ(box("\x12\x05\xff\xff\xff\xff\x7f"), std::vector<uint32_t>{0});  // more than 32 bits
}

// The fields this decoder knows, by message. One that is added to compile.proto must be decoded, or be listed as not needed.
TEST(Artifact, NoFieldWasAddedUnseen) {
  const std::pair<const google::protobuf::Descriptor*, int> known[] = {
      {v1::HostExpr::descriptor(), 1},     {v1::HostExpr::Node::descriptor(), 4}, {v1::LaunchParam::descriptor(), 10},
      {v1::LaunchSymbol::descriptor(), 2}, {v1::Workspace::descriptor(), 3},      {v1::KernelArg::descriptor(), 7},
      {v1::Launch::descriptor(), 9},       {v1::LaunchInfo::descriptor(), 6},     {v1::Artifact::descriptor(), 8},
      {v1::TensorMap::descriptor(), 5},    {v1::Assumption::descriptor(), 3},     {v1::View::descriptor(), 4}};
  for (const auto& [descriptor, count] : known) EXPECT_EQ(descriptor->field_count(), count) << descriptor->full_name();
  EXPECT_EQ(v1::HostExpr::Op_descriptor()->value_count(), int(HostOp::kMax) + 1);
  EXPECT_EQ(v1::CodeKind_descriptor()->value_count(), int(CodeKind::kEmulator) + 1);
}

TEST(Artifact, EachKindOfKernelArgument) {
  v1::Artifact artifact;
  artifact.set_target("cuda:sm_80");
  auto* launch = artifact.mutable_launch()->add_launches();
  launch->add_args()->set_tensor(5);
  launch->add_args()->set_scalar(6);
  launch->add_args()->set_symbol(7);
  launch->add_args()->set_workspace(0);
  launch->add_args();
  launch->add_args()->set_tensor_map(3);
  launch->add_args()->set_zeroed_workspace(2);
  launch->add_args()->set_block_counter(1);
  const auto args = DecodeArtifact(artifact.SerializeAsString())->launch.launches[0].args;
  EXPECT_EQ(args[0].kind, KernelArg::Kind::kTensor);
  EXPECT_EQ(args[0].index, 5u);
  EXPECT_EQ(args[1].kind, KernelArg::Kind::kScalar);
  EXPECT_EQ(args[2].kind, KernelArg::Kind::kSymbol);
  EXPECT_EQ(args[3].kind, KernelArg::Kind::kWorkspace);
  EXPECT_EQ(args[4].kind, KernelArg::Kind::kNone);
  EXPECT_EQ(args[5].kind, KernelArg::Kind::kTensorMap);
  EXPECT_EQ(args[5].index, 3u);
  EXPECT_EQ(args[6].kind, KernelArg::Kind::kZeroedWorkspace);
  EXPECT_EQ(args[6].index, 2u);
  EXPECT_EQ(args[7].kind, KernelArg::Kind::kBlockCounter);
  EXPECT_EQ(args[7].index, 1u);
}

TEST(Artifact, EveryPrefixAndEveryFlippedByteIsReadOrRefused) {
  v1::Artifact artifact;
  int next = 0;
  FillAll(artifact, next, 3);
  const std::string bytes = artifact.SerializeAsString();
  int refused = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    refused += !DecodeArtifact(std::string_view(bytes).substr(0, i)).has_value();
    std::string flipped = bytes;
    flipped[i] = char(flipped[i] ^ (1 << (i % 8)));
    refused += !DecodeArtifact(flipped).has_value();
  }
  EXPECT_GT(refused, 0);
  EXPECT_FALSE(DecodeArtifact(""));
  EXPECT_FALSE(DecodeArtifact("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"));
}

}  // namespace
}  // namespace kiln::runtime
