// Small reports that the tests of all printers share. They are made by hand, so that every number in a golden text is
// known.
#pragma once

#include <limits>

#include "reports/result.h"

namespace shardproof::test {

inline VerificationResult verified_result() {
  VerificationResult result;
  result.case_name = "base";
  result.mode = "ring";
  result.mesh = "ring=2,ulysses=1";
  result.dtype = "float64";
  result.device = "reference";
  result.tier = "rounding";
  result.rotate_method = "allgather";
  result.convert_to_fp32 = true;
  result.seed = 7;
  result.schedule_seed = 8;
  result.tokens_per_rank = {9, 8};
  result.verdict = Verdict::rounding_equivalent;
  result.figure = 6.8125e-16;
  result.max_abs = 2.5e-15;
  result.worst = WorstElement{1, {0, 12, 3}};
  result.bytes_sent_per_rank = 49408;
  result.collectives = 5;
  result.seconds = 0.0123;
  return result;
}

inline ModuleRatios module_ratios() {
  return {.worst = ModuleRatio{.module = "blocks.0.attn",
                               .class_name = "Attention",
                               .call = 1,
                               .value = "output 0",
                               .ratio = 1.75,
                               .rank = 1,
                               .index = {0, 4, 3}},
          .runner_up = ModuleRatio{.module = "",
                                   .class_name = "Model",
                                   .call = 0,
                                   .value = "argument 'temb'",
                                   .ratio = 1.5,
                                   .rank = 0,
                                   .index = {2}},
          .modules = 12,
          .compared = 30,
          .not_comparable = 1};
}

inline Hypothesis hypothesis() {
  return {.model = "FluxTransformer2DModel",
          .mistakes = {{"CHUNK_LOST", "a chunk is lost"}, {"CHUNK_TWICE", "one is twice"}},
          .equal = 3,
          .shown = 4,
          .configurations = 14};
}

inline VerificationResult refused_result(const char* case_name, const char* mode, const char* mesh,
                                         const char* rotate_method) {
  VerificationResult result;
  result.case_name = case_name;
  result.mode = mode;
  result.mesh = mesh;
  result.dtype = "float64";
  result.device = "reference";
  result.tier = "rounding";
  result.rotate_method = rotate_method;
  result.verdict = Verdict::refused;
  result.reason = "axis 1 has 16 entries, which 3 ranks cannot divide equally";
  return result;
}

inline Report report_of(const char* command) {
  Report report;
  report.command = command;
  report.version = "1.2.3";
  report.features = {"device:cpu", "tier:rounding"};
  report.model = "FluxTransformer2DModel";
  report.sources = {"exports/tiny"};
  return report;
}

inline Report verify_report() {
  Report report = report_of("verify");
  report.plan_name = "default";
  report.allowed = 1e-11;
  report.verifications = {verified_result(), refused_result("base", "ulysses", "ring=1,ulysses=3", "allgather"),
                          refused_result("base", "ring", "ring=3,ulysses=1", "allgather"),
                          refused_result("base", "ring", "ring=3,ulysses=1", "alltoall"),
                          refused_result("big", "ring", "ring=3,ulysses=1", "alltoall")};
  report.verifications.front().skipped_entries = {{"", "timestep", "1 dimension, plan expects 2"}};
  report.notes = {"weights and inputs are drawn, from seed 7"};
  report.not_checked = {"EXACT: exact arithmetic (--tier exact or all)"};
  return report;
}

inline OracleResult agreeing_result() {
  OracleResult result;
  result.source = "exports/tiny";
  result.model = "FluxTransformer2DModel";
  result.case_name = "base";
  result.run = "float32 against fp32";
  result.checked = true;
  result.agrees = true;
  result.error = 2.5e-6;
  result.tolerance = 2e-5;
  result.seconds = 0.25;
  return result;
}

inline Report oracle_report() {
  Report report = report_of("oracle");
  OracleResult trace = agreeing_result();
  trace.run = "float64 along the trace";
  trace.agrees = false;
  trace.error = 0.5;
  trace.first_module = "0012:proj_out#0";
  trace.note = "8 of 9 entries compared";
  trace.without_counterpart = {"0003:pos_embed#1"};
  OracleResult missing = agreeing_result();
  missing.run = "float64 against exact";
  missing.checked = missing.agrees = false;
  missing.error = missing.tolerance = 0.0;
  missing.note = "the export has no exact.sample";
  report.oracles = {agreeing_result(), trace, missing};
  return report;
}

inline PlanRow split_row() {
  PlanRow row;
  row.case_name = "base";
  row.mode = "ring_anything";
  row.mesh = "ring=2,ulysses=1";
  row.argument = "hidden_states";
  row.action = "split";
  row.axis = 1;
  row.total = 17;
  row.per_rank = {9, 8};
  return row;
}

inline Report plan_report() {
  Report report = report_of("plan");
  report.plan_name = "default";
  PlanRow gather = split_row();
  gather.module = "proj_out";
  gather.argument = "0";
  gather.action = "gather";
  PlanRow skipped = split_row();
  skipped.argument = "timestep";
  skipped.action = "skipped";
  skipped.axis = std::nullopt;
  skipped.total = std::nullopt;
  skipped.per_rank.clear();
  skipped.note = "1 dimension, plan expects 2";
  report.plan = {split_row(), gather, skipped};
  return report;
}

}  // namespace shardproof::test
