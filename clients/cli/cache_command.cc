// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <memory>

#include <fmt/format.h>

#include "clients/cli/commands.h"
#include "clients/cli/report.h"
#include "clients/cli/sources.h"

namespace kiln::cli {
namespace {

using Align = Table::Align;

struct CacheArguments {
  std::string target;
  std::string key;
  std::string file;
  std::string output;
  std::uint32_t limit = 0;
  std::uint64_t target_bytes = 0;
};

// The whole bytes that the digits give; an odd last digit is dropped.
std::string BytesOfHex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

Error NotFound(const std::string& digits, const std::string& target) {
  std::string what = digits.empty() ? "there is no entry" : fmt::format("no entry's key begins with {}", digits);
  if (!target.empty()) what += digits.empty() ? fmt::format(" for {}", target) : fmt::format(" and is for {}", target);
  return {.code = ErrorCode::kNotFound, .message = what + "; `kiln cache ls` lists them"};
}

// The entries whose keys begin with these digits, among those for the target; either may be empty. Fails if there is none.
std::expected<std::vector<CacheEntry>, Error> FindEntries(Client& client, const std::string& digits, const std::string& target) {
  if (digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
    return std::unexpected(InvalidInput(digits + " is no key; give the first digits of one that `kiln cache ls` shows"));
  }
  std::string lower = digits;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  auto entries = client.CacheList(BytesOfHex(lower), target);
  if (!entries) return entries;
  std::erase_if(*entries, [&](const CacheEntry& entry) { return !Hex(entry.key).starts_with(lower); });
  if (entries->empty()) return std::unexpected(NotFound(digits, target));
  return entries;
}

// The one entry whose key begins with these digits.
std::expected<CacheEntry, Error> FindEntry(Client& client, const std::string& digits) {
  if (digits.empty()) return std::unexpected(InvalidInput("give the first digits of a key that `kiln cache ls` shows"));
  auto entries = FindEntries(client, digits, {});
  if (!entries) return std::unexpected(std::move(entries.error()));
  if (entries->size() > 1) {
    return std::unexpected(InvalidInput(fmt::format("{} keys begin with {}; give more digits", entries->size(), digits)));
  }
  return entries->front();
}

Json ToJson(const CacheEntry& entry) {
  return Json::Object({{"key", Hex(entry.key)},
                       {"target", entry.target},
                       {"name", entry.name},
                       {"bytes", entry.bytes},
                       {"created_unix", entry.created_unix},
                       {"last_used_unix", entry.last_used_unix},
                       {"hits", entry.hits},
                       {"cubin", entry.cubin}});
}

void List(Context& context, Client& client, const CacheArguments& a) {
  auto entries = client.CacheList({}, a.target, a.limit);
  if (!entries) return context.Fail(entries.error());
  if (context.json()) return context.Print(Json::Map(*entries, ToJson));
  const std::int64_t now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()).time_since_epoch().count();
  std::ranges::stable_sort(*entries, std::greater<>(), &CacheEntry::last_used_unix);
  Table table({{"key"}, {"name"}, {"target"}, {"cubin"}, {"size", Align::kRight}, {"hits", Align::kRight}, {"used", Align::kRight}});
  std::uint64_t bytes = 0;
  for (const CacheEntry& entry : *entries) {
    bytes += entry.bytes;
    table.Add({Hex(entry.key).substr(0, 16), entry.name, entry.target, entry.cubin ? "yes" : "", Bytes(entry.bytes), std::to_string(entry.hits),
               Ago(entry.last_used_unix, now)});
  }
  fmt::print("{}{}\n", table.Text(context.colours()),
             Paint(fmt::format("{} entries, {}", entries->size(), Bytes(bytes)), Style::kDim, context.colours()));
}

void Show(Context& context, Client& client, const CacheArguments& a) {
  context.LeaveStdoutTo(a.output);
  const auto entry = FindEntry(client, a.key);
  if (!entry) return context.Fail(entry.error());
  const auto found = client.LookupKey(entry->key);
  if (!found) return context.Fail(found.error());
  if (!a.output.empty()) {
    if (const auto written = WriteFile(a.output, found->code); !written) return context.Fail(written.error());
  }
  if (context.json()) {
    return context.Print(Json::Object({{"entry", ToJson(*entry)}, {"compiled", cli::ToJson(*found)}, {"report", ReportJson(*found)}}));
  }
  fmt::print(context.report, "key     {}\nname    {}\ntarget  {}\ncode    {} of {}\nhits    {}\n{}", Hex(entry->key), entry->name, found->target,
             Bytes(found->code.size()), Name(found->kind), entry->hits, ReportText(*found, context.colours()));
}

void Collect(Context& context, Client& client, const CacheArguments& a) {
  const auto report = client.CacheGc(a.target_bytes);
  if (!report) return context.Fail(report.error());
  if (context.json()) {
    return context.Print(Json::Object({{"evicted", report->evicted}, {"bytes_freed", report->bytes_freed}}));
  }
  fmt::print("{} entries evicted, {} freed\n", report->evicted, Bytes(report->bytes_freed));
}

void Verify(Context& context, Client& client, const CacheArguments&) {
  const auto report = client.CacheVerify();
  if (!report) return context.Fail(report.error());
  const std::uint64_t bad = report->corrupt + report->forged;
  if (bad > 0 || report->store_damaged) context.status = 3;
  if (context.json()) {
    return context.Print(Json::Object(
        {{"checked", report->checked}, {"corrupt", report->corrupt}, {"forged", report->forged}, {"store_damaged", report->store_damaged}}));
  }
  if (report->store_damaged) {
    fmt::print("{} the store is damaged: its file was set aside (kiln.db.corrupt-N in the state directory), an empty one takes its place\n",
               Paint("✗", Style::kBad, context.colours()));
    return;
  }
  fmt::print("{} {} entries checked, {} corrupt, {} without this daemon's signature{}\n",
             Paint(bad == 0 ? "✓" : "✗", bad == 0 ? Style::kGood : Style::kBad, context.colours()), report->checked, report->corrupt, report->forged,
             bad == 0 ? "" : "; evicted: they will be compiled again");
}

void Export(Context& context, Client& client, const CacheArguments& a) {
  context.LeaveStdoutTo(a.file);
  std::vector<std::string> keys;
  if (!a.key.empty() || !a.target.empty()) {
    const auto entries = FindEntries(client, a.key, a.target);
    if (!entries) return context.Fail(entries.error());
    for (const CacheEntry& entry : *entries) keys.push_back(entry.key);
  }
  const auto bytes = client.CacheExport(a.file, keys);
  if (!bytes) return context.Fail(bytes.error());
  if (context.json()) return context.Print(Json::Object({{"file", a.file}, {"bytes", *bytes}}));
  fmt::print(context.report, "{} → {}\n", Bytes(*bytes), a.file);
}

void Import(Context& context, Client& client, const CacheArguments& a) {
  const auto report = client.CacheImport(a.file);
  if (!report) return context.Fail(report.error());
  if (context.json()) {
    return context.Print(Json::Object({{"imported", report->imported}, {"rejected", report->rejected}}));
  }
  fmt::print("{} entries imported{}\n", report->imported, report->rejected == 0 ? "" : fmt::format(", {} rejected", report->rejected));
}

}  // namespace

void AddCache(CLI::App& app, Context& context) {
  const auto arguments = std::make_shared<CacheArguments>();
  CLI::App& cache = *app.add_subcommand("cache", "Inspect and maintain the daemon's store");
  cache.require_subcommand(1);
  using Function = void (*)(Context&, Client&, const CacheArguments&);
  const auto add = [&](const char* name, const char* about, Function function) -> CLI::App& {
    CLI::App& sub = *cache.add_subcommand(name, about);
    sub.callback([arguments, &context, function] {
      auto client = context.Connect();
      if (!client) return context.Fail(client.error());
      function(context, *client, *arguments);
    });
    return sub;
  };
  CLI::App& list = add("ls", "List the entries, the last used first", List);
  list.add_option("-t,--target", arguments->target, "only those for this target");
  list.add_option("-n,--limit", arguments->limit, "at most so many");
  CLI::App& show = add("show", "One entry: what it is and what the compiler decided", Show);
  show.add_option("key", arguments->key, "the first digits of its key")->required();
  show.add_option("-o,--output", arguments->output, "write its code here");
  CLI::App& collect = add("gc", "Evict the least recently used entries", Collect);
  collect.add_option("--to", arguments->target_bytes, "until so much is left, e.g. 1GiB")->transform(CLI::AsSizeValue(false))->required();
  add("verify", "Read every entry and check its digests and signature", Verify);
  CLI::App& out = add("export", "Write entries to a bundle file", Export);
  out.add_option("file", arguments->file)->required();
  out.add_option("-k,--key", arguments->key, "only keys that begin with these digits");
  out.add_option("-t,--target", arguments->target, "only those for this target");
  add("import", "Take the entries of a bundle file", Import).add_option("file", arguments->file)->required();
}

}  // namespace kiln::cli
