// Traces that tests make by hand: two ranks, one step, an exchange that is posted before a computation and waited for
// after it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "reports/trace.h"

namespace shardproof::test {

// Times in microseconds.
inline TraceEvent sample_event(EventKind kind, std::int64_t operation, std::int64_t begin_us, std::int64_t end_us) {
  TraceEvent event;
  event.kind = static_cast<std::int64_t>(kind);
  event.operation = operation;
  event.begin_ns = begin_us * 1000;
  event.end_ns = end_us * 1000;
  return event;
}

inline RankTrace sample_rank(int rank) {
  RankTrace trace;
  trace.rank = rank;
  trace.clock = {.offset_ns = 40 * rank, .residual_ns = 7 * rank};
  trace.texts = {"step", "Attention", "blocks.0.attn", "exchange", "ring: keys", "float64", "[2, 4]", "attention"};
  trace.groups = {{.key = "world/ring#1", .members = {0, 1}}};
  TraceEvent step = sample_event(EventKind::step, 0, 0, 100);
  TraceEvent module = sample_event(EventKind::module, 1, 5, 90);
  module.module = 2;
  module.module_call = 1;
  TraceEvent exchange = sample_event(EventKind::communication, 3, 10, 80);
  exchange.module = 2;
  exchange.module_call = 1;
  exchange.group = 0;
  exchange.call = 1;
  exchange.group_call = 4;
  exchange.purpose = 4;
  exchange.dtype = 5;
  exchange.shape = 6;
  exchange.send_rows = exchange.receive_rows = 3;
  exchange.send_bytes = exchange.receive_bytes = 192;
  exchange.to = exchange.from = 1 - rank;
  exchange.post_end_ns = 12'000;
  exchange.wait_begin_ns = 60'000;
  TraceEvent computation = sample_event(EventKind::computation, 7, 20, 55);
  computation.module = 2;
  computation.module_call = 1;
  computation.ordinal = 1;
  computation.dtype = 5;
  computation.shape = 6;
  computation.bytes = 700;
  trace.events = {step, module, exchange, computation};
  return trace;
}

inline RunTrace sample_trace() {
  return {.about = {{"model", "FluxTransformer2DModel"}, {"case", "base"}}, .ranks = {sample_rank(0), sample_rank(1)}};
}

// The text of the flight record of a rank of two that has made `calls` barriers in the group "world/ring#1".
inline std::string flight_record_text(int rank, int calls, const std::string& last_purpose = "rows") {
  std::string operations;
  for (int call = 1; call <= calls; ++call) {
    operations += std::string(call > 1 ? "," : "") + R"({"sequence":)" + std::to_string(call) +
                  R"(,"group":"world/ring#1","call":)" + std::to_string(call) + R"(,"number":)" + std::to_string(call) +
                  R"(,"operation":"barrier","purpose":")" + (call == calls ? last_purpose : "rows") +
                  R"(","dtype":"bool","row_shape":"[]","is_sum":false,"rows_sent":0,"rows_received":0,)"
                  R"("send_rows":[],"receive_rows":[],"send_bytes":0,"receive_bytes":0,"to":-1,"from":-1,"root":-1,)"
                  R"("state":")" +
                  (call == calls ? "failed" : "complete") + R"(","posted_us":1,"started_us":1,"ended_us":1})";
  }
  return R"({"format":"shardproof flight record","version":1,"rank":)" + std::to_string(rank) +
         R"(,"world_size":2,"reason":"too late","late":[],"groups":[{"group":"world/ring#1","members":[0,1],"calls":)" +
         std::to_string(calls) + R"(}],"operations":[)" + operations + "]}";
}

}  // namespace shardproof::test
