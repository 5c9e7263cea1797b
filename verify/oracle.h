// Our dense model against what a real model returned: all-double arithmetic against "exact" outputs, float32 with
// float32 tables against "fp32", float64 with float32 tables against "fp64" and along the recorded trace.
#pragma once

#include <string>
#include <vector>

#include "reports/result.h"
#include "verify/subject.h"

namespace shardproof {

// Tolerances, absolute. All double: relative to the largest expected magnitude.
inline constexpr double kExactTolerance = 1e-12;
// Float32 tables of small angles; of large ones (a timestep that becomes hundreds of radians) ten times that.
inline constexpr double kTableTolerance = 2e-5;
inline constexpr double kLargeAngleTableTolerance = 2e-4;

// Every comparison that the export holds data for; what it does not hold is a result that was not checked.
// usage_error unless the subject comes from an export directory. The float64 runs are those of the reference device,
// the float32 run that of the CPU device, or all are those of `device`, which must outlive the subject.
std::vector<OracleResult> run_oracle(Subject& subject, const std::string& case_name, Device* device = nullptr);

}  // namespace shardproof
