#include "verify/reproduction.h"

#include <algorithm>

#include <fmt/format.h>

#include "parallel/plan_json.h"

namespace shardproof {
namespace {

constexpr std::size_t kLineWidth = 120;

// The text as adjacent raw strings, one a line, which end behind commas.
std::string raw_string(const std::string& text, std::string_view indent) {
  constexpr std::string_view kOpening = "R\"json(", kClosing = ")json\"";
  const std::size_t width = kLineWidth - indent.size() - kOpening.size() - kClosing.size() - 4;
  std::string lines;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = std::min(at + width, text.size());
    const std::size_t comma = text.rfind(',', end - 1);
    if (end < text.size() && comma != std::string::npos && comma > at) end = comma + 1;
    lines += fmt::format("\n{}{}{}{}", indent, kOpening, text.substr(at, end - at), kClosing);
    at = end;
  }
  return lines;
}

// What the small model takes from the configuration that failed.
std::string settings_text(const ShrinkInput& input) {
  const Json hostile = input.model.hostile_config();
  Json settings = Json::object();
  for (const JsonMember& member : input.settings.members()) {
    const Json* known = hostile.find(member.key);
    if (is_setting(member.value) && !member.key.starts_with("_") && (known == nullptr || !(*known == member.value)))
      settings.set(member.key, member.value);
  }
  return settings.dump(0);
}

std::string config_text(const ParallelConfig& config) {
  std::string text;
  if (const auto& context = config.context_parallel_config) {
    std::string fields;
    const auto add = [&](std::string field) { fields += (fields.empty() ? "" : ", ") + std::move(field); };
    if (context->ring_degree) add(fmt::format(".ring_degree = {}", *context->ring_degree));
    if (context->ulysses_degree) add(fmt::format(".ulysses_degree = {}", *context->ulysses_degree));
    if (!context->convert_to_fp32) add(".convert_to_fp32 = false");
    if (effective_ring_degree(*context) > 1) add(fmt::format(".rotate_method = \"{}\"", context->rotate_method));
    if (context->mesh) add(fmt::format(".mesh = Mesh::parse(\"{}\")", context->mesh->text()));
    if (context->ulysses_anything) add(".ulysses_anything = true");
    if (context->ring_anything) add(".ring_anything = true");
    text += fmt::format("  config.context_parallel_config = ContextParallelConfig{{{}}};\n", fields);
  }
  if (const auto& tensor = config.tensor_parallel_config) {
    text += fmt::format(
        "  config.tensor_parallel_config = TensorParallelConfig{{.tp_degree = {}{}, .device_type = \"{}\"}};\n",
        tensor->tp_degree, tensor->mesh ? fmt::format(", .mesh = Mesh::parse(\"{}\")", tensor->mesh->text()) : "",
        tensor->device_type);
  }
  return text;
}

std::string plans_text(const ReproductionPlan& plan) {
  if (plan.name == "default" || plan.name == "shipped")
    return fmt::format("  const ParallelPlans plans = plans_of_model(subject.model(), subject.config(), \"{}\");\n",
                       plan.name);
  const std::string json = plan_to_json(PlanFile{"", plan.plans.cp, plan.plans.tp}).dump(0);
  return fmt::format(
      "  const PlanFile file = plan_from_json(parse_json({},\n      \"plan\"));\n"
      "  const ParallelPlans plans{{\n      file.cp, file.tp, subject.model().attention_heads(subject.config())}};\n",
      raw_string(json, "      "));
}

std::string test_name(const SmallestFailure& failure) {
  std::string name;
  bool starts_word = true;
  for (const char c : mode_name(failure.config)) {
    const bool is_letter = c >= 'a' && c <= 'z';
    if (is_letter) name += starts_word ? static_cast<char>(c - 'a' + 'A') : c;
    starts_word = !is_letter;
  }
  return name + fmt::format("On{}Ranks", effective_mesh(failure.config).size());
}

std::string verifier_text(const ShrinkInput& input, const SmallestFailure& failure) {
  if (input.tier == ShrinkTier::rounding) {
    const bool is_given = input.rounding.device == DeviceChoice::given;
    const std::string device = is_given                                     ? "given, .given_device = device.get()"
                               : input.rounding.device == DeviceChoice::cpu ? "cpu"
                                                                            : "reference";
    return fmt::format(
        "  Verifier verifier(subject, {{.dtype = dtype_named(\"{}\"), .device = DeviceChoice::{}, .seed = {}}});\n",
        input.rounding.dtype.name(), device, failure.result.seed);
  }
  return fmt::format("  ExactVerifier verifier(subject, {{.bits = {}, .seed = {}}});\n",
                     input.tier == ShrinkTier::exact_bits, failure.result.seed);
}

}  // namespace

std::string reproducing_test(const ShrinkInput& input, const SmallestFailure& failure, const ReproductionPlan& plan,
                             const ReproductionDevice& device) {
  const bool has_file = plan.name != "default" && plan.name != "shipped";
  std::string text = "// The smallest configuration that failed; it passes once it is repaired.\n";
  text += "#include <gtest/gtest.h>\n\n#include \"core/json.h\"\n#include \"models/model_type.h\"\n";
  if (has_file) text += "#include \"parallel/plan_json.h\"\n";
  const bool has_device = input.tier == ShrinkTier::rounding && input.rounding.device == DeviceChoice::given;
  if (has_device) text += fmt::format("#include \"{}\"\n", device.header);
  text += "#include \"verify/exact_verifier.h\"\n#include \"verify/subject.h\"\n#include \"verify/verifier.h\"\n\n";
  text += fmt::format("TEST(SmallestFailure, {}) {{\n  using namespace shardproof;\n", test_name(failure));
  text += fmt::format("  const Json settings = parse_json({}, \"settings\");\n",
                      raw_string(settings_text(input), "      "));
  if (has_device) text += fmt::format("  const std::unique_ptr<Device> device = {};\n", device.expression);
  text += fmt::format("  const ModelSize size = parse_model_size(\"{}\");\n", size_text(failure.size));
  text += fmt::format("  Subject subject = Subject::of_size(find_model_type(\"{}\"), settings, size, {});\n",
                      input.model.short_name, failure.result.seed);
  text += "  ParallelConfig config;\n" + config_text(failure.config) + plans_text(plan) + verifier_text(input, failure);
  text += "  const VerificationResult result = verifier.verify(\"sized\", config, plans);\n";
  text += "  EXPECT_TRUE(is_verified(result.verdict)) << verdict_word(result.verdict) << \": \" << result.reason;\n}\n";
  return text;
}

}  // namespace shardproof
