// The sentences of a diagnosis, apart from how it is found: what is wrong first, on which ranks, in which pattern, and
// where ranks ended.
#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "verify/diagnosis.h"

namespace shardproof {

std::string places_text(const std::vector<bool>& wrong) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    if (wrong[i]) places.push_back(i);
  }
  const std::size_t size = wrong.size();
  if (places.size() == size) return fmt::format("all {}", size);
  if (places.empty()) return fmt::format("none of {}", size);
  if (places.size() == 1) {
    return fmt::format("{} of {}{}", places[0], size,
                       places[0] + 1 == size ? " (the last)"
                       : places[0] == 0      ? " (the first)"
                                             : "");
  }
  const std::size_t step = places[1] - places[0];
  bool is_regular = true;
  for (std::size_t i = 1; i < places.size(); ++i) is_regular = is_regular && places[i] - places[i - 1] == step;
  if (is_regular && step == 1) {
    const char* what = places.back() + 1 == size ? " (the tail)" : places.front() == 0 ? " (the beginning)" : "";
    return fmt::format("{} to {} of {}{}", places.front(), places.back(), size, what);
  }
  constexpr std::size_t kShown = 8;
  std::vector<std::size_t> shown(places.begin(),
                                 places.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, places.size())));
  const std::string list = fmt::format("{}{}", fmt::join(shown, ", "), places.size() > kShown ? ", .." : "");
  if (is_regular && places.size() > 2) return fmt::format("{} of {} (one in {})", list, size, step);
  return fmt::format("{} of {}", list, size);
}

namespace {

std::string module_text(const std::string& path, const std::string& class_name) {
  if (path.empty() && class_name.empty()) return "the whole model";
  return fmt::format("{} ({})", path.empty() ? "the whole model" : fmt::format("module '{}'", path), class_name);
}

template <class Rank>
std::string ranks_text(const std::vector<Rank>& ranks) {
  std::vector<int> numbers;
  for (const Rank& each : ranks) numbers.push_back(each.rank);
  return fmt::format("{} {}", numbers.size() == 1 ? "rank" : "ranks", fmt::join(numbers, ", "));
}

std::string place_text(const Diagnosis& found) {
  const bool is_argument = found.point == Point::argument || found.point == Point::division;
  const std::string what = is_argument          ? fmt::format("argument '{}'", found.value)
                           : found.value == "0" ? std::string("output")
                                                : fmt::format("output {}", found.value);
  const std::string caller = module_text(found.origin.module, found.origin.class_name);
  const std::string how = found.point == Point::argument   ? fmt::format(", as {} gives it", caller)
                          : found.point == Point::division ? ", as the plan divides it"
                          : found.point == Point::gather   ? ", as the plan gathers it"
                                                           : "";
  return fmt::format("first wrong: {} of {}, call {}{}, on {}; {} outputs before it are right", what,
                     module_text(found.module, found.class_name), found.call + 1, how, ranks_text(found.ranks),
                     found.compared);
}

// One sentence for all ranks that ended at the same place.
void append_ends(const std::vector<EndedRank>& ended, std::vector<std::string>& lines) {
  std::map<std::string, std::vector<EndedRank>> by_place;
  for (const EndedRank& each : ended) {
    const char* what = each.point == Point::division ? "before the forward of"
                       : each.point == Point::gather ? "behind the forward of"
                                                     : "inside";
    by_place[fmt::format("{} {}", what, module_text(each.origin.module, each.origin.class_name))].push_back(each);
  }
  for (const auto& [place, ranks] : by_place) lines.push_back(fmt::format("{} ended {}", ranks_text(ranks), place));
}

}  // namespace

std::optional<Locus> Diagnosis::locus() const {
  if (!found) return std::nullopt;
  const char* const points[] = {"argument", "division", "output", "gather"};
  return Locus{.module = module,
               .class_name = class_name,
               .call = call,
               .point = points[static_cast<std::size_t>(point)],
               .value = value,
               .origin = origin.module,
               .compared = compared,
               .ranks = ranks};
}

std::vector<std::string> Diagnosis::lines() const {
  if (!not_diagnosed.empty()) return {"not diagnosed: " + not_diagnosed};
  std::vector<std::string> result;
  if (found) {
    result.push_back(place_text(*this));
  } else {
    result.push_back(fmt::format(
        "no module output differs where it can be compared ({} compared, {} of a shape that no layout explains)",
        compared, not_comparable));
  }
  constexpr std::size_t kShown = 4;
  for (std::size_t i = 0; i < std::min(kShown, ranks.size()); ++i) {
    const WrongRank& each = ranks[i];
    result.push_back(fmt::format("rank {}, which should have {}: {}; at [{}] it has {}, the dense run {}", each.rank,
                                 each.layout, each.extent, fmt::join(each.index, ", "), each.actual, each.expected));
  }
  for (const WrongRank& each : ranks) {
    if (each.looks_like.empty()) continue;
    result.push_back(fmt::format("rank {} looks like {}", each.rank, each.looks_like));
    break;
  }
  append_ends(ended, result);
  for (const Suspect& suspect : suspects) result.push_back(suspect.text);
  return result;
}

}  // namespace shardproof
