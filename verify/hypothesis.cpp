#include "verify/hypothesis.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"

namespace shardproof {
namespace {

constexpr std::size_t kMostNamed = 3;
// A mistake that explains only a part of what is seen must do so in several configurations.
constexpr int kFewestOfAPart = 2;

// Where `prints` differ from those of correct code.
std::map<std::size_t, std::string> shown_in(const Fingerprints& prints, const Fingerprints& correct) {
  std::map<std::size_t, std::string> shown;
  for (std::size_t i = 0; i < prints.size(); ++i) {
    if (prints[i] != correct[i]) shown.emplace(i, prints[i]);
  }
  return shown;
}

constexpr std::string_view kAnyStop = "stopped";

bool fits(const std::string& known, const std::string& seen) {
  return known == seen || (known == kAnyStop && seen.starts_with(kAnyStop));
}

bool is_of_outputs(const std::string& print) { return print.size() == 16; }

// Whether the dense runs are those that the table was made with: else its fingerprints say nothing of this code.
bool has_the_same_dense_runs(const Fingerprints& dense, const Fingerprints& correct) {
  for (std::size_t i = 0; i < dense.size(); ++i) {
    if (is_of_outputs(correct[i]) && dense[i] != correct[i]) return false;
  }
  return true;
}

struct Candidate {
  const KnownMistake* mistake = nullptr;
  int equal = 0;
  bool explains_all = false;
};

// Every mistake whose fingerprints are all found.
std::vector<Candidate> candidates(const FingerprintTable& table, const std::string& model,
                                  const std::map<std::size_t, std::string>& shown) {
  std::vector<Candidate> found;
  for (const KnownMistake& mistake : table.mistakes) {
    const auto prints = mistake.prints.find(model);
    if (prints == mistake.prints.end() || prints->second.empty()) continue;
    Candidate candidate{&mistake, 0, prints->second.size() == shown.size()};
    int of_outputs = 0;
    for (const auto& [configuration, print] : prints->second) {
      const auto seen = shown.find(configuration);
      if (seen == shown.end() || !fits(print, seen->second)) break;
      ++candidate.equal;
      of_outputs += is_of_outputs(print) ? 1 : 0;
    }
    if (candidate.equal != static_cast<int>(prints->second.size())) continue;
    if (candidate.explains_all || of_outputs >= kFewestOfAPart) found.push_back(candidate);
  }
  return found;
}

Json configurations_json() {
  Json list = Json::array();
  for (const FingerprintConfiguration& configuration : fingerprint_configurations()) list.append(configuration.text());
  return list;
}

bool is_print(std::string_view text) {
  if (text == kAnyStop) return true;
  for (const std::string_view kind : {"stopped ", "refused "}) {
    if (text.starts_with(kind)) text.remove_prefix(kind.size());
  }
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

constexpr const char* kPrintForm = "16 hexadecimal digits, alone or behind 'stopped ' or 'refused ', 'stopped'";

const std::string& checked_print(const Json& json) {
  const std::string& print = json.as_string();
  if (!print.empty() && !is_print(print)) json.reject(fmt::format("{} or empty", kPrintForm));
  return print;
}

// "3 0123456789abcdef": of configuration 3.
std::pair<std::size_t, std::string> checked_numbered_print(const Json& json) {
  const std::string& text = json.as_string();
  const std::size_t blank = text.find(' '), most = fingerprint_configurations().size() - 1;
  const std::string digits = text.substr(0, blank);
  const bool has_number = blank != std::string::npos && !digits.empty() && digits.size() <= 3 &&
                          digits.find_first_not_of("0123456789") == std::string::npos && std::stoul(digits) <= most;
  if (!has_number || !is_print(std::string_view(text).substr(blank + 1)))
    json.reject(fmt::format("the number of a configuration, 0 to {}, and {}", most, kPrintForm));
  return {std::stoul(digits), text.substr(blank + 1)};
}

}  // namespace

Json FingerprintTable::to_json() const {
  Json json = Json::object();
  json.set("configurations", configurations_json());
  Json models = Json::object();
  for (const auto& [model, prints] : correct) {
    Json list = Json::array();
    for (const std::string& print : prints) list.append(print);
    models.set(model, std::move(list));
  }
  json.set("correct", std::move(models));
  Json all = Json::array();
  for (const KnownMistake& mistake : mistakes) {
    Json one = Json::object();
    one.set("name", mistake.name);
    one.set("what", mistake.what);
    Json by_model = Json::object();
    for (const auto& [model, prints] : mistake.prints) {
      Json of_model = Json::array();
      for (const auto& [configuration, print] : prints) of_model.append(fmt::format("{} {}", configuration, print));
      by_model.set(model, std::move(of_model));
    }
    one.set("prints", std::move(by_model));
    all.append(std::move(one));
  }
  json.set("mistakes", std::move(all));
  return json;
}

FingerprintTable FingerprintTable::from_json(const Json& json) {
  FingerprintTable table;
  json.check_keys({"configurations", "correct", "mistakes"});
  const Json& configurations = json.at("configurations");
  if (configurations != configurations_json()) configurations.reject("the configurations of this version");
  for (const JsonMember& model : json.at("correct").members()) {
    Fingerprints& prints = table.correct[model.key];
    for (const Json& print : model.value.items()) prints.push_back(checked_print(print));
    if (prints.size() != configurations.size())
      model.value.reject(fmt::format("a list of {} fingerprints", configurations.size()));
  }
  for (const Json& one : json.at("mistakes").items()) {
    one.check_keys({"name", "what", "prints"});
    KnownMistake mistake{one.at("name").as_string(), one.at("what").as_string()};
    for (const JsonMember& model : one.at("prints").members()) {
      for (const Json& print : model.value.items()) mistake.prints[model.key].insert(checked_numbered_print(print));
    }
    table.mistakes.push_back(std::move(mistake));
  }
  return table;
}

FingerprintTable FingerprintTable::read(const std::filesystem::path& path) { return from_json(read_json_file(path)); }

Explanation explain(const FingerprintTable& table, const std::string& model, const Fingerprints& prints,
                    const Fingerprints& dense) {
  const auto correct = table.correct.find(model);
  if (correct == table.correct.end()) return {.obstacle = fmt::format("it has no fingerprints of {}", model)};
  if (!has_the_same_dense_runs(dense, correct->second))
    return {.obstacle = fmt::format("it was made from code whose {} computes something else on one rank", model)};
  const std::map<std::size_t, std::string> shown = shown_in(prints, correct->second);
  if (shown.empty()) return {};
  std::vector<Candidate> found = candidates(table, model, shown);
  if (found.empty()) return {};
  const bool has_whole = std::ranges::any_of(found, &Candidate::explains_all);
  if (has_whole) std::erase_if(found, [](const Candidate& candidate) { return !candidate.explains_all; });
  std::ranges::stable_sort(found, std::ranges::greater{}, &Candidate::equal);
  // What explains less than another one is no match beside it.
  std::erase_if(found, [most = found.front().equal](const Candidate& candidate) { return candidate.equal < most; });
  Hypothesis hypothesis{.model = model,
                        .equal = found.front().equal,
                        .shown = static_cast<int>(shown.size()),
                        .configurations = static_cast<int>(prints.size())};
  for (std::size_t i = 0; i < std::min(kMostNamed, found.size()); ++i)
    hypothesis.mistakes.push_back({found[i].mistake->name, found[i].mistake->what});
  hypothesis.others = static_cast<int>(found.size() - hypothesis.mistakes.size());
  return {.hypothesis = std::move(hypothesis)};
}

Explanation explain(const FingerprintTable& table, const ModelType& model, const Fingerprinter::Plans& plans) {
  if (!table.correct.contains(model.class_name)) return explain(table, model.class_name, {}, {});
  Fingerprinter fingerprinter(model);
  Fingerprints prints, dense;
  for (std::size_t i = 0; i < fingerprint_configurations().size(); ++i) {
    prints.push_back(fingerprinter.take(i, plans).print);
    dense.push_back(fingerprinter.dense(i));
  }
  return explain(table, model.class_name, prints, dense);
}

}  // namespace shardproof
