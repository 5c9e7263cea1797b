#include "reports/result_tables.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/file.h"

namespace shardproof {
namespace {

using Align = TextTable::Align;
using Cell = TextTable::Cell;

std::string module_text(const std::string& path) { return path.empty() ? "(root)" : printable(path); }

// Outputs have numbers where arguments have names.
bool is_output(const PlanRow& row) {
  return !row.argument.empty() && row.argument.find_first_not_of("0123456789") == std::string::npos;
}

bool has_several_tiers(const Report& report) {
  return std::ranges::any_of(report.verifications, [&](const VerificationResult& result) {
    return result.tier != report.verifications.front().tier;
  });
}

Cell count_cell(std::int64_t count, std::string text) {
  if (count < 0) return {""};
  return {.text = std::move(text), .number = static_cast<double>(count)};
}

Cell seconds_cell(double seconds) { return {.text = fmt::format("{:.3f}", seconds), .number = seconds}; }

std::vector<Cell> verification_row(const VerificationResult& result, bool shows_tier) {
  const bool has_modules = result.modules && result.modules->worst;
  return {{printable(result.case_name)},
          {result.mode},
          {short_mesh(result.mesh)},
          {has_ring(result) ? result.rotate_method : "-"},
          {result.tokens_per_rank.empty() ? "-" : sizes_text(result.tokens_per_rank)},
          count_cell(result.bytes_sent_per_rank, bytes_text(result.bytes_sent_per_rank)),
          count_cell(result.collectives, std::to_string(result.collectives)),
          {shows_tier ? result.tier : ""},
          {std::string(verdict_word(result.verdict)), tone_of(result.verdict)},
          {.text = figure_text(result), .number = result.figure},
          {worst_text(result)},
          has_modules ? Cell{.text = fmt::format("{:.3g}", result.modules->worst->ratio),
                             .number = result.modules->worst->ratio}
                      : Cell{""},
          seconds_cell(result.seconds)};
}

// Of what was not run there is no number of anything.
std::vector<Cell> refused_row(const VerificationResult& result, bool shows_tier) {
  std::vector<Cell> row = verification_row(result, shows_tier);
  for (std::size_t column : {4, 5, 6, 7, 9, 10, 11, 12}) row[column] = {""};
  return row;
}

}  // namespace

Tone tone_of(Verdict verdict) {
  if (is_verified(verdict)) return Tone::good;
  return verdict == Verdict::different ? Tone::bad : Tone::faint;
}

bool has_ring(const VerificationResult& result) {
  return result.mode.find("ring") != std::string::npos || result.mode.find("unified") != std::string::npos;
}

std::string short_mesh(std::string_view mesh) {
  std::string text;
  while (!mesh.empty()) {
    const std::string_view item = mesh.substr(0, mesh.find(','));
    mesh.remove_prefix(std::min(mesh.size(), item.size() + 1));
    if (item == "ring=1" || item == "ulysses=1") continue;
    text += (text.empty() ? "" : ",") + std::string(item);
  }
  return text;
}

std::string configuration_text(const VerificationResult& result) {
  const std::string rotate = has_ring(result) ? " " + result.rotate_method : "";
  return fmt::format("{} {}{} {} {}", result.mode, short_mesh(result.mesh), rotate, result.tier, result.dtype);
}

std::string figure_text(const VerificationResult& result) {
  if (!result.figure) return "";
  return result.dtype == "float64" ? fmt::format("{:.2e}", *result.figure) : fmt::format("{:.3g}", *result.figure);
}

std::string worst_text(const VerificationResult& result) {
  if (!result.worst) return "";
  return fmt::format("rank {} [{}]", result.worst->rank, fmt::join(result.worst->index, ","));
}

TextTable verification_table(const Report& report, RefusedRows refused) {
  const bool shows_tier = has_several_tiers(report);
  TextTable rows({{"case"},
                  {"mode"},
                  {"mesh"},
                  {"rotate"},
                  {"tokens/rank"},
                  {"sent/rank", Align::right},
                  {"collectives", Align::right},
                  {"tier"},
                  {"verdict"},
                  {"figure", Align::right},
                  {"worst at"},
                  {"modules", Align::right},
                  {"seconds", Align::right}});
  for (const VerificationResult& result : report.verifications) {
    if (result.verdict != Verdict::refused) {
      rows.add(verification_row(result, shows_tier));
    } else if (refused == RefusedRows::shown) {
      rows.add(refused_row(result, shows_tier));
    }
  }
  return rows;
}

TextTable module_table(const Report& report) {
  constexpr std::ptrdiff_t kMostListed = 12;
  const auto has_modules = [](const VerificationResult& result) { return result.modules && result.modules->worst; };
  TextTable rows({{"case"},
                  {"mode"},
                  {"mesh"},
                  {"rotate"},
                  {"farthest module"},
                  {"ratio", Align::right},
                  {"next"},
                  {"ratio", Align::right}});
  if (std::ranges::count_if(report.verifications, has_modules) > kMostListed) return rows;
  const auto place = [](const std::optional<ModuleRatio>& ratio) {
    return !ratio ? Cell{""} : Cell{fmt::format("{}, {}", module_text(ratio->module), ratio->value)};
  };
  const auto number = [](const std::optional<ModuleRatio>& ratio) {
    return !ratio ? Cell{""} : Cell{.text = fmt::format("{:.3g}", ratio->ratio), .number = ratio->ratio};
  };
  for (const VerificationResult& result : report.verifications) {
    if (!has_modules(result)) continue;
    const ModuleRatios& ratios = *result.modules;
    rows.add({{printable(result.case_name)},
              {result.mode},
              {short_mesh(result.mesh)},
              {has_ring(result) ? result.rotate_method : "-"},
              place(ratios.worst),
              number(ratios.worst),
              place(ratios.runner_up),
              number(ratios.runner_up)});
  }
  return rows;
}

TextTable oracle_table(const Report& report) {
  TextTable rows({{"source"},
                  {"case"},
                  {"comparison"},
                  {"verdict"},
                  {"error", Align::right},
                  {"tolerance", Align::right},
                  {"first module that differs"},
                  {"note"},
                  {"seconds", Align::right}});
  for (const OracleResult& result : report.oracles) {
    const Tone tone = !result.checked ? Tone::faint : result.agrees ? Tone::good : Tone::bad;
    rows.add(
        {{report.sources.size() > 1 ? printable(result.source) : ""},
         {printable(result.case_name)},
         {result.run},
         {std::string(oracle_word(result)), tone},
         result.checked ? Cell{.text = fmt::format("{:.2e}", result.error), .number = result.error} : Cell{"-"},
         result.checked ? Cell{.text = fmt::format("{:.1e}", result.tolerance), .number = result.tolerance} : Cell{"-"},
         {printable(result.first_module)},
         {printable(result.note)},
         seconds_cell(result.seconds)});
  }
  return rows;
}

bool is_end(const PlanRow& row) { return row.action == "refused" || row.action == "failed"; }

TextTable plan_table(const Report& report) {
  TextTable rows({{"case"},
                  {"module"},
                  {"argument"},
                  {"action"},
                  {"axis", Align::right},
                  {"total", Align::right},
                  {"per rank"},
                  {"note"}});
  for (const PlanRow& row : report.plan) {
    if (is_end(row)) continue;
    rows.add({{printable(row.case_name)},
              {module_text(row.module)},
              {(is_output(row) ? "output " : "") + printable(row.argument)},
              {row.action},
              {row.axis ? std::to_string(*row.axis) : "-"},
              {row.total ? std::to_string(*row.total) : "-"},
              {sizes_text(row.per_rank)},
              {printable(row.note)}});
  }
  return rows;
}

std::string sizes_text(const std::vector<std::int64_t>& sizes) {
  constexpr std::size_t kMost = 8;
  constexpr std::size_t kShown = 4;
  if (sizes.size() <= kMost) return fmt::format("{}", fmt::join(sizes, ","));
  return fmt::format("{},.. ({})", fmt::join(sizes.begin(), sizes.begin() + kShown, ","), sizes.size());
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // 1023.95 would be printed as 1024.0.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace shardproof
