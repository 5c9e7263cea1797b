// A report as one page of HTML, to be opened in a browser or sent to somebody: the verdict first, then differences with
// all that is known of them, every result, what was refused and why, what was not checked, and what it was run with.
#pragma once

#include <string>
#include <vector>

#include "reports/result.h"

namespace shardproof {

// The same report gives the same page. `problems` are why the program's status is 2.
std::string html_report(const Report& report, const std::vector<std::string>& problems);

}  // namespace shardproof
