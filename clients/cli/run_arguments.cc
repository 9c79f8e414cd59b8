// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/run_arguments.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "clients/runtime/bind.h"
#include "clients/runtime/host_expr.h"

namespace kiln::cli {

int RunArguments::index() const {
  int value = -1;
  const char* end = device.data() + device.size();
  const auto parsed = std::from_chars(device.data(), end, value);
  return parsed.ptr == end ? value : -1;
}

std::expected<void, Error> RunArguments::CheckForGpu() const {
  const char* option = check ? "--check" : schedule != 0 ? "--schedule" : run_limit != 0 ? "--run-limit" : nullptr;
  if (option == nullptr) return {};
  return std::unexpected(
      InvalidInput(fmt::format("{} is for emulated runs, and this run is on a GPU: leave it out, or run with "
                               "--device emu:sm_90a",
                               option)));
}

Error ToError(const runtime::Error& error) {
  const bool ours = error.kind == runtime::Error::Kind::kArgument;
  return {.code = ours ? ErrorCode::kInvalid : ErrorCode::kUnavailable, .message = error.message};
}

namespace {

using Words = std::vector<std::string>;

// All of the text.
template <class Number>
std::optional<Number> Parse(std::string_view text) {
  Number number{};
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

std::expected<std::map<std::string, std::string>, Error> Split(const Words& words, const char* form) {
  std::map<std::string, std::string> values;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    if (equals == 0 || equals == std::string::npos) return std::unexpected(InvalidInput(fmt::format("{} is not {}", word, form)));
    const std::string name = word.substr(0, equals);
    const auto [at, is_new] = values.emplace(name, word.substr(equals + 1));
    if (!is_new) return std::unexpected(InvalidInput(fmt::format("{}: {} has a value already, {}", word, name, at->second)));
  }
  return values;
}

std::expected<void, Error> CheckName(const std::string& name, const Words& known, const char* option, const char* what) {
  if (std::ranges::find(known, name) != known.end()) return {};
  return std::unexpected(InvalidInput(fmt::format("{} {}: there is no such {}; there is {}", option, name, what,
                                                  known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")))));
}

}  // namespace

std::expected<Values, Error> Values::Parse(const RunArguments& arguments) {
  constexpr const char* kDim = "NAME=INTEGER (--dim)";
  auto dims = Split(arguments.dims, kDim);
  if (!dims) return std::unexpected(std::move(dims.error()));
  auto scalars = Split(arguments.scalars, "NAME=NUMBER (--scalar)");
  if (!scalars) return std::unexpected(std::move(scalars.error()));
  constexpr const char* kShare = "NAME=OTHER or NAME=OTHER+ELEMENTS (--share)";
  auto shares = Split(arguments.shares, kShare);
  if (!shares) return std::unexpected(std::move(shares.error()));
  Values values{.dims = {}, .shares = {}, .scalars = std::move(*scalars)};
  for (const auto& [name, text] : *shares) {
    const std::size_t plus = std::min(text.find('+'), text.size());
    const auto elements = plus == text.size() ? std::optional<std::uint64_t>(0) : cli::Parse<std::uint64_t>(std::string_view(text).substr(plus + 1));
    if (!elements || plus == 0) return std::unexpected(InvalidInput(fmt::format("{}={} is not {}", name, text, kShare)));
    values.shares[name] = {text.substr(0, plus), *elements};
  }
  for (const auto& [name, text] : *dims) {
    const auto size = cli::Parse<std::int64_t>(text);
    if (!size) return std::unexpected(InvalidInput(fmt::format("{}={} is not {}", name, text, kDim)));
    values.dims[name] = *size;
  }
  return values;
}

void KnownNames::Add(const runtime::LaunchInfo& info) {
  for (const runtime::LaunchSymbol& symbol : info.symbols) dims_.push_back(symbol.name);
  for (const runtime::LaunchParam& param : info.params) {
    if (!param.tensor) scalars_.push_back(param.name);
  }
}

std::expected<void, Error> KnownNames::Check(const Values& values) const {
  for (const auto& [name, size] : values.dims) {
    if (auto known = CheckName(name, dims_, "--dim", "open dimension"); !known) return known;
  }
  for (const auto& [name, text] : values.scalars) {
    if (auto known = CheckName(name, scalars_, "--scalar", "scalar parameter"); !known) return known;
  }
  return {};
}

std::expected<Scalar, Error> ScalarOf(const runtime::LaunchParam& param, const Values& values) {
  const auto at = values.scalars.find(param.name);
  const std::string_view text = at == values.scalars.end() ? std::string_view("1") : at->second;
  const bool real = runtime::IsFloat(param.dtype);
  if (real) {
    if (const auto number = Parse<double>(text)) return *number;
  } else if (const auto number = Parse<std::int64_t>(text)) {
    return *number;
  }
  return std::unexpected(
      InvalidInput(fmt::format("--scalar {}={}: {} takes {}", param.name, text, runtime::Name(param.dtype), real ? "a number" : "an integer")));
}

std::expected<std::vector<std::int64_t>, Error> ShapeOf(const runtime::LaunchInfo& info, const runtime::LaunchParam& param, const Values& values) {
  std::vector<std::optional<std::int64_t>> symbols;
  for (const runtime::LaunchSymbol& symbol : info.symbols) {
    const auto at = values.dims.find(symbol.name);
    symbols.push_back(at == values.dims.end() ? std::nullopt : std::optional(at->second));
  }
  const std::vector<std::optional<std::int64_t>> no_scalars(info.params.size());
  const std::vector<bool> no_scalar(info.params.size(), false);
  std::vector<std::int64_t> shape;
  for (const runtime::HostNodes& nodes : param.shape) {
    const auto expr = runtime::HostExpr::Parse(nodes, info.symbols.size(), no_scalar);
    if (!expr) return std::unexpected(ToError(expr.error()));
    const auto value = expr->Evaluate({symbols, no_scalars});
    if (!value) return std::unexpected(ToError(value.error()));
    if (!*value) {
      return std::unexpected(
          InvalidInput(fmt::format("the shape of {} depends on {}; give each name in it a value, e.g. "
                                   "--dim {}=1024",
                                   param.name, expr->Text(info), info.symbols.front().name)));
    }
    shape.push_back(**value);
  }
  return shape;
}

}  // namespace kiln::cli
