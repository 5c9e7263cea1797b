#include "tests/zoo/generator.h"

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"

namespace shardproof::zoo {
namespace {

struct Alternative {
  std::string_view name;
  std::string_view replacement;
};

// A place of the source, and what may stand there instead.
struct Site {
  std::size_t end = 0;
  std::vector<Alternative> alternatives;
};

// Where `text` stands in `source` from `from` on; an error unless `unique` is false or it stands there once.
std::size_t place_of(std::string_view source, std::string_view text, std::size_t from, std::string_view what,
                     const Fault& fault, std::string_view file, bool unique) {
  const std::size_t at = text.empty() ? std::string_view::npos : source.find(text, from);
  SHARDPROOF_CHECK(at != std::string_view::npos, config_error,
                   "fault '{}': {} does not contain the {}\n  {}\nthe table of faults must follow the source",
                   fault.name, file, what, text);
  SHARDPROOF_CHECK(!unique || source.find(text, at + 1) == std::string_view::npos, config_error,
                   "fault '{}': {} contains more than once the {}\n  {}\ngive more of it, or a context before it",
                   fault.name, file, what, text);
  return at;
}

std::size_t place_of(std::string_view source, const Edit& edit, const Fault& fault) {
  if (edit.after.empty()) return place_of(source, edit.statement, 0, "statement", fault, edit.file, true);
  const std::size_t context = place_of(source, edit.after, 0, "context", fault, edit.file, true);
  return place_of(source, edit.statement, context + edit.after.size(), "statement", fault, edit.file, false);
}

std::string switched(std::string_view original, const std::vector<Alternative>& alternatives) {
  std::string text;
  if (original.ends_with(';')) {
    for (const Alternative& alternative : alternatives)
      text +=
          fmt::format("if (zoo::active(zoo::id(\"{}\"))) {{ {} }} else ", alternative.name, alternative.replacement);
    return fmt::format("{{ {}{{ {} }} }}", text, original);
  }
  for (const Alternative& alternative : alternatives)
    text += fmt::format("zoo::active(zoo::id(\"{}\")) ? ({}) : ", alternative.name, alternative.replacement);
  return fmt::format("({}({}))", text, original);
}

}  // namespace

std::string with_switches(std::string_view file, std::string_view source, std::span<const Fault> faults) {
  std::map<std::size_t, Site> sites;
  for (const Fault& fault : faults) {
    for (const Edit& edit : fault.edits) {
      if (edit.file != file) continue;
      const std::size_t begin = place_of(source, edit, fault);
      Site& site = sites[begin];
      const std::size_t end = begin + edit.statement.size();
      SHARDPROOF_CHECK(site.end == 0 || site.end == end, config_error,
                       "faults '{}' and '{}' replace different texts at one place of {}: both need the same statement\n"
                       "  {}",
                       site.alternatives.front().name, fault.name, file, edit.statement);
      site.end = end;
      site.alternatives.push_back({fault.name, edit.replacement});
    }
  }
  std::string result =
      fmt::format("// Generated from {} with the switches of the zoo.\n#include \"tests/zoo/helpers.h\"\n", file);
  std::size_t done = 0;
  std::string_view before;
  for (const auto& [begin, site] : sites) {
    SHARDPROOF_CHECK(begin >= done, config_error,
                     "faults '{}' and '{}' overlap in {}: both need the same statement\n  {}", before,
                     site.alternatives.front().name, file, source.substr(begin, site.end - begin));
    result += source.substr(done, begin - done);
    result += switched(source.substr(begin, site.end - begin), site.alternatives);
    done = site.end;
    before = site.alternatives.front().name;
  }
  result += source.substr(done);
  return result;
}

void check_files_are_listed(std::span<const Fault> faults, std::span<const std::string_view> files) {
  for (const Fault& fault : faults) {
    for (const Edit& edit : fault.edits) {
      SHARDPROOF_CHECK(std::ranges::find(files, edit.file) != files.end(), config_error,
                       "fault '{}': '{}' is not among the files that are copied; add it to the list in "
                       "tests/zoo/CMakeLists.txt",
                       fault.name, edit.file);
    }
  }
}

}  // namespace shardproof::zoo
