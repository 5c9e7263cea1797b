// A report as JUnit XML, the form in which servers of continuous integration read the results of tests: a suite for
// each case of the model, in it a test for each verification or comparison. What was refused or not checked is skipped,
// with its reason, and never passes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reports/result.h"

namespace shardproof {

// error: it ended in a report instead of a result, or could not be asked for.
enum class JunitOutcome : std::uint8_t { passed, failure, error, skipped };

struct JunitTest {
  std::string name;
  std::string class_name;
  JunitOutcome outcome = JunitOutcome::passed;
  std::string type = {};     // of what is no pass, in a word
  std::string message = {};  // the same, in a line
  std::string details = {};  // all of it
  std::string output = {};   // what else there is to say
  double seconds = 0.0;
};

struct JunitSuite {
  std::string name;
  std::vector<std::pair<std::string, std::string>> properties = {};  // a name may stand more than once
  std::vector<JunitTest> tests = {};
};

// The document, whatever the texts hold. Attributes of a suite count its tests by outcome.
std::string junit_text(std::string_view name, const std::vector<JunitSuite>& suites);

// Of verify, oracle and run. `problems` are why the program's status is 2: if no test fails for them, one more does.
std::string junit_report(const Report& report, const std::vector<std::string>& problems);
// That one: it makes a suite of its own if nothing fails in `suites`.
void add_problems(std::vector<JunitSuite>& suites, const std::string& class_name,
                  const std::vector<std::string>& problems);

}  // namespace shardproof
