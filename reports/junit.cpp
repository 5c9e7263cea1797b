#include "reports/junit.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reports/groups.h"
#include "reports/markup.h"
#include "reports/result_tables.h"
#include "reports/result_words.h"

namespace shardproof {
namespace {

// The element of what is no pass; its name is the outcome's.
std::string_view element_of(JunitOutcome outcome) {
  switch (outcome) {
    case JunitOutcome::passed: return "";
    case JunitOutcome::failure: return "failure";
    case JunitOutcome::error: return "error";
    case JunitOutcome::skipped: return "skipped";
  }
  return "";
}

std::string counts_text(const std::vector<const JunitTest*>& tests) {
  double seconds = 0.0;
  for (const JunitTest* test : tests) seconds += test->seconds;
  const auto count = [&](JunitOutcome outcome) {
    return std::ranges::count_if(tests, [&](const JunitTest* test) { return test->outcome == outcome; });
  };
  return fmt::format(R"(tests="{}" failures="{}" errors="{}" skipped="{}" time="{:.3f}")", tests.size(),
                     count(JunitOutcome::failure), count(JunitOutcome::error), count(JunitOutcome::skipped), seconds);
}

std::string test_text(const JunitTest& test) {
  std::string text = fmt::format("    <testcase name=\"{}\" classname=\"{}\" time=\"{:.3f}\"",
                                 markup_attribute(test.name), markup_attribute(test.class_name), test.seconds);
  std::string inside;
  if (test.outcome != JunitOutcome::passed) {
    const std::string_view element = element_of(test.outcome);
    // Some readers know no type and no text of what was skipped.
    const std::string type = test.outcome == JunitOutcome::skipped
                                 ? std::string()
                                 : fmt::format(" type=\"{}\"", markup_attribute(test.type));
    inside += fmt::format("      <{}{} message=\"{}\"", element, type, markup_attribute(test.message));
    inside += test.details.empty() ? "/>\n" : fmt::format(">{}</{}>\n", markup_text(test.details), element);
  }
  if (!test.output.empty()) inside += fmt::format("      <system-out>{}</system-out>\n", markup_text(test.output));
  return text + (inside.empty() ? "/>\n" : ">\n" + inside + "    </testcase>\n");
}

std::string suite_text(const JunitSuite& suite) {
  std::vector<const JunitTest*> tests;
  for (const JunitTest& test : suite.tests) tests.push_back(&test);
  std::string text = fmt::format("  <testsuite name=\"{}\" {}>\n", markup_attribute(suite.name), counts_text(tests));
  if (!suite.properties.empty()) text += "    <properties>\n";
  for (const auto& [name, value] : suite.properties) {
    text +=
        fmt::format("      <property name=\"{}\" value=\"{}\"/>\n", markup_attribute(name), markup_attribute(value));
  }
  if (!suite.properties.empty()) text += "    </properties>\n";
  for (const JunitTest* test : tests) text += test_text(*test);
  return text + "  </testsuite>\n";
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// All that is known of a difference, as the terminal shows it.
std::string details_of(const VerificationResult& result, const Report& report) {
  std::string text = result.reason;
  for (const std::string& line : result.diagnosis) text += "\n" + line;
  if (report.hypothesis) text += "\nhypothesis: " + hypothesis_text(*report.hypothesis);
  if (!result.repeat.empty()) text += "\nrepeat it: " + result.repeat;
  return text;
}

std::string shrunk_text(const ShrunkResult& shrunk) {
  if (shrunk.configuration.empty())
    return fmt::format("\nno smaller configuration fails alike ({})", effort_words(shrunk));
  return fmt::format("\nsmallest configuration that fails ({}): {}\nrepeat it: {}\na test that fails on it:\n{}",
                     effort_words(shrunk), shrunk.configuration, shrunk.result.repeat, shrunk.test);
}

std::string output_of(const VerificationResult& result) {
  std::string text(verdict_word(result.verdict));
  const std::string figure = figure_text(result), worst = worst_text(result);
  if (!figure.empty()) text += "; figure " + figure;
  if (!worst.empty()) text += "; worst at " + worst;
  if (result.modules && result.modules->worst)
    text += "; farthest module: " + module_ratio_text(*result.modules->worst);
  if (!result.also_passed.empty()) text += "; passed in " + result.also_passed + ", too";
  for (const SkippedNote& note : result.skipped_entries)
    text += fmt::format("\n{} was left whole: {}", entry_text(note.argument, note.module), note.reason);
  for (const std::string& what : result.not_checked) text += "\nNOT CHECKED: " + what;
  return text;
}

JunitTest test_of(const VerificationResult& result, const Report& report) {
  JunitTest test{.name = configuration_text(result),
                 .class_name = report.model + "." + result.case_name,
                 .type = std::string(verdict_word(result.verdict)),
                 .seconds = result.seconds};
  if (is_verified(result.verdict)) {
    test.output = output_of(result);
    return test;
  }
  test.message = first_line(result.reason);
  switch (result.verdict) {
    case Verdict::different:
      test.outcome = result.stopped ? JunitOutcome::error : JunitOutcome::failure;
      test.details = details_of(result, report);
      test.output = output_of(result);
      break;
    case Verdict::refused:
      if (report.is_named || result.plan_does_not_fit) {
        test.outcome = JunitOutcome::error;
        test.details = result.reason;
      } else {
        test.outcome = JunitOutcome::skipped;
      }
      break;
    default: test.outcome = JunitOutcome::skipped;
  }
  if (test.outcome == JunitOutcome::skipped) test.message = fmt::format("{}: {}", test.type, result.reason);
  return test;
}

JunitTest test_of(const OracleResult& result, const Report& report) {
  JunitTest test{.name = result.run,
                 .class_name = result.model + "." + result.case_name,
                 .type = std::string(oracle_word(result)),
                 .seconds = result.seconds};
  // Exports of one model may have cases of one name.
  if (report.sources.size() > 1) test.name += " of " + result.source;
  const std::string figures = fmt::format("error {:.2e}, allowed {:.1e}", result.error, result.tolerance);
  const std::string note = result.note.empty() ? "" : "; " + result.note;
  if (!result.checked) {
    test.outcome = JunitOutcome::skipped;
    test.message = fmt::format("{}: {}", test.type, result.note);
    return test;
  }
  test.output = fmt::format("{}; {}{}", test.type, figures, note);
  if (!result.without_counterpart.empty())
    test.output += fmt::format("\nNOT CHECKED, since our model does not have them: {}",
                               fmt::join(result.without_counterpart, ", "));
  if (result.agrees) return test;
  test.outcome = JunitOutcome::failure;
  test.message = figures;
  if (!result.first_module.empty()) test.message += "; first module that differs: " + result.first_module;
  test.details = test.message + note;
  return test;
}

// What all suites of a report share.
std::vector<std::pair<std::string, std::string>> properties_of(const Report& report) {
  std::vector<std::pair<std::string, std::string>> properties{
      {"version", report.version}, {"command", report.command}, {"model", report.model}};
  const auto add = [&](const char* name, const std::string& value) {
    const std::pair<std::string, std::string> property(name, value);
    if (!value.empty() && std::ranges::find(properties, property) == properties.end()) properties.push_back(property);
  };
  for (const std::string& source : report.sources) add("source", source);
  add("plan", report.plan_name);
  for (const VerificationResult& result : report.verifications) {
    add("seed", std::to_string(result.seed));
    add("schedule_seed", std::to_string(result.schedule_seed));
    add("device", result.device);
    if (!result.convert_to_fp32) add("convert_to_fp32", "false");
  }
  if (report.allowed) add("allowed_figure", fmt::format("{:g}", *report.allowed));
  for (const std::string& note : report.notes) add("note", note);
  for (const std::string& what : report.not_checked) add("not_checked", what);
  return properties;
}

bool fails(const JunitTest& test) {
  return test.outcome == JunitOutcome::failure || test.outcome == JunitOutcome::error;
}

}  // namespace

std::string junit_text(std::string_view name, const std::vector<JunitSuite>& suites) {
  std::vector<const JunitTest*> all;
  for (const JunitSuite& suite : suites) {
    for (const JunitTest& test : suite.tests) all.push_back(&test);
  }
  std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  text += fmt::format("<testsuites name=\"{}\" {}>\n", markup_attribute(name), counts_text(all));
  for (const JunitSuite& suite : suites) text += suite_text(suite);
  return text + "</testsuites>\n";
}

void add_problems(std::vector<JunitSuite>& suites, const std::string& class_name,
                  const std::vector<std::string>& problems) {
  const auto has_failed = [](const JunitSuite& suite) { return std::ranges::any_of(suite.tests, fails); };
  if (problems.empty() || std::ranges::any_of(suites, has_failed)) return;
  suites.push_back({.name = "request",
                    .tests = {{.name = "request",
                               .class_name = class_name,
                               .outcome = JunitOutcome::error,
                               .type = "request",
                               .message = first_line(problems.front()),
                               .details = fmt::format("{}", fmt::join(problems, "\n"))}}});
}

std::string junit_report(const Report& report, const std::vector<std::string>& problems) {
  Groups<std::string, std::vector<JunitTest>> tests;
  const bool has_several_sources = report.sources.size() > 1;
  for (const VerificationResult& result : report.verifications)
    tests[report.model + "." + result.case_name].push_back(test_of(result, report));
  for (const OracleResult& result : report.oracles) {
    const std::string of_source = has_several_sources ? " of " + result.source : "";
    tests[result.model + "." + result.case_name + of_source].push_back(test_of(result, report));
  }
  std::vector<JunitSuite> suites;
  for (const auto& [name, of_suite] : tests) suites.push_back({name, properties_of(report), of_suite});
  if (report.shrunk) {
    // It is the smallest one like the first difference.
    for (JunitSuite& suite : suites) {
      const auto first = std::ranges::find_if(suite.tests, fails);
      if (first == suite.tests.end()) continue;
      first->details += shrunk_text(*report.shrunk);
      break;
    }
  }
  add_problems(suites, report.model, problems);
  return junit_text("shardproof " + report.command, suites);
}

}  // namespace shardproof
