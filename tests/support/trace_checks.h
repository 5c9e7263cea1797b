// What tests of several kinds of ranks look for in a trace file: that a ring hides its exchanges.
// The order of the marks says it on any machine, however fast it is.
#pragma once

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "reports/chrome_trace.h"

namespace shardproof::test {

inline RunTrace trace_in(const std::filesystem::path& file) {
  const Json json = read_trace_json(file);
  EXPECT_TRUE(is_trace_json(json)) << file;
  return trace_from_json(json);
}

// A ring that rotates hides its exchange behind its computation: every exchange is posted before the attention of the
// chunk at hand begins and waited for after that has ended. Returns the number of exchanges, each of them looked at.
inline int expect_exchanges_are_hidden(const RunTrace& trace) {
  int exchanges = 0;
  for (const RankTrace& rank : trace.ranks) {
    for (std::size_t i = 0; i < rank.events.size(); ++i) {
      const TraceEvent& exchange = rank.events[i];
      if (!exchange.is(EventKind::communication) || rank.text(exchange.operation) != "exchange") continue;
      ++exchanges;
      const std::string what = identifier(rank, exchange) + " on rank " + std::to_string(rank.rank);
      std::size_t next = i + 1;
      while (next < rank.events.size() && rank.text(rank.events[next].operation) != "attention") ++next;
      if (next == rank.events.size()) {
        ADD_FAILURE() << "no attention follows " << what;
        continue;
      }
      EXPECT_LE(exchange.post_end_ns, rank.events[next].begin_ns) << what;
      EXPECT_GE(exchange.wait_begin_ns, rank.events[next].end_ns) << what;
    }
  }
  return exchanges;
}

}  // namespace shardproof::test
