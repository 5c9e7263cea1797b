// What oracle, verify and plan answer: exit status, tables, JSON, and the words for wrong exports and plans. The
// program runs as a process of its own on the recorded FLUX data and on copies of it that are damaged on purpose.
#include "app/commands.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/configurations.h"
#include "core/json.h"
#include "core/safetensors.h"
#include "models/model_type.h"
#include "parallel/plan_json.h"
#include "tests/app/program.h"
#include "tests/core/files/test_files.h"

namespace shardproof {
namespace {

using test::contents_of;
using test::golden;
using test::ProgramRun;
using test::put;
using test::run_program;
using test::TemporaryFolder;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

using Words = std::vector<std::string>;

// The JSON of a run, and the run itself.
struct JsonRun {
  ProgramRun run;
  std::string text;
  Json json;
};

JsonRun run_with_json(Words words) {
  const TemporaryFolder folder;
  const std::string path = folder / "out.json";
  words.insert(words.end(), {"--json", path});
  JsonRun result{run_program(words), test::contents_of(path), {}};
  result.json = parse_json(result.text, "out.json");
  return result;
}

std::vector<std::string> keys_of(const Json& json) {
  std::vector<std::string> keys;
  for (const JsonMember& member : json.members()) keys.push_back(member.key);
  return keys;
}

// A copy of a recorded folder that a test may damage.
class Export {
 public:
  explicit Export(std::string_view name) {
    std::filesystem::copy(golden(name), path(), std::filesystem::copy_options::recursive);
  }
  std::filesystem::path path() const { return folder_ / "export"; }
  std::filesystem::path operator/(std::string_view name) const { return path() / name; }

  // Replaces one float32 of a tensor.
  void change_weight(const std::string& tensor, std::size_t index, float value) {
    const std::filesystem::path file = *this / "weights.safetensors";
    std::uint64_t header = 0;
    std::size_t begin = 0;
    {
      const std::string start = test::contents_of(file).substr(0, sizeof(header));
      std::memcpy(&header, start.data(), sizeof(header));
      begin = SafetensorsFile(file).at(tensor).begin;
    }
    std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekp(static_cast<std::streamoff>(sizeof(header) + header + begin + index * sizeof(value)));
    stream.write(reinterpret_cast<const char*>(&value), sizeof(value));
    ASSERT_TRUE(stream.good());
  }

 private:
  TemporaryFolder folder_;
};

TEST(Oracle, AgreesWithTheRecordedOutputs) {
  const JsonRun result = run_with_json({"oracle", golden("tiny"), golden("uneven")});
  EXPECT_EQ(result.run.status, 0);
  EXPECT_EQ(result.run.error, "");
  EXPECT_THAT(result.run.output, HasSubstr("Our dense model agrees with the export: "));
  EXPECT_EQ(result.json.at("command").as_string(), "oracle");
  EXPECT_EQ(result.json.at("summary").at("DISAGREES").as_int(), 0);
  EXPECT_EQ(result.json.at("summary").at("AGREES").as_int() + result.json.at("summary").at("NOT CHECKED").as_int(),
            4 * 6);
  EXPECT_EQ(result.json.at("results").at(std::size_t{0}).at("source").as_string(), golden("tiny"));
  EXPECT_EQ(result.json.at("results").items().back().at("source").as_string(), golden("uneven"));
}

TEST(Oracle, NamesTheFirstModuleThatAChangedWeightReaches) {
  Export damaged("tiny");
  damaged.change_weight("transformer_blocks.1.ff.net.2.weight", 5, 3.0F);
  const JsonRun result = run_with_json({"oracle", damaged.path()});
  EXPECT_EQ(result.run.status, 1);
  EXPECT_EQ(result.run.error, "");
  EXPECT_THAT(result.run.output, HasSubstr("DISAGREES"));
  EXPECT_THAT(result.run.output, HasSubstr(":transformer_blocks.1.ff.net.2#0"));
  EXPECT_THAT(result.run.output, HasSubstr("\nOur dense model disagrees with the export: "));
  int traces = 0;
  for (const Json& comparison : result.json.at("results").items()) {
    if (comparison.at("verdict").as_string() == "NOT CHECKED") continue;
    EXPECT_EQ(comparison.at("verdict").as_string(), "DISAGREES") << comparison.dump();
    if (comparison.at("first_module").is_null()) continue;
    ++traces;
    EXPECT_THAT(comparison.at("first_module").as_string(), EndsWith(":transformer_blocks.1.ff.net.2#0"));
  }
  EXPECT_EQ(traces, 1);
}

TEST(Oracle, IsStatusTwoWhenThereIsNothingToCompareWith) {
  const Export bare("uneven");
  std::filesystem::remove(bare / "base.outputs.safetensors");
  std::filesystem::remove(bare / "grid_ids.outputs.safetensors");
  const ProgramRun run = run_program({"oracle", bare.path()});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.output, HasSubstr("NOT CHECKED"));
  EXPECT_EQ(run.error, "shardproof: nothing was compared: the exports hold no outputs\n");
}

TEST(Oracle, NeedsAnExport) {
  const ProgramRun run = run_program({"oracle", "flux"});
  EXPECT_EQ(run.status, 2);
  EXPECT_EQ(run.error,
            "shardproof: 'flux' is a model's name; oracle needs recorded outputs, expected an export directory\n");
}

TEST(Source, IsReportedWhenItIsNeitherExportNorModel) {
  const TemporaryFolder folder;
  put(folder / "file", "x");
  const std::string empty = folder / "empty";
  std::filesystem::create_directory(empty);
  const std::string file = folder / "file";
  for (const char* command : {"verify", "plan", "oracle"}) {
    std::string models;
    for (const ModelType& type : model_types()) models += (models.empty() ? "" : ", ") + type.short_name;
    EXPECT_EQ(run_program({command, "no-such"}).error,
              "shardproof: 'no-such' is neither an export directory (no such folder) nor a model's name; models: " +
                  models + "\n");
    EXPECT_EQ(run_program({command, file}).error,
              fmt::format("shardproof: {}: not a folder; an export directory is expected\n", file));
    const ProgramRun run = run_program({command, empty});
    EXPECT_EQ(run.status, 2);
    EXPECT_EQ(run.output, "");
    EXPECT_EQ(run.error, fmt::format("shardproof: cannot open '{}/config.json': No such file or directory\n", empty));
  }
}

TEST(Source, IsReportedWhenAFileOfItCannotBeRead) {
  const Export linked("uneven");
  std::filesystem::remove(linked / "weights.safetensors");
  std::filesystem::create_symlink("nowhere", linked / "weights.safetensors");
  const ProgramRun weights = run_program({"verify", linked.path()});
  EXPECT_EQ(weights.status, 2);
  EXPECT_THAT(weights.error, StartsWith("shardproof: "));
  EXPECT_THAT(weights.error, HasSubstr((linked / "weights.safetensors").string()));

  const Export folders("uneven");
  std::filesystem::remove(folders / "base.json");
  std::filesystem::create_directory(folders / "base.json");
  const ProgramRun description = run_program({"verify", folders.path()});
  EXPECT_EQ(description.status, 2);
  EXPECT_EQ(description.error,
            fmt::format("shardproof: '{}' is a folder; expected a file\n", (folders / "base.json").string()));
}

TEST(Source, IsReportedWhenItsConfigurationIsWrong) {
  const Export wrong("uneven");
  const std::string config = wrong / "config.json";
  put(config, "{\"_class_name\": \"NoSuchModel\"}");
  const ProgramRun unknown = run_program({"verify", wrong.path()});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(
      unknown.error,
      StartsWith(fmt::format("shardproof: {}: key '_class_name': no model is named 'NoSuchModel'; known: ", config)));
  put(config, "{");
  const ProgramRun broken = run_program({"verify", wrong.path()});
  EXPECT_EQ(broken.status, 2);
  EXPECT_THAT(broken.error, HasSubstr(config));
}

TEST(Verify, RunsEveryModeOfARecordedModel) {
  const JsonRun result = run_with_json({"verify", golden("tiny"), "--case", "base"});
  EXPECT_EQ(result.run.status, 0) << result.run.output;
  EXPECT_EQ(result.run.error, "");
  EXPECT_EQ(result.json.at("summary").dump(),
            R"({"EXACT":26,"ROUNDING-EQUIVALENT":26,"DIFFERENT":0,"REFUSED":5,"NOT CHECKED":0})");
  EXPECT_THAT(result.run.output, HasSubstr("\nREFUSED (5 of 57)\n"));
  EXPECT_THAT(result.run.output, HasSubstr("\nrun     field on device field, exact tier, seed 0, schedule seed 0\n"
                                           "        float64 on device reference, rounding tier, seed 0, "));
  EXPECT_THAT(result.run.output,
              HasSubstr("\nNOT CHECKED\n  - element types other than float64: one run each (--dtype)\n"));
  EXPECT_THAT(result.run.output, HasSubstr("\nEverything that was run is verified: 26 EXACT, 26 ROUNDING-EQUIVALENT, 5 "
                                           "REFUSED; largest figure "));
}

TEST(Verify, RunsTheTierThatWasAskedForAlone) {
  const JsonRun exact = run_with_json({"verify", golden("tiny"), "--case", "base", "--tier", "exact"});
  EXPECT_EQ(exact.run.status, 0) << exact.run.output;
  EXPECT_EQ(exact.json.at("summary").dump(),
            R"({"EXACT":26,"ROUNDING-EQUIVALENT":0,"DIFFERENT":0,"REFUSED":5,"NOT CHECKED":0})");
  for (const Json& entry : exact.json.at("results").items()) {
    EXPECT_EQ(entry.at("tier").as_string(), "exact");
    EXPECT_EQ(entry.at("dtype").as_string(), "field");
    EXPECT_EQ(entry.at("device").as_string(), "field");
    EXPECT_TRUE(entry.at("figure").is_null());
  }
  EXPECT_THAT(exact.run.output, HasSubstr("\nNOT CHECKED\n  - rounding, overflow and infinities, which exact "
                                          "arithmetic does not have (--tier all)\n"));
  EXPECT_THAT(exact.run.output, EndsWith("\nEverything that was run is verified: 26 EXACT, 5 REFUSED.\n"));

  const ProgramRun rounding = run_program({"verify", golden("tiny"), "--case", "base", "--tier", "rounding"});
  EXPECT_EQ(rounding.status, 0) << rounding.output;
  EXPECT_THAT(rounding.output, HasSubstr("\nNOT CHECKED\n  - EXACT: exact arithmetic (--tier exact or all)\n"));
  EXPECT_THAT(rounding.output, HasSubstr("is verified: 26 ROUNDING-EQUIVALENT, 5 REFUSED; largest figure "));
}

void expect_types_of_the_contract(const Json& result) {
  const bool is_refused = result.at("verdict").as_string() == "REFUSED";
  for (const char* key : {"case", "mode", "mesh", "dtype", "device", "tier", "rotate_method", "verdict", "reason"})
    EXPECT_TRUE(result.at(key).is_string()) << key;
  for (const char* key : {"seed", "schedule_seed", "bytes_sent_per_rank", "collectives"})
    EXPECT_TRUE(result.at(key).is_integer()) << key;
  EXPECT_TRUE(result.at("convert_to_fp32").is_bool());
  const std::string mode = result.at("mode").as_string();
  const bool has_ring = mode.find("ring") != std::string::npos || mode.find("unified") != std::string::npos;
  EXPECT_EQ(result.at("rotate_method").as_string().empty(), !has_ring) << mode;
  EXPECT_TRUE(result.at("seconds").is_double());
  const bool is_exact = result.at("tier").as_string() == "exact";
  EXPECT_EQ(result.at("figure").is_null(), is_refused || is_exact);
  EXPECT_EQ(result.at("max_abs").is_null(), is_refused || is_exact);
  const bool divides_tokens = result.at("mode").as_string() != "tp";
  EXPECT_EQ(result.at("tokens_per_rank").size() == 0, is_refused || !divides_tokens);
  EXPECT_EQ(result.at("reason").as_string().empty(), !is_refused);
  EXPECT_EQ(result.at("device").as_string(), is_exact ? "field" : "reference");
  if (is_refused) return;
  if (!is_exact) {
    EXPECT_TRUE(result.at("figure").is_double());
    EXPECT_LE(result.at("figure").as_double(), 1e-11);
  }
  for (const Json& tokens : result.at("tokens_per_rank").items()) EXPECT_TRUE(tokens.is_integer());
  EXPECT_TRUE(result.at("worst").is_null() || keys_of(result.at("worst")) == (Words{"rank", "index"}));
  EXPECT_GT(result.at("bytes_sent_per_rank").as_int(), 0);
}

TEST(Verify, WritesTheJsonOfTheContract) {
  const JsonRun result = run_with_json({"verify", "flux", "--case", "uneven", "--seed", "3", "--schedule-seed", "4"});
  EXPECT_EQ(result.run.status, 0);
  EXPECT_EQ(keys_of(result.json),
            (Words{"command", "version", "features", "model", "results", "summary", "hypothesis"}));
  EXPECT_TRUE(result.json.at("hypothesis").is_null());
  EXPECT_EQ(result.json.at("model").as_string(), "FluxTransformer2DModel");
  EXPECT_EQ(result.json.at("version").as_string().substr(0, 2), "0.");
  const Words fields{"case",
                     "mode",
                     "mesh",
                     "dtype",
                     "device",
                     "tier",
                     "rotate_method",
                     "convert_to_fp32",
                     "seed",
                     "schedule_seed",
                     "tokens_per_rank",
                     "verdict",
                     "reason",
                     "figure",
                     "max_abs",
                     "worst",
                     "bytes_sent_per_rank",
                     "collectives",
                     "skipped_entries",
                     "diagnosis",
                     "locus",
                     "movements_checked",
                     "bitwise_checked",
                     "modules",
                     "extremes_checked",
                     "also_passed",
                     "not_checked",
                     "repeat",
                     "seconds"};
  const std::vector<std::string> modes{"ulysses", "ulysses_anything", "ring", "ring_anything", "unified"};
  int verified = 0;
  for (const Json& entry : result.json.at("results").items()) {
    EXPECT_EQ(keys_of(entry), fields);
    expect_types_of_the_contract(entry);
    EXPECT_EQ(entry.at("seed").as_int(), 3);
    EXPECT_EQ(entry.at("schedule_seed").as_int(), 4);
    std::string mode = entry.at("mode").as_string();
    if (mode != "tp" && mode.starts_with("tp+")) mode = mode.substr(3);
    EXPECT_TRUE(mode == "tp" || std::find(modes.begin(), modes.end(), mode) != modes.end()) << mode;
    verified += entry.at("verdict").as_string() == "ROUNDING-EQUIVALENT" ? 1 : 0;
  }
  EXPECT_GT(verified, 0);
  EXPECT_EQ(result.json.at("summary").at("ROUNDING-EQUIVALENT").as_int(), verified);
  EXPECT_EQ(result.json.at("summary").at("EXACT").as_int(), verified);
}

TEST(Verify, GivesTheSameJsonTwiceAndWithMoreWorkers) {
  const std::regex seconds("\"seconds\": [^,\n]*");
  const auto text = [&](const Words& words) {
    return std::regex_replace(run_with_json(words).text, seconds, "\"seconds\": -");
  };
  const std::string once = text({"verify", golden("uneven"), "--case", "base"});
  EXPECT_EQ(once, text({"verify", golden("uneven"), "--case", "base"}));
  EXPECT_EQ(once, text({"verify", golden("uneven"), "--case", "base", "--workers", "3"}));
  EXPECT_THAT(once, HasSubstr("ROUNDING-EQUIVALENT"));
}

TEST(Verify, SkipsInJunitWhatASweepRefuses) {
  const TemporaryFolder folder;
  const JsonRun result = run_with_json({"verify", golden("tiny"), "--case", "base", "--tier", "exact", "--junit",
                                        folder / "out.xml", "--html", folder / "out.html"});
  EXPECT_EQ(result.run.status, 0);
  const std::int64_t verified = result.json.at("summary").at("EXACT").as_int();
  const std::int64_t refused = result.json.at("summary").at("REFUSED").as_int();
  EXPECT_GT(refused, 0);
  const std::string junit = contents_of(folder / "out.xml");
  EXPECT_THAT(junit, HasSubstr(fmt::format("tests=\"{}\" failures=\"0\" errors=\"0\" skipped=\"{}\"",
                                           verified + refused, refused)));
  const std::string html = contents_of(folder / "out.html");
  EXPECT_THAT(html, HasSubstr(fmt::format(">REFUSED ({} of {})</h2>", refused, verified + refused)));
  const std::regex times("time=\"[0-9.]+\"|<td class=\"number\" data-number=\"[0-9.e-]+\">[0-9.]+</td></tr>");
  const ProgramRun again = run_program({"verify", golden("tiny"), "--case", "base", "--tier", "exact", "--workers", "2",
                                        "--junit", folder / "again.xml", "--html", folder / "again.html"});
  EXPECT_EQ(again.status, 0);
  EXPECT_EQ(std::regex_replace(junit, times, ""), std::regex_replace(contents_of(folder / "again.xml"), times, ""));
  EXPECT_EQ(std::regex_replace(html, times, ""), std::regex_replace(contents_of(folder / "again.html"), times, ""));
}

TEST(Verify, IsStatusTwoWhenANamedConfigurationIsRefusedInACase) {
  const JsonRun result = run_with_json({"verify", golden("tiny"), "--ring-degree", "3"});
  EXPECT_EQ(result.run.status, 2);
  EXPECT_EQ(result.run.error,
            "shardproof: ring with ring=3,ulysses=1 is refused in case 'base', 'batch2', 'controlnet', 'realistic_t': "
            "argument 'hidden_states' of module '' (FluxTransformer2DModel): axis 1 has 16 entries, which 3 ranks "
            "cannot divide equally; the nearest legal lengths are 15 and 18; ulysses_anything or ring_anything would "
            "accept 16\n"
            "shardproof: nothing was verified: every configuration is refused\n");
  EXPECT_EQ(result.json.at("summary").at("REFUSED").as_int(), 4);

  // One case of this model has an odd number of tokens, another an even one.
  const TemporaryFolder folder;
  const ProgramRun partly = run_program(
      {"verify", "flux", "--ring-degree", "2", "--junit", folder / "out.xml", "--html", folder / "out.html"});
  EXPECT_EQ(partly.status, 2);
  // Not skipped: it was asked for.
  EXPECT_THAT(contents_of(folder / "out.xml"), HasSubstr("tests=\"6\" failures=\"0\" errors=\"2\" skipped=\"0\""));
  EXPECT_THAT(contents_of(folder / "out.html"), HasSubstr(">Why the exit status is 2</h2>"));
  EXPECT_THAT(partly.output, HasSubstr("2 EXACT, 2 ROUNDING-EQUIVALENT, 2 REFUSED"));
  EXPECT_THAT(partly.error, Not(HasSubstr("nothing was verified")));
}

TEST(Verify, RefusesConfigurationsThatContradictThemselves) {
  const auto error_of = [](Words words) {
    words.insert(words.begin(), {"verify", "flux", "--case", "even"});
    const ProgramRun run = run_program(words);
    EXPECT_EQ(run.status, 2);
    return run.error;
  };
  EXPECT_THAT(error_of({"--mesh", "ring=2,ulysses=1", "--ring-degree", "3"}),
              HasSubstr("ring_degree is 3, but the mesh 'ring=2,ulysses=1' has ring=2; they must agree"));
  EXPECT_THAT(error_of({"--mesh", "ring=2"}), HasSubstr("has no dimension 'ulysses'"));
  EXPECT_THAT(error_of({"--ulysses-anything", "--ring-anything", "--ring-degree", "2"}),
              HasSubstr("ulysses_anything and ring_anything exclude each other"));
  EXPECT_THAT(error_of({"--ring-anything"}), HasSubstr("ring_anything needs ring_degree greater than 1 (it is 1)"));
  EXPECT_THAT(error_of({"--tp-degree", "1"}), HasSubstr("--tp-degree 1: on one rank nothing is divided"));
  EXPECT_THAT(error_of({"--ring-degree", "1"}), HasSubstr("--ring-degree 1: on one rank nothing is divided"));
  EXPECT_THAT(
      error_of({"--mesh", "foo=2"}),
      HasSubstr("shardproof: the configuration foo=2 is refused in case 'even': either ring_degree or "
                "ulysses_degree must be greater than 1 (both are 1); also: mesh: 'foo=2' has no dimension "
                "'ring' and no 'ulysses'; a custom mesh must contain 'ring' and 'ulysses', of size 1 if unused, "
                "as in 'foo=2,ring=1,ulysses=1'\n"));
}

TEST(Verify, TakesTensorParallelismAloneAndWithContextParallelism) {
  const JsonRun result = run_with_json({"verify", "flux", "--case", "even", "--ring-degree", "2", "--tp-degree", "2"});
  EXPECT_EQ(result.run.status, 0) << result.run.error;
  const Json& entry = result.json.at("results").at(std::size_t{0});
  EXPECT_EQ(entry.at("mode").as_string(), "tp+ring");
  EXPECT_EQ(entry.at("mesh").as_string(), "tp=2,ring=2,ulysses=1");
  EXPECT_EQ(entry.at("verdict").as_string(), "EXACT");
  EXPECT_EQ(result.json.at("results").at(std::size_t{1}).at("verdict").as_string(), "ROUNDING-EQUIVALENT");
  EXPECT_EQ(run_program({"verify", "flux", "--case", "even", "--mesh", "tp=3,fsdp=2"}).status, 0);
}

TEST(Verify, TellsNoTokensOfARankThatHasThemAll) {
  const JsonRun result = run_with_json({"verify", "flux", "--case", "even", "--tp-degree", "2"});
  EXPECT_EQ(result.run.status, 0);
  EXPECT_THAT(result.run.output, testing::ContainsRegex("even +tp +tp=2 +- +- +[0-9]"));
  EXPECT_EQ(result.json.at("results").at(std::size_t{0}).at("tokens_per_rank").dump(), "[]");
}

TEST(Verify, RefusesTensorParallelismThatDoesNotDivide) {
  const ProgramRun heads = run_program({"verify", "flux", "--case", "even", "--tp-degree", "4"});
  EXPECT_EQ(heads.status, 2);
  EXPECT_EQ(heads.error,
            "shardproof: tp with tp=4 is refused in case 'even': the 6 attention heads of FluxTransformer2DModel are "
            "not divisible by tp_degree 4; legal degrees are 1, 2, 3, 6\n"
            "shardproof: nothing was verified: every configuration is refused\n");
  const ProgramRun without_plan = run_program({"verify", "wan", "--tp-degree", "2"});
  EXPECT_EQ(without_plan.status, 2);
  EXPECT_THAT(without_plan.error, HasSubstr("WanTransformer3DModel has no tensor-parallel plan"));
}

TEST(Verify, PrintsBothThatAVerdictOnSixteenBitsRestsOn) {
  for (const char* tier : {"rounding", "all"}) {
    const JsonRun result = run_with_json(
        {"verify", "flux", "--case", "even", "--ring-degree", "2", "--dtype", "bfloat16", "--tier", tier});
    EXPECT_EQ(result.run.status, 0) << result.run.error;
    const Json& entry = result.json.at("results").items().back();
    EXPECT_EQ(entry.at("verdict").as_string(), "ROUNDING-EQUIVALENT");
    EXPECT_GT(entry.at("figure").as_double(), 0.0);
    EXPECT_LE(entry.at("modules").at("worst").at("ratio").as_double(), 16.0);
    const bool has_exact = std::string_view(tier) == "all";
    EXPECT_THAT(entry.at("also_passed").as_string(), StartsWith(has_exact ? "exact arithmetic" : "float64 ("));
    EXPECT_THAT(result.run.output, HasSubstr("\nmodules: the largest such multiple of any module"));
  }
}

TEST(Verify, RunsReplicasOfOtherMeshDimensionsInFloat32) {
  const JsonRun result = run_with_json({"verify", "flux", "--case", "even", "--mesh", "fsdp=2,ring=2,ulysses=1",
                                        "--dtype", "float32", "--tier", "all", "--gather", "padded", "--plan",
                                        "shipped", "--rotate-method", "alltoall", "--no-convert-to-fp32"});
  EXPECT_EQ(result.run.status, 0) << result.run.error;
  EXPECT_EQ(result.json.at("results").at(std::size_t{0}).at("verdict").as_string(), "EXACT");
  const Json& entry = result.json.at("results").at(std::size_t{1});
  EXPECT_EQ(entry.at("mesh").as_string(), "fsdp=2,ring=2,ulysses=1");
  EXPECT_EQ(entry.at("tokens_per_rank").size(), 4U);
  EXPECT_EQ(entry.at("rotate_method").as_string(), "alltoall");
  EXPECT_FALSE(entry.at("convert_to_fp32").as_bool());
  EXPECT_EQ(entry.at("device").as_string(), "cpu");
  EXPECT_LE(entry.at("figure").as_double(), 16.0);
  EXPECT_THAT(result.run.output, HasSubstr("  - ragged gathers of the modes for uneven lengths (--gather)\n"));
}

// The plan of FLUX with one thing wrong.
std::string plan_text(std::string_view root, std::string_view output) {
  return fmt::format(R"({{"model": "FluxTransformer2DModel", "cp": {{"": {{{}}}, {}}}}})", root, output);
}

constexpr std::string_view kImage = R"("hidden_states": {"split_dim": 1, "expected_dims": 3},
  "img_ids": {"split_dim": 0, "expected_dims": 2})";
constexpr std::string_view kText = R"(, "encoder_hidden_states": {"split_dim": 1, "expected_dims": 3})";
constexpr std::string_view kTextIds = R"(, "txt_ids": {"split_dim": 0, "expected_dims": 2})";
constexpr std::string_view kOutput = R"("proj_out": {"gather_dim": 1, "expected_dims": 3})";

ProgramRun run_with_plan(const std::string& plan) {
  const TemporaryFolder folder;
  put(folder / "plan.json", plan);
  return run_program(
      {"verify", golden("tiny"), "--case", "base", "--ring-degree", "2", "--plan", folder / "plan.json"});
}

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += part;
  return text;
}

TEST(VerifyWithAPlanFile, AcceptsTheRightOne) {
  const ProgramRun run = run_with_plan(plan_text(joined({kImage, kText, kTextIds}), kOutput));
  EXPECT_EQ(run.status, 0) << run.error << run.output;
}

TEST(VerifyWithAPlanFile, FindsPositionsThatAreNotDivided) {
  const ProgramRun run = run_with_plan(plan_text(joined({kImage, kText}), kOutput));
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.output, HasSubstr("has rotary tables of 16"));
  EXPECT_THAT(run.output, EndsWith("\nA difference was found: 2 DIFFERENT.\n"));
}

TEST(VerifyWithAPlanFile, FindsTextThatEveryRankKeepsWhole) {
  const ProgramRun run = run_with_plan(plan_text(kImage, kOutput));
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.output, HasSubstr("output 'sample' on rank 0: 64 elements differ"));
}

TEST(VerifyWithAPlanFile, FindsAnOutputThatIsNotGathered) {
  const ProgramRun run = run_with_plan(plan_text(joined({kImage, kText, kTextIds}), R"("x_embedder": {})"));
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.output, HasSubstr("DIFFERENT"));
}

TEST(VerifyWithAPlanFile, RefusesAnEntryThatTheModelDoesNotHave) {
  const ProgramRun run = run_with_plan(plan_text(R"("hidden_stats": {"split_dim": 1})", kOutput));
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.error, HasSubstr("'hidden_stats'"));
  EXPECT_THAT(run.error, HasSubstr("is not an argument of FluxTransformer2DModel"));
}

TEST(VerifyWithAPlanFile, RefusesFilesThatAreNoPlanOfThisModel) {
  const TemporaryFolder folder;
  const std::string path = folder / "plan.json";
  const auto error_of = [&](const char* text) {
    put(path, text);
    const ProgramRun run = run_program({"verify", "flux", "--plan", path});
    EXPECT_EQ(run.status, 2);
    return run.error;
  };
  EXPECT_EQ(error_of(R"({"model": "WanTransformer3DModel", "cp": {}})"),
            fmt::format("shardproof: --plan {}: it is a plan of 'WanTransformer3DModel'; expected a plan of "
                        "FluxTransformer2DModel\n",
                        path));
  EXPECT_EQ(error_of(R"({"model": "FluxTransformer2DModel"})"),
            fmt::format(
                "shardproof: --plan {}: it has neither \"cp\" nor \"tp\"; expected a plan under at least one of these "
                "keys\n",
                path));
  EXPECT_EQ(error_of(R"({"model": "FluxTransformer2DModel", "tp": {}})"),
            "shardproof: nothing was verified: every configuration is refused\n");
  EXPECT_THAT(error_of("{"), HasSubstr(path));
  EXPECT_THAT(error_of(R"({"model": 3})"), HasSubstr("'model'"));
  EXPECT_EQ(run_program({"verify", "flux", "--plan", folder / "none"}).error,
            fmt::format("shardproof: --plan (expected shipped, default or a plan file): cannot open '{}': No such file "
                        "or directory\n",
                        (folder / "none").string()));
  EXPECT_EQ(run_program({"verify", "flux", "--plan", folder.path()}).error,
            fmt::format("shardproof: --plan (expected shipped, default or a plan file): '{}' is a folder; expected a "
                        "file\n",
                        folder.path().string()));
}

TEST(VerifyWithAPlanFile, ShardsTheLayersOfItsTensorParallelPart) {
  const TemporaryFolder folder;
  put(folder / "plan.json", R"({"model": "FluxTransformer2DModel", "tp": {"x_embedder": "replicated_input_rowwise"}})");
  const ProgramRun run =
      run_program({"plan", golden("tiny"), "--case", "base", "--tp-degree", "2", "--plan", folder / "plan.json"});
  EXPECT_EQ(run.status, 0) << run.error;
  EXPECT_THAT(run.output, testing::ContainsRegex("x_embedder +weight +replicated_input_rowwise +1 +4 +2,2"));
  EXPECT_THAT(run.output, testing::ContainsRegex("x_embedder +bias +whole +- +64 +64,64"));
  EXPECT_EQ(run_program({"verify", golden("tiny"), "--tp-degree", "2", "--plan", folder / "plan.json"}).status, 0);
}

TEST(Plan, ShowsWhatIsDividedOnEveryRank) {
  const JsonRun result = run_with_json({"plan", golden("tiny"), "--case", "base", "--ulysses-degree", "4"});
  EXPECT_EQ(result.run.status, 0);
  EXPECT_EQ(result.run.error, "");
  EXPECT_THAT(result.run.output, HasSubstr("run     ulysses on the mesh ring=1,ulysses=4\n"));
  EXPECT_THAT(result.run.output,
              HasSubstr("base  (root)    hidden_states                    split       1     16  4,4,4,4\n"));
  EXPECT_THAT(result.run.output,
              HasSubstr("base  proj_out  output 0                         gather      1     16  4,4,4,4\n"));
  EXPECT_THAT(result.run.output, Not(HasSubstr("no configuration was named")));
  const Json& row = result.json.at("results").at(std::size_t{0});
  EXPECT_EQ(keys_of(row),
            (Words{"case", "mode", "mesh", "module", "argument", "action", "axis", "total", "per_rank", "reason"}));
  EXPECT_EQ(row.at("per_rank").dump(), "[4,4,4,4]");
  EXPECT_THAT(result.run.output, testing::ContainsRegex("controlnet_block_samples +skipped +- +- +not given"));
  EXPECT_EQ(result.json.at("summary").dump(),
            R"({"split":4,"gather":1,"colwise":0,"rowwise":0,"packed_colwise":0,"packed_rowwise":0,)"
            R"("replicated_input_rowwise":0,"whole":0,"skipped":2,"refused":0,"failed":0})");
}

TEST(Plan, TakesARingForUnevenLengthsWhenNoneIsNamed) {
  const ProgramRun run = run_program({"plan", "flux", "--case", "uneven"});
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.output, HasSubstr("run     ring_anything on the mesh ring=2,ulysses=1\n"));
  EXPECT_THAT(run.output, HasSubstr("  - no configuration was named: this is ring_degree 2 with ring_anything\n"));
  EXPECT_THAT(run.output, HasSubstr("  - weights and inputs are drawn, from seed 0\n"));
  EXPECT_THAT(run.output, HasSubstr("hidden_states                    split       1     13  7,6\n"));
}

TEST(Plan, TakesTensorParallelismForAModelWithNoOtherPlan) {
  const ProgramRun run = run_program({"plan", "qwenimage21", "--case", "uneven"});
  EXPECT_EQ(run.status, 0) << run.error;
  EXPECT_THAT(run.output, HasSubstr("  - no configuration was named: this is tp_degree 2\n"));
  EXPECT_THAT(run.output, HasSubstr("colwise"));
}

// Every model, with the plan of either name; that a run of it may be refused does not matter.
TEST(Plan, WritesAFileThatReadsBackToTheSamePlan) {
  const TemporaryFolder folder;
  const std::string first = folder / "first.json", second = folder / "second.json";
  for (const ModelType& model : model_types()) {
    const Subject subject = Subject::open(model.short_name, 0);
    for (const char* name : {"default", "shipped"}) {
      const std::string source = model.short_name, one_case = subject.case_names().front();
      run_program({"plan", source, "--case", one_case, "--plan", name, "--write-plan", first});
      const ParallelPlans plans = requested_plan({.sources = {}, .plan = name}, subject).plans;
      EXPECT_EQ(read_plan_file(first), (PlanFile{model.class_name, plans.cp, plans.tp})) << source << ' ' << name;
      const ParallelPlans again = requested_plan({.sources = {}, .plan = first}, subject).plans;
      EXPECT_EQ(again.cp, plans.cp) << source << ' ' << name;
      EXPECT_EQ(again.tp, plans.tp) << source << ' ' << name;
      run_program({"plan", source, "--case", one_case, "--plan", first, "--write-plan", second});
      EXPECT_EQ(contents_of(second), contents_of(first)) << source << ' ' << name;
      std::filesystem::remove(first);
      std::filesystem::remove(second);
    }
  }
}

TEST(Plan, WritesItsPlanAlsoWhereTheRunIsRefused) {
  const TemporaryFolder folder;
  const std::string file = folder / "plan.json";
  EXPECT_EQ(run_program({"plan", "flux", "--tp-degree", "5", "--write-plan", file}).status, 2);
  EXPECT_TRUE(read_plan_file(file).tp.has_value());
  EXPECT_EQ(folder.entry_count(), 1U);
}

TEST(Plan, RefusesOneFileForTwoOutputs) {
  const TemporaryFolder folder;
  const std::string file = folder / "both.json";
  const ProgramRun run = run_program({"plan", "flux", "--write-plan", file, "--json", file});
  EXPECT_EQ(run.status, 2);
  EXPECT_EQ(run.error,
            fmt::format("shardproof: --write-plan: '{}' is the file of --json, too; expected another file\n", file));
  EXPECT_EQ(folder.entry_count(), 0U);
}

// What the documentation shows is read as it stands.
TEST(Plan, ReadsTheFileOfTheDocumentation) {
  const std::string text = contents_of(std::string(SHARDPROOF_SOURCE_DIR) + "/docs/files.md");
  const std::size_t begin = text.find("```json\n{\n  \"model\"") + 8;
  const PlanFile file = plan_from_json(parse_json(text.substr(begin, text.find("```", begin) - begin), "files.md"));
  const ModelType& flux = find_model_type("flux");
  const ModelPlans plans = flux.plans(flux.hostile_config());
  EXPECT_EQ(file, (PlanFile{flux.class_name, plans.shipped_cp, plans.shipped_tp}));
}

TEST(Plan, ListsSkippedEntries) {
  const ProgramRun run = run_program({"plan", "probe", "--case", "whole_shard_masked"});
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.output, HasSubstr("skipped"));
  EXPECT_THAT(run.output, HasSubstr("1 dimension, plan expects 2\n"));
}

// An entry that is skipped is no rule about sizes: nothing divides what the plan was to divide, in any configuration.
TEST(Verify, EndsWithTwoIfThePlanDoesNotFitACase) {
  const test::TemporaryFolder folder;
  const std::string plan = folder / "plan.json", junit = folder / "junit.xml";
  ASSERT_EQ(run_program({"plan", "wan", "--write-plan", plan}).status, 0);
  std::string text = contents_of(plan);
  const std::size_t timestep = text.find("\"expected_dims\": 2", text.find("\"timestep\""));
  ASSERT_NE(timestep, std::string::npos);
  put(plan, text.replace(timestep, 18, "\"expected_dims\": 3"));
  const ProgramRun run = run_program({"verify", "wan", "--plan", plan, "--tier", "exact", "--junit", junit});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.error, AllOf(StartsWith("shardproof: the plan does not fit case 'even_per_token': "),
                               HasSubstr("case 'uneven_per_token'"),
                               HasSubstr("argument 'timestep' of module '' was skipped: 2 dimensions, plan expects 3"),
                               Not(HasSubstr("case 'even':"))));
  EXPECT_THAT(run.output, HasSubstr("\nThe plan does not fit every case; what it fits is verified: "));
  EXPECT_THAT(contents_of(junit), Not(HasSubstr("errors=\"0\" skipped=\"54\"")));
  EXPECT_THAT(contents_of(junit), HasSubstr("<error "));
}

TEST(ReportOptions, SayThatARequestHasNoResult) {
  const test::TemporaryFolder folder;
  const std::string junit = folder / "junit.xml", html = folder / "page.html";
  put(junit, "<testsuites name=\"of an earlier run\"/>");
  EXPECT_EQ(run_program({"verify", "flux", "--plan", "nosuch.json", "--junit", junit, "--html", html}).status, 2);
  EXPECT_THAT(contents_of(html), AllOf(HasSubstr(">Why the exit status is 2</h2>"), HasSubstr("nosuch.json")));
  if (test::has_full_device()) {
    const ProgramRun full = run_program({"verify", "flux", "--plan", "nosuch.json", "--html", "/dev/full"});
    EXPECT_EQ(full.status, 2);
    EXPECT_THAT(full.error, AllOf(HasSubstr("/dev/full"), HasSubstr("cannot open 'nosuch.json'")));
  }
  EXPECT_THAT(contents_of(junit), AllOf(HasSubstr("tests=\"1\" failures=\"0\" errors=\"1\""), HasSubstr("nosuch.json"),
                                        Not(HasSubstr("earlier"))));
}

TEST(Plan, ShowsOutputsThatAreDivided) {
  const ProgramRun run = run_program({"plan", "qwenimage", "--case", "even", "--ulysses-degree", "2"});
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.output, testing::ContainsRegex("pos_embed +output 1 +split +0 +12 +6,6"));
}

TEST(Plan, SaysWhyItWasRefused) {
  const JsonRun result = run_with_json({"plan", "flux", "--case", "uneven", "--ulysses-degree", "2"});
  EXPECT_EQ(result.run.status, 2);
  EXPECT_THAT(result.run.error, StartsWith("shardproof: ulysses with ring=1,ulysses=2 is refused in case 'uneven': "
                                           "argument 'hidden_states'"));
  EXPECT_THAT(result.run.output, EndsWith("\nEntries of the plan: 1 refused.\n"));
  EXPECT_EQ(result.json.at("results").at(std::size_t{0}).at("action").as_string(), "refused");
  EXPECT_TRUE(result.json.at("results").at(std::size_t{0}).at("axis").is_null());
  EXPECT_THAT(run_program({"plan", "flux", "--case", "even", "--tp-degree", "4"}).error,
              StartsWith("shardproof: tp with tp=4 is refused in case 'even': the 6 attention heads"));
}

TEST(OutOfMemory, IsSaidAndEndsTheProgramByItself) {
  if (test::kHasSanitizer) GTEST_SKIP() << "address space cannot be limited under a sanitizer";
  constexpr std::size_t kMegabyte = std::size_t{1} << 20;
  // Enough to start, which the libraries decide, and too little for the stacks of so many ranks.
  std::size_t least = 40;
  while (test::run_program_within(least * kMegabyte, {"--version"}).status != 0) {
    least += 10;
    ASSERT_LT(least, std::size_t{1000});
  }
  for (const std::size_t megabytes : {least, least + 340}) {
    const ProgramRun run = test::run_program_within(
        megabytes * kMegabyte, {"verify", "flux", "--case", "even", "--ring-degree", "8192", "--ring-anything"});
    EXPECT_GT(run.status, 0) << "killed, or verified what cannot fit";
    EXPECT_THAT(run.output + run.error, HasSubstr("memory"));
  }
}

TEST(StatusOf, IsTheRequestsFaultUnlessItIsOurs) {
  for (const ErrorKind kind : {ErrorKind::internal_error, ErrorKind::deadlock_error, ErrorKind::collective_error})
    EXPECT_EQ(status_of(kind), 3) << error_kind_name(kind);
  for (const ErrorKind kind :
       {ErrorKind::config_error, ErrorKind::unsupported_error, ErrorKind::plan_error, ErrorKind::shape_error,
        ErrorKind::state_error, ErrorKind::type_error, ErrorKind::file_error, ErrorKind::usage_error})
    EXPECT_EQ(status_of(kind), 2) << error_kind_name(kind);
}

}  // namespace
}  // namespace shardproof
