// SPDX-License-Identifier: Apache-2.0
//
// The kiln command against a daemon whose worker does what it is told.
#include <algorithm>
#include <cstdio>

#include "server/testing/daemon_fixture.h"

namespace kiln::cli {
namespace {

using server::testing::DaemonTest;
using server::testing::Encode;
using server::testing::MinimalModule;
using server::testing::Order;
namespace fs = std::filesystem;

struct Ran {
  int status = 0;
  std::string out;  // stdout and stderr
};

class CliTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    program_ = (folder_ / "program.pb").string();
    std::ofstream(program_, std::ios::binary) << MinimalModule("a_name");
  }

  std::string Environment() const { return "KILN_ADDRESS=unix:" + daemon_->Socket() + " "; }
  Ran Kiln(const std::string& arguments) { return Run(Environment() + KILN_BIN "/kiln " + arguments); }

  static Ran Run(const std::string& command) {
    Ran ran;
    FILE* pipe = ::popen((command + " 2>&1 < /dev/null").c_str(), "r");
    std::array<char, 4096> chunk;
    for (std::size_t got; (got = std::fread(chunk.data(), 1, chunk.size(), pipe)) > 0;) ran.out.append(chunk.data(), got);
    const int status = ::pclose(pipe);
    ran.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return ran;
  }

  Ran Compile(Order order, uint32_t amount = 0, const std::string& more = "") {
    return Kiln("compile " + program_ + " -t cuda:sm_80 --max-registers " + std::to_string(Encode(order, amount)) + " " + more);
  }

  static std::string TextOf(const fs::path& file) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }

  static bool Has(const Ran& ran, const std::string& text) { return ran.out.find(text) != std::string::npos; }

  std::string program_;
};

TEST_F(CliTest, ASocketPathThatNoSocketCanHaveIsTold) {
  const std::string folder = "/" + std::string(100, 'x');
  for (const std::string& environment : {"env KILN_ADDRESS=unix:" + folder + "/kiln.sock ", "env -u KILN_ADDRESS XDG_RUNTIME_DIR=" + folder + " "}) {
    const Ran ran = Run(environment + KILN_BIN "/kiln stats");
    EXPECT_NE(ran.status, 0);
    EXPECT_TRUE(Has(ran, "has 111 bytes and Unix sockets take at most 107")) << ran.out;
  }
}

TEST_F(CliTest, CompilesAndThenKnows) {
  daemon_->Start();
  const std::string code = (folder_ / "code.ptx").string();
  const Ran first = Compile(Order::kAnswer, 2, "--text -o " + code);
  EXPECT_EQ(first.status, 0) << first.out;
  EXPECT_TRUE(Has(first, "compiled in")) << first.out;
  EXPECT_EQ(fs::file_size(code), 201u);
  EXPECT_TRUE(Has(Compile(Order::kAnswer, 2, "--text"), "known (memory)"));
}

TEST_F(CliTest, WritesJsonWhereTheOutputIsNoTerminal) {
  daemon_->Start();
  const Ran ran = Compile(Order::kAnswer, 1);
  EXPECT_TRUE(ran.out.starts_with("{\"key\": \"")) << ran.out;
  EXPECT_TRUE(Has(ran, "\"bytes\": 101, "));
  const Ran failed = Compile(Order::kRefuse);
  EXPECT_EQ(failed.status, 1);
  EXPECT_TRUE(failed.out.starts_with("{\"error\": \"invalid\"")) << failed.out;
}

TEST_F(CliTest, ErrorsSayWhatToDo) {
  const Ran no_daemon = Compile(Order::kAnswer, 0, "--text");
  EXPECT_EQ(no_daemon.status, 1);
  EXPECT_TRUE(Has(no_daemon, "kiln serve")) << no_daemon.out;
  EXPECT_TRUE(Has(no_daemon, "--local")) << no_daemon.out;
  daemon_->Start();
  const Ran refused = Compile(Order::kRefuse, 0, "--text");
  EXPECT_TRUE(Has(refused, "error: the fake worker was told to refuse this")) << refused.out;
  EXPECT_TRUE(Has(refused, "try: send another order")) << refused.out;
  EXPECT_TRUE(Has(Kiln("--text compile " + program_), "--target"));
  EXPECT_TRUE(Has(Kiln("--text compile nowhere.kiln -t cuda:sm_80"), "cannot read nowhere.kiln"));
  EXPECT_TRUE(Has(Kiln("--text compile " + program_ + " -t cuda:sm_8"), "did you mean \"cuda:sm_80\"?"));
}

// Twice its input, in blocks of so many rows.
std::string DoubleIn(unsigned rows) {
  const std::string r = std::to_string(rows);
  return "kiln 1\nfunc @twice[%m](%A: global f32[%m, 64], %B: global f32[%m, 64]) outputs(1) {\n  kernel @main grid((%m + " +
         std::to_string(rows - 1) + ") // " + r + ") threads 128 blocks(%bx) {\n    %t = alloc fragment f32[" + r + ", 64]\n    copy %A[%bx * " + r +
         ", 0; " + r + ", 64] -> %t[0, 0; " + r + ", 64]\n    for parallel %i, %j in " + r +
         ", 64 {\n      store %t[%i, %j] = %t[%i, %j] + %t[%i, %j]\n    }\n    copy %t[0, 0; " + r + ", 64] -> %B[%bx * " + r + ", 0; " + r +
         ", 64]\n  }\n}\n";
}

TEST_F(CliTest, TunesAndThenKnows) {
  daemon_->Start({"--worker-executable=" KILN_BIN "/kiln-worker"});
  std::string files;
  for (const unsigned rows : {32u, 64u}) {
    const fs::path file = folder_ / ("rows" + std::to_string(rows) + ".kiln");
    std::ofstream(file) << DoubleIn(rows);
    files += " " + file.string();
  }
  const std::string tune = "tune" + files + " --device emu:sm_80 --dim m=256";
  const Ran refused = Kiln("--text " + tune);
  EXPECT_EQ(refused.status, 1);
  EXPECT_TRUE(Has(refused, "which candidate is emulated fastest says nothing of the GPU")) << refused.out;
  const Ran unknown = Kiln("--text " + tune + " --measure-on-emulator --known");
  EXPECT_EQ(unknown.status, 1);
  EXPECT_TRUE(Has(unknown, "were not tuned on emulator yet")) << unknown.out;
  const Ran tuned = Kiln("--text " + tune + " --measure-on-emulator --show");
  EXPECT_EQ(tuned.status, 0) << tuned.out;
  EXPECT_TRUE(Has(tuned, "is the fastest of 2 on the emulator: ")) << tuned.out;
  EXPECT_TRUE(Has(tuned, "(tuned in ")) << tuned.out;
  EXPECT_TRUE(Has(tuned, "rows32.kiln  ")) << tuned.out;
  EXPECT_TRUE(Has(tuned, "expected")) << tuned.out;
  EXPECT_TRUE(Has(tuned, "the planner's first choice reaches ")) << tuned.out;
  EXPECT_TRUE(Has(Kiln("--text " + tune + " --mode model"), "(from a record: memory)"));
  const Ran known = Kiln(tune + " --measure-on-emulator --known");
  EXPECT_EQ(known.status, 0) << known.out;
  EXPECT_TRUE(known.out.starts_with("{\"winner\": \"")) << known.out;
  EXPECT_TRUE(Has(known, "\"origin\": \"memory\"")) << known.out;
  EXPECT_TRUE(Has(known, "\"label\": \"rows64.kiln\"")) << known.out;
  EXPECT_FALSE(Has(known, "\"expected\": null")) << known.out;
  const fs::path page = folder_ / "tuned.html";
  const Ran paged = Kiln(tune + " --measure-on-emulator --known --html " + page.string());
  EXPECT_EQ(paged.status, 0) << paged.out;
  std::stringstream text;
  text << std::ifstream(page).rdbuf();
  for (const char* part :
       {"<h1>2 candidates on the emulator</h1>", "<td>rows64.kiln</td>", "<h2>Model against measurement</h2>", "<th class=\"number\">matrix</th>"})
    EXPECT_NE(text.str().find(part), std::string::npos) << part;
  EXPECT_TRUE(Has(Kiln("--text tune" + files + " --device cuda:77"), "has no device cuda:77"));
}

TEST_F(CliTest, TuneAnswersAtOnceWhereItIsNotWaitedFor) {
  daemon_->Start({"--worker-executable=" KILN_BIN "/kiln-worker"});
  std::string files;
  for (const unsigned rows : {256u, 8u}) {
    const fs::path file = folder_ / ("rows" + std::to_string(rows) + ".kiln");
    std::ofstream(file) << DoubleIn(rows);
    files += " " + file.string();
  }
  const std::string tune = "tune" + files + " --device emu:sm_80 --dim m=2048 --mode ";
  const Ran off = Kiln("--text " + tune + "off");
  EXPECT_TRUE(Has(off, "rows256.kiln is the choice of 2: the first that was given")) << off.out;
  const Ran model = Kiln("--text " + tune + "model");
  EXPECT_TRUE(Has(model, "rows8.kiln is the choice of 2: the planner's first")) << model.out;
  const Ran background = Kiln("--text " + tune + "background --measure-on-emulator");
  EXPECT_TRUE(Has(background, "it is tuned in the background")) << background.out;
  EXPECT_EQ(background.status, 0);
  const Ran never = Kiln("--text " + tune + "never");
  EXPECT_NE(never.status, 0);
  EXPECT_TRUE(Has(never, "--mode")) << never.out;
}

TEST_F(CliTest, WhatIsOfASpaceIsRefusedWithoutOne) {
  for (const std::string option : {"--dim m=8", "--scalar a=2", "--device emu", "--tune wait"}) {
    const Ran ran = Kiln("--text compile " + program_ + " -t cuda:sm_80 " + option);
    EXPECT_NE(ran.status, 0) << option;
    EXPECT_TRUE(Has(ran, "say which with --space")) << ran.out;
  }
}

TEST_F(CliTest, ARunOnAGpuIsNotChecked) {
  const Ran ran = Kiln("--text run " + program_ + " --check");
  EXPECT_EQ(ran.status, 1);
  EXPECT_TRUE(Has(ran, "--check is for emulated runs")) << ran.out;
}

TEST_F(CliTest, AProgramOfOtherNamesIsKnownAndLoaded) {
  daemon_->Start();
  const std::string more = " --max-registers " + std::to_string(Encode(Order::kAnswer)) + " -t cuda:sm_80";
  ASSERT_EQ(Kiln("compile " + program_ + more).status, 0);
  const std::string other = (folder_ / "other.pb").string();
  std::ofstream(other, std::ios::binary) << MinimalModule("another_name");
  const Ran known = Kiln("--text compile " + other + more);
  EXPECT_EQ(known.status, 0) << known.out;
  EXPECT_TRUE(Has(known, "known (memory)")) << known.out;
}

TEST_F(CliTest, AnExportToANameThatNoFileCanHaveIsAnError) {
  daemon_->Start();
  const std::string name(300, 'b');
  const Ran ran = Kiln("--text cache export " + name);
  EXPECT_EQ(ran.status, 1);
  EXPECT_TRUE(Has(ran, "cannot write " + name + ": ")) << ran.out;
}

TEST_F(CliTest, ATimeoutMayBeLongerThanClocksGo) {
  daemon_->Start();
  for (const char* timeout : {"1e10", "1e30", "inf", "1e400"}) {
    const std::string option = " --timeout " + std::string(timeout);
    EXPECT_EQ(Kiln("stats" + option).status, 0) << timeout;
    EXPECT_EQ(Compile(Order::kAnswer, 3, "--local --worker " KILN_BIN "/kiln-fake-worker" + option).status, 0) << timeout;
  }
}

TEST_F(CliTest, WhatIsNoTimeIsToldAsThat) {
  daemon_->Start();
  for (const char* word : {"nan", "0", "-1", "-inf", "soon", ""}) {
    for (const char* command : {"stats --timeout", "top --once -n"}) {
      const Ran ran = Kiln(std::string(command) + " '" + word + "'");
      EXPECT_NE(ran.status, 0) << command << " " << word;
      EXPECT_TRUE(Has(ran, "seconds")) << ran.out;
      EXPECT_LT(ran.out.size(), 200u) << ran.out;
    }
  }
}

TEST_F(CliTest, AReproducerRunsInAWorkerOfItsOwn) {
  daemon_->Start();
  const Ran crashed = Compile(Order::kAbort);
  const std::size_t at = crashed.out.find("\"reproducer\": \"") + 15;
  const std::string file = crashed.out.substr(at, crashed.out.find('"', at) - at);
  const Ran again = Kiln("--text compile --repro " + file + " --worker " KILN_BIN "/kiln-fake-worker");
  EXPECT_EQ(again.status, 1);
  EXPECT_TRUE(Has(again, "killed by SIGABRT in stage decode")) << again.out;
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 1u);
}

TEST_F(CliTest, CompilesAndExplainsWithoutADaemon) {
  const std::string worker = " --worker " KILN_BIN "/kiln-fake-worker";
  const Ran local = Compile(Order::kAnswer, 3, "--local" + worker);
  EXPECT_EQ(local.status, 0) << local.out;
  EXPECT_TRUE(Has(local, "\"bytes\": 301")) << local.out;
  const Ran explained = Kiln("--text explain " + program_ + " -t cuda:sm_80 --time" + worker);
  EXPECT_EQ(explained.status, 0) << explained.out;
  EXPECT_TRUE(Has(explained, "cuda:sm_80")) << explained.out;
  const Ran slow = Compile(Order::kHang, 0, "--text --timeout 0.3 --local" + worker);
  EXPECT_EQ(slow.status, 1);
  EXPECT_TRUE(Has(slow, "--timeout")) << slow.out;
}

TEST_F(CliTest, CompilesFunctionsInOtherLanguagesIfOneTrustsThem) {
  const std::string program = (folder_ / "functions.kiln").string();
  std::ofstream(program) << R"(kiln 1
func @main() {
  function @f0 ptx "f" { ".func f() { ret; }" }
  kernel @main grid(1) threads 32 blocks(%b) {
    call @f0()
  }
})";
  const std::string compile = "compile " + program + " -t cuda:sm_80 --local --max-registers 3 --worker " KILN_BIN "/kiln-fake-worker";
  const Ran refused = Kiln("--text " + compile);
  EXPECT_EQ(refused.status, 1);
  EXPECT_TRUE(Has(refused, "compile it with --raw if you trust them")) << refused.out;
  EXPECT_FALSE(Has(Kiln("--text " + compile + " --raw"), "--raw if you trust"));
}

TEST_F(CliTest, WaitsForTheStoreAndSaysWhereItCannotTakeAResult) {
  EXPECT_NE(Compile(Order::kAnswer, 1, "--durable --local --worker " KILN_BIN "/kiln-fake-worker").status, 0) << "without a daemon there is no store";
  daemon_->Start();
  EXPECT_TRUE(Has(Compile(Order::kAnswer, 1, "--durable"), "\"durable\": true"));
  EXPECT_FALSE(Has(Compile(Order::kAnswer, 2, "--text --durable"), "could not take"));
  ASSERT_EQ(daemon_->Stop(), 0);
  fs::remove_all(daemon_->State());
  fs::create_directories(fs::path(daemon_->State()) / "lock");  // a folder cannot be locked
  daemon_->Start();
  const Ran lost = Compile(Order::kAnswer, 3, "--text --durable");
  EXPECT_EQ(lost.status, 0) << lost.out;
  EXPECT_TRUE(Has(lost, "could not take the result")) << lost.out;
}

TEST_F(CliTest, LooksAfterTheCache) {
  daemon_->Start();
  for (uint32_t i = 0; i < 3; ++i) ASSERT_EQ(Compile(Order::kAnswer, i).status, 0);
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().tiers(1).entries() == 3; }));
  const Ran list = Kiln("--text cache ls");
  EXPECT_TRUE(Has(list, "3 entries")) << list.out;
  EXPECT_TRUE(Has(list, "a_name")) << list.out;
  const Ran json = Kiln("cache ls -n 1");
  const std::string key = json.out.substr(json.out.find("\"key\": \"") + 8, 13);
  EXPECT_TRUE(Has(Kiln("--text cache show " + key), "cuda:sm_80"));
  EXPECT_EQ(Kiln("--text cache show nokey").status, 1);
  EXPECT_TRUE(Has(Kiln("--text cache verify"), "3 entries checked, 0 corrupt"));
  const std::string bundle = (folder_ / "kernels.bundle").string();
  EXPECT_EQ(Kiln("cache export " + bundle).status, 0);
  EXPECT_TRUE(Has(Kiln("--text cache gc --to 0"), "3 entries evicted"));
  EXPECT_TRUE(Has(Kiln("--text cache import " + bundle), "3 entries imported"));
  EXPECT_TRUE(Has(Kiln("--text cache import " + program_), "kiln: ")) << "what is no bundle is refused";
}

TEST_F(CliTest, WhatGoesToStdoutIsNotMixedWithReports) {
  daemon_->Start();
  const fs::path file = folder_ / "file", out = folder_ / "out";
  ASSERT_EQ(Compile(Order::kAnswer, 2, "-o " + file.string()).status, 0);
  const std::string compile = "compile " + program_ + " -t cuda:sm_80 --max-registers " + std::to_string(Encode(Order::kAnswer, 2)) + " -o ";
  const std::string show = "cache show " + Kiln("cache ls").out.substr(10, 16) + " -o ";
  for (const std::string& command : {compile, show, std::string("cache export "), "precompile " + program_ + " -t cuda:sm_80 -o "}) {
    for (const char* form : {"--text ", "--json "}) {
      ASSERT_EQ(Kiln(form + command + file.string()).status, 0);
      for (const std::string& into : {" > " + out.string(), " | cat > " + out.string()}) {
        const Ran ran = Run("(" + Environment() + KILN_BIN "/kiln " + form + command + "/dev/stdout" + into + ")");
        EXPECT_EQ(TextOf(out), TextOf(file)) << command << into;
        EXPECT_FALSE(ran.out.empty()) << command;
        EXPECT_EQ(ran.out.starts_with('{'), form == std::string("--json ")) << command << ran.out;
      }
    }
  }
}

TEST_F(CliTest, ExportsTheEntriesWhoseKeysBeginSo) {
  daemon_->Start();
  for (uint32_t i = 0; i < 3; ++i) ASSERT_EQ(Compile(Order::kAnswer, i).status, 0);
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().tiers(1).entries() == 3; }));
  const std::string bundle = (folder_ / "kernels.bundle").string();
  std::string unused = "0123456789abcdef";  // as first digits
  const Ran list = Kiln("cache ls");
  std::string key;
  for (std::size_t at = 0; (at = list.out.find("\"key\": \"", at)) != std::string::npos;) {
    key = list.out.substr(at += 8, 5);
    std::erase(unused, key[0]);
  }
  const Ran one = Kiln("--text cache export " + bundle + " -k " + key);
  EXPECT_EQ(one.status, 0) << one.out;
  EXPECT_TRUE(Has(Kiln("--text cache import " + bundle), "1 entries imported"));
  const std::string digit(1, unused[0]);
  const Ran none = Kiln("--text cache export " + bundle + " -k " + digit);
  EXPECT_EQ(none.status, 1) << none.out;
  EXPECT_TRUE(Has(none, "no entry's key begins with " + digit + ";")) << none.out;
  const Ran wrong = Kiln("--text cache export " + bundle + " -k zz");
  EXPECT_EQ(wrong.status, 1) << "it ended otherwise";
  EXPECT_TRUE(Has(wrong, "zz is no key")) << wrong.out;
  const Ran elsewhere = Kiln("--text cache export " + bundle + " -t hip:gfx942");
  EXPECT_EQ(elsewhere.status, 1);
  EXPECT_TRUE(Has(elsewhere, "there is no entry for hip:gfx942;")) << elsewhere.out;
}

TEST_F(CliTest, VerifyTellsOfADamagedStore) {
  const std::string database = daemon_->State() + "/kiln.db";
  for (const auto& [output, told] : {std::pair{"--text", "the store is damaged"}, std::pair{"--json", "\"store_damaged\": true"}}) {
    daemon_->Start();
    for (uint32_t i = 0; i < 20; ++i) ASSERT_EQ(Compile(Order::kAnswer, 100 + i).status, 0);
    ASSERT_EQ(daemon_->Stop(), 0);
    {
      constexpr std::size_t kPage = 16384;  // what a start reads is before the tenth
      std::fstream file(database, std::ios::in | std::ios::out | std::ios::binary);
      for (std::size_t at = 10 * kPage; at < server::testing::fs::file_size(database); at += 2 * kPage) {
        file.seekp(static_cast<std::streamoff>(at));
        file << std::string(kPage, '\x5a');
      }
    }
    daemon_->Start();
    const Ran damaged = Kiln(std::string(output) + " cache verify");
    EXPECT_EQ(damaged.status, 3) << damaged.out;
    EXPECT_TRUE(Has(damaged, told)) << damaged.out;
    EXPECT_TRUE(server::testing::fs::exists(database + ".corrupt-1"));
    const Ran sound = Kiln("cache verify");
    EXPECT_EQ(sound.status, 0) << sound.out;
    EXPECT_TRUE(Has(sound, "\"store_damaged\": false")) << sound.out;
    ASSERT_EQ(daemon_->Stop(), 0);
  }
}

TEST_F(CliTest, TopShowsRatesOnceOrLineByLine) {
  EXPECT_EQ(Kiln("--text top --once -n 0.1").status, 1) << "no daemon";
  daemon_->Start();
  ASSERT_EQ(Compile(Order::kAnswer, 1).status, 0);
  const Ran once = Kiln("top --once -n 0.1");
  EXPECT_EQ(once.status, 0) << once.out;
  EXPECT_TRUE(Has(once, "serving at")) << once.out;
  EXPECT_TRUE(Has(once, "cuda:sm_80")) << once.out;
  EXPECT_TRUE(Has(once, "workers")) << once.out;
  EXPECT_EQ(once.out.find('\x1b'), once.out.npos) << "nothing for a terminal goes into a pipe";
  const Ran lines = Kiln("top -n 0.05 -c 3");
  EXPECT_EQ(std::ranges::count(lines.out, '\n'), 4) << lines.out;
  EXPECT_TRUE(Has(lines, "requests/s")) << lines.out;
  const Ran json = Kiln("top --once -n 0.1 --json");
  EXPECT_TRUE(json.out.starts_with("{\"stats\": {\"state\": \"serving\"")) << json.out;
  EXPECT_TRUE(Has(json, "\"per_second\": {\"requests\": ")) << json.out;
}

TEST_F(CliTest, StatsNameWhatHappened) {
  daemon_->Start();
  ASSERT_EQ(Compile(Order::kAnswer, 1).status, 0);
  EXPECT_EQ(Compile(Order::kRefuse).status, 1);
  EXPECT_EQ(Compile(Order::kAbort).status, 1);
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().refusals_size() == 2; }));
  const Ran text = Kiln("--text stats");
  EXPECT_TRUE(Has(text, "invalid 1")) << text.out;
  EXPECT_TRUE(Has(text, "workers replaced: abort 1")) << text.out;
  const Ran json = Kiln("stats");
  EXPECT_TRUE(Has(json, "\"worker_restarts\": {\"abort\": 1}")) << json.out;
  EXPECT_TRUE(Has(json, "{\"name\": \"cuda:sm_80\", \"compiles\": 3, \"failed\": 2")) << json.out;
}

TEST_F(CliTest, SaysWhyItKnowsNothingOfTheDaemon) {
  const std::string why = "no kilnd answers at unix:" + daemon_->Socket();
  for (const char* form : {"--text ", "--json "}) {
    const Ran devices = Kiln(std::string(form) + "devices");
    EXPECT_EQ(devices.status, 1) << devices.out;
    EXPECT_TRUE(Has(devices, why)) << devices.out;
    const Ran version = Kiln(std::string(form) + "version");
    EXPECT_EQ(version.status, 0) << "it has one of its own";
    EXPECT_TRUE(Has(version, why)) << version.out;
    const Ran nowhere = Run("KILN_ADDRESS=unix:/nowhere KILN_TOKEN_FILE=/nowhere/token " KILN_BIN "/kiln " + std::string(form) + "version");
    EXPECT_TRUE(Has(nowhere, "cannot read /nowhere/token")) << nowhere.out;
  }
}

TEST_F(CliTest, TellsAboutItselfAndTheDaemon) {
  EXPECT_EQ(Kiln("--version").status, 0);
  EXPECT_EQ(Kiln("--text stats").status, 1);
  daemon_->Start();
  EXPECT_TRUE(Has(Kiln("--text stats"), "serving"));
  const Ran devices = Kiln("--text devices");
  EXPECT_TRUE(Has(devices, "cuda:sm_90a"));
  EXPECT_TRUE(Has(devices, "finds no GPU: the fake worker has none")) << devices.out;
  EXPECT_TRUE(Has(Kiln("--text version"), "compiler "));
  EXPECT_TRUE(Has(Kiln("stats"), "\"state\": \"serving\""));
}

TEST_F(CliTest, PrecompilesWhatWasUsedMost) {
  daemon_->Start();
  const Ran none = Kiln("precompile --text --hot 3");
  EXPECT_EQ(none.status, 0) << none.out;
  EXPECT_TRUE(Has(none, "0 of 0 kernels")) << "nothing is of another build: " << none.out;
  EXPECT_NE(Kiln("precompile").status, 0) << "neither files nor --hot";
  EXPECT_NE(Kiln("precompile --hot 0").status, 0);
}

TEST_F(CliTest, PrecompilesForSeveralTargetsIntoABundle) {
  daemon_->Start();
  const std::string bundle = (folder_ / "kernels.bundle").string();
  const std::string arguments = "precompile " + program_ + " -t cuda:sm_80 -t cuda:sm_90a -t hip:gfx942 -o " + bundle;
  const Ran first = Kiln(arguments + " --text");
  EXPECT_EQ(first.status, 0) << first.out;
  EXPECT_TRUE(Has(first, "3 of 3 kernels: 0 known, 3 compiled")) << first.out;
  EXPECT_TRUE(Has(Kiln(arguments + " --json"), R"("known": 3)"));
  EXPECT_EQ(daemon_->Stats().compiles(), 3u);
  ASSERT_EQ(daemon_->Stop(), 0);
  // Everything but the key: what it sealed is still trusted.
  for (const auto& entry : fs::directory_iterator(daemon_->State()))
    if (entry.path().filename() != "signing-key.pem") fs::remove_all(entry);
  daemon_->Start();
  EXPECT_TRUE(Has(Kiln("cache import --text " + bundle), "3 entries imported"));
  ASSERT_EQ(daemon_->Stop(), 0);
  fs::remove_all(daemon_->State());
  daemon_->Start();
  EXPECT_NE(Kiln("cache import --text " + bundle).status, 0) << "sealed with a key that nobody named";

  fs::remove(bundle);
  const std::string refused = "precompile " + program_ + " -t cuda:sm_80 -o " + bundle + " --max-registers " + std::to_string(Encode(Order::kRefuse));
  const Ran failed = Kiln(refused + " --text");
  EXPECT_EQ(failed.status, 1);
  EXPECT_TRUE(Has(failed, "was told to refuse this")) << failed.out;
  EXPECT_FALSE(fs::exists(bundle));
  EXPECT_FALSE(Has(failed, bundle)) << failed.out;
  EXPECT_TRUE(Has(Kiln(refused + " --json"), R"("bundle": "",)"));
}

// Seven programs of 3 MiB; kilnd takes messages of 16 MiB.
TEST_F(CliTest, AManifestLargerThanAMessageHasOneProgress) {
  daemon_->Start();
  const std::string module = MinimalModule(std::string(3 << 19, 'n'));
  std::string files;
  for (int i = 0; i < 7; ++i) {
    files += (folder_ / ("large-" + std::to_string(i) + ".pb")).string() + " ";
    std::ofstream(folder_ / ("large-" + std::to_string(i) + ".pb"), std::ios::binary) << module;
  }
  const Ran ran = Kiln("precompile " + files + "-t cuda:sm_80 -t cuda:sm_90a --json");
  EXPECT_EQ(ran.status, 0) << ran.out;
  EXPECT_TRUE(Has(ran, R"("total": 14, )")) << ran.out;
  for (int i = 0; i < 7; ++i) {
    for (const char* target : {"cuda:sm_80", "cuda:sm_90a"}) {
      EXPECT_TRUE(Has(ran, "large-" + std::to_string(i) + R"(.pb", "target": ")" + target + '"')) << ran.out;
    }
  }
  EXPECT_EQ(daemon_->Stats().compiles(), 2u) << "they differ in nothing but the file";
}

}  // namespace
}  // namespace kiln::cli
