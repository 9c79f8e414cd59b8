// SPDX-License-Identifier: Apache-2.0
//
// Runs whose tensors overlap.
#include "server/testing/run_fixture.h"

#include <numeric>

namespace kiln::server::testing {
namespace {

using grpc::StatusCode;

// Each element of B is twice A's, one after the other.
std::string Chain(const char* may_alias) {
  return std::string(R"(kiln 1
func @chain(%A: global f32[64])") +
         may_alias + ", %B: global f32[64]" + may_alias + R"() {
  kernel @main grid(1) threads 32 blocks(%bx) {
    for serial %i in 60 {
      store %B[%i] = %A[%i] * 2.0 + 1.0
    }
  }
}
)";
}

class RunStorageTest : public RunTest {
 protected:
  // A begins with the memory, B `shift` elements further on.
  static RunClient Client(const char* may_alias, const std::vector<float>& memory, std::uint64_t shift) {
    RunClient client = RunClient(Chain(may_alias), "emu:sm_80").Tensor(memory, {64}).Tensor({}, {64}, {}, shift * 4);
    client.start().mutable_arguments(1)->mutable_tensor()->set_storage(1);
    return client;
  }
  grpc::Status Refusal(const std::function<void(v1::RunStart&)>& change) {
    RunClient client = Client(" may_alias", std::vector<float>(68), 4);
    change(client.start());
    return client.Run(*daemon_).status;
  }
};

TEST_F(RunStorageTest, TensorsThatMayOverlapShareTheirBytes) {
  Start();
  std::vector<float> memory(68), expected;
  std::iota(memory.begin(), memory.end(), 1.0f);
  expected = memory;
  for (std::size_t i = 0; i < 60; ++i) expected[i + 4] = expected[i] * 2 + 1;
  for (const bool check : {false, true}) {
    RunClient client = Client(" may_alias", memory, 4);
    client.options().set_check(check);
    client.options().set_repeat(check ? 0 : 2);
    const RunAnswer answer = client.Run(*daemon_);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.FaultKind(), "");
    ASSERT_EQ(answer.result.outputs_size(), 1);
    EXPECT_EQ(answer.result.outputs(0).name(), "B");
    EXPECT_EQ(answer.result.outputs(0).argument(), 2u);
    EXPECT_EQ(answer.result.outputs(0).tensor().offset(), 16u);
    EXPECT_EQ(answer.result.outputs(0).tensor().storage(), 0u);
    EXPECT_EQ(answer.Floats(), expected);  // the whole storage
  }
}

TEST_F(RunStorageTest, BytesThatSeveralWriteComeBackOnce) {
  Start();
  const std::string program = R"(kiln 1
func @both(%A: global f32[64] may_alias, %B: global f32[64] may_alias) {
  kernel @main grid(1) threads 64 blocks(%bx) {
    for parallel %i in 64 {
      store %A[%i] = 1.0
    }
    for parallel %j in 64 {
      store %B[%j] = 2.0
    }
  }
}
)";
  RunClient client = RunClient(program, "emu:gfx942").Tensor(std::vector<float>(96), {64}).Tensor({}, {64}, {}, 128);
  client.start().mutable_arguments(1)->mutable_tensor()->set_storage(1);
  const RunAnswer answer = client.Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.result.outputs_size(), 2);
  EXPECT_EQ(answer.result.outputs(1).tensor().storage(), 1u);
  EXPECT_EQ(answer.outputs[1], "");
  std::vector<float> expected(96, 2.0f);
  std::fill_n(expected.begin(), 32, 1.0f);
  EXPECT_EQ(answer.Floats(), expected);
}

TEST_F(RunStorageTest, TensorsThatMayNotAreRefusedWhereTheirElementsMeet) {
  Start();
  for (const std::uint64_t shift : {0u, 4u, 60u}) {
    const grpc::Status status = Client("", std::vector<float>(128), shift).Run(*daemon_).status;
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(status.error_message().find("overlap, and the kernel writes"), std::string::npos) << status.error_message();
  }
  const RunAnswer apart = Client("", std::vector<float>(128, 3.0f), 64).Run(*daemon_);
  ASSERT_TRUE(apart.status.ok()) << apart.status.error_message();
  EXPECT_EQ(apart.Floats().at(64), 7.0f);
}

TEST_F(RunStorageTest, StoragesThatAreNoneAreRefused) {
  Start();
  const auto tensor = [](v1::RunStart& start, int index) { return start.mutable_arguments(index)->mutable_tensor(); };
  const auto expect = [&](std::string_view says, const std::function<void(v1::RunStart&)>& change) {
    const grpc::Status status = Refusal(change);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(status.error_message().find(says), std::string::npos) << status.error_message();
  };
  expect("no tensor before it", [&](v1::RunStart& start) { tensor(start, 1)->set_storage(2); });
  expect("no tensor before it", [&](v1::RunStart& start) { tensor(start, 1)->set_storage(~0u); });
  expect("has bytes of its own", [&](v1::RunStart& start) { tensor(start, 0)->set_storage(1); });
  expect("no tensor before it", [&](v1::RunStart& start) { tensor(start, 0)->set_storage(1), tensor(start, 0)->set_bytes(0); });
  expect("no tensor before it", [&](v1::RunStart& start) { start.mutable_arguments(0)->set_real(1.0); });
  expect("has bytes of its own", [&](v1::RunStart& start) { tensor(start, 1)->set_bytes(4); });
  expect("do not lie within the 272 bytes", [&](v1::RunStart& start) { tensor(start, 1)->set_offset(20); });
  expect("do not lie within the 272 bytes", [&](v1::RunStart& start) { tensor(start, 1)->set_offset(~std::uint64_t{0}); });
  ExpectDoubleWorks();
}

}  // namespace
}  // namespace kiln::server::testing
