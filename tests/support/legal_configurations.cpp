#include "tests/support/legal_configurations.h"

#include <algorithm>
#include <array>

namespace shardproof::test {
namespace {

using Configuration = AttentionConfiguration;

int ranks(const Configuration& c) { return c.ring * c.ulysses; }
bool anything(const Configuration& c) { return c.ulysses_anything || c.ring_anything; }
bool divides(std::int64_t parts, std::int64_t n) { return n / parts * parts == n; }

template <class Predicate>
bool any_apart(const Configuration& c, Predicate predicate) {
  return std::any_of(c.apart.begin(), c.apart.end(), predicate);
}

// 5.3: heads stand in blocks of equal size from the left, the last one padded; every rank must have a head of its own.
bool some_rank_has_no_head(const Configuration& c) {
  const std::int64_t block = (c.heads + c.ulysses - 1) / c.ulysses;
  return c.heads <= block * (c.ulysses - 1);
}

constexpr std::array kRules{
    LegalityRule{"one rank", "2.1 rule 2", ErrorKind::config_error,
                 "either ring_degree or ulysses_degree must be greater than 1",
                 [](const Configuration& c) { return c.ring == 1 && c.ulysses == 1; }},
    LegalityRule{"Ulysses Anything without Ulysses", "2.1 rule 5", ErrorKind::config_error,
                 "ulysses_anything needs ulysses_degree greater than 1",
                 [](const Configuration& c) { return c.ulysses_anything && c.ulysses == 1; }},
    LegalityRule{"Ulysses Anything with a ring", "2.1 rule 5", ErrorKind::config_error,
                 "ulysses_anything needs ring_degree 1",
                 [](const Configuration& c) { return c.ulysses_anything && c.ring > 1; }},
    LegalityRule{"Ring Anything without a ring", "2.1 rule 6", ErrorKind::config_error,
                 "ring_anything needs ring_degree greater than 1",
                 [](const Configuration& c) { return c.ring_anything && c.ring == 1; }},
    LegalityRule{"Ring Anything with Ulysses", "2.1 rule 6", ErrorKind::config_error,
                 "ring_anything needs ulysses_degree 1",
                 [](const Configuration& c) { return c.ring_anything && c.ulysses > 1; }},
    LegalityRule{"text divides equally", "4.7", ErrorKind::shape_error, "stream 0: axis 1 has",
                 [](const Configuration& c) { return !anything(c) && !divides(ranks(c), c.text); }},
    LegalityRule{"image divides equally", "4.7", ErrorKind::shape_error, "stream 1: axis 1 has",
                 [](const Configuration& c) { return !anything(c) && !divides(ranks(c), c.image); }},
    LegalityRule{"text reaches every rank", "4.7", ErrorKind::shape_error, "stream 0: axis 1 has",
                 [](const Configuration& c) { return anything(c) && c.text > 0 && c.text < ranks(c); }},
    LegalityRule{"image reaches every rank", "4.7", ErrorKind::shape_error, "stream 1: axis 1 has",
                 [](const Configuration& c) { return anything(c) && c.image < ranks(c); }},
    LegalityRule{"a stream apart divides equally", "4.7", ErrorKind::shape_error, "stream apart: axis 1 has",
                 [](const Configuration& c) {
                   return !anything(c) && any_apart(c, [&](std::int64_t n) { return !divides(ranks(c), n); });
                 }},
    LegalityRule{"a stream apart reaches every rank", "4.7", ErrorKind::shape_error, "stream apart: axis 1 has",
                 [](const Configuration& c) {
                   return anything(c) && any_apart(c, [&](std::int64_t n) { return n < ranks(c); });
                 }},
    LegalityRule{"heads divide equally", "5.2", ErrorKind::shape_error, "cannot be divided among ulysses_degree",
                 [](const Configuration& c) { return !c.ulysses_anything && !divides(c.ulysses, c.heads); }},
    LegalityRule{"every rank has a head", "5.3", ErrorKind::shape_error, "head padding number",
                 [](const Configuration& c) { return c.ulysses_anything && some_rank_has_no_head(c); }},
    LegalityRule{"query rows need the global key axis", "5.7", ErrorKind::unsupported_error,
                 "needs the global key axis", [](const Configuration& c) { return c.mask == MaskKind::local_rows; }},
};

}  // namespace

std::span<const LegalityRule> legality_rules() { return kRules; }

std::vector<const LegalityRule*> broken_rules(const AttentionConfiguration& configuration) {
  std::vector<const LegalityRule*> broken;
  for (const LegalityRule& rule : kRules) {
    if (rule.violated(configuration)) broken.push_back(&rule);
  }
  return broken;
}

}  // namespace shardproof::test
