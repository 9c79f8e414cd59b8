// SPDX-License-Identifier: Apache-2.0
//
// kilnd whose executor stands still as long as a test wants it: it asks a ptxas for its version, which does not answer meanwhile.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "server/testing/daemon_fixture.h"

namespace kiln::server::testing {

class HeldTest : public DaemonTest {
 protected:
  static constexpr int kExecutorThreads = 4;  // each of which one compile holds

  // From the start on, every compile waits in the executor.
  void StartHeld(std::vector<std::string> options) {
    std::ofstream(held_) << "";
    StartWithPtxas(std::move(options));
  }
  void StartWithPtxas(std::vector<std::string> options) {
    // In kilnd's process group, which is not killed: the patience with a ptxas would else bound what a test may take on a busy machine.
    std::ofstream(script_) << "#!/usr/bin/perl\nmy $kilnd = getppid();\nsetpgrp(0, getpgrp($kilnd)) or die;\n"
                           << "select(undef, undef, undef, 0.02) while -e '" << held_.string() << "' and getppid() == $kilnd;\n"
                           << "print \"12.0\\n\";\n";
    fs::permissions(script_, fs::perms::owner_all);
    options.push_back("--ptxas=" + script_.string());
    daemon_->Start(std::move(options));
  }
  void GoOn() { fs::remove(held_); }

  void SetUp() override {
    DaemonTest::SetUp();
    held_ = folder_ / "held";
    script_ = folder_ / "ptxas";
  }

 private:
  fs::path held_;
  fs::path script_;
};

}  // namespace kiln::server::testing
