// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "clients/cli/commands.h"
#include "clients/cli/suggestion.h"

int main(int argc, char** argv) {
  using namespace kiln::cli;
  Context context;
  context.words.assign(argv + 1, argv + argc);
  CLI::App app("kiln compiles tile programs for GPUs, through the daemon kilnd.", "kiln");
  app.require_subcommand(1);
  app.fallthrough();
  app.set_version_flag("--version", "kiln " KILN_VERSION);
  app.add_option("--address", context.connect.address, "address of kilnd, unix:PATH or HOST:PORT; without it, $KILN_ADDRESS");
  app.add_option("--tls-roots", context.connect.tls_roots, "PEM file with the roots to trust over TCP; else $KILN_TLS_ROOTS");
  app.add_option("--tls-cert", context.connect.tls_certificate, "PEM certificate to show; else $KILN_TLS_CERT");
  app.add_option("--tls-key", context.connect.tls_key, "its PEM key; else $KILN_TLS_KEY");
  app.footer("A bearer token is taken from $KILN_TOKEN, or from the file $KILN_TOKEN_FILE.");
  app.add_option("--trace-parent", context.connect.trace_parent, "W3C traceparent to pass on; else $TRACEPARENT");
  app.add_option("--timeout", context.timeout_seconds, "seconds to wait for an answer; inf: as long as it takes")->check(Seconds());
  app.add_flag("--json", context.json_wanted, "for machines; the default where the output is no terminal");
  app.add_flag("--text", context.text_wanted, "for people; the default on a terminal");
  AddCompile(app, context);
  AddPrecompile(app, context);
  AddRecord(app, context);
  AddManifest(app, context);
  AddExplain(app, context);
  AddRun(app, context);
  AddTune(app, context);
  AddPlan(app, context);
  AddBench(app, context);
  AddCache(app, context);
  AddInformation(app, context);
  AddTop(app, context);
  AddServe(app, context);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error);
    if (status != 0) std::fputs(DidYouMean(app).c_str(), stderr);
    return status;
  }
  return context.status;
}
