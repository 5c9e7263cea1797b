// Reading export directories: what a real one holds, and one clear error for everything that can be wrong with one.
// Files come from strangers: nothing may be read out of bounds, guessed or ignored.
#include "models/export_directory.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/host_memory.h"
#include "core/ops.h"
#include "models/state.h"
#include "tests/core/files/test_files.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;
using test::thrown_by;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kGoldens = fs::path(SHARDPROOF_SOURCE_DIR) / "tests/data/goldens/flux";

TEST(ExportDirectory, ListsTheCasesOfARealExport) {
  const ExportDirectory directory(kGoldens / "tiny");
  EXPECT_EQ(directory.model().short_name, "flux");
  EXPECT_THAT(directory.case_names(), ElementsAre("base", "batch2", "controlnet", "realistic_t"));
}

TEST(ExportDirectory, ReadsTensorsListsNoneAndSettings) {
  HostDevice host;
  const ModelCase read = ExportDirectory(kGoldens / "tiny").load_case("controlnet", host);
  EXPECT_EQ(read.arguments.tensor("hidden_states").shape(), (Shape{2, 16, 4}));
  EXPECT_EQ(read.arguments.tensor_list("controlnet_block_samples").size(), 2U);
  EXPECT_TRUE(is_none(*read.arguments.find("guidance")));
  EXPECT_FALSE(read.arguments.flag("controlnet_blocks_repeat", true));
  EXPECT_THAT(read.outputs, ElementsAre("sample"));
}

TEST(ExportDirectory, NumbersRepeatedCallsOfAModuleInTheTrace) {
  const std::vector<TraceEntry> entries = ExportDirectory(kGoldens / "tiny").trace_entries("base");
  ASSERT_EQ(entries.size(), 136U);
  EXPECT_EQ(entries.front().module, "x_embedder");
  EXPECT_EQ(entries.back().module, "");
}

// A copy of a real export in a temporary folder, to be spoilt.
class SpoiltExport : public ::testing::Test {
 protected:
  void SetUp() override { fs::copy(kGoldens / "uneven", folder_); }

  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  std::string open_error() {
    const auto error = thrown_by([&] { ExportDirectory directory(folder_); });
    return error ? error->message : "accepted";
  }
  std::string case_error() {
    const auto error = thrown_by([&] { ExportDirectory(folder_).load_case("base", host_); });
    return error ? error->message : "accepted";
  }
  std::string weights_error() {
    const auto error = thrown_by([&] {
      const ExportDirectory directory(folder_);
      const ModelContext context{&host_, kFloat32, TablePrecision::float32};
      const std::unique_ptr<Module> declared = directory.model().create(directory.config(), context);
      load_state(*declared, directory.weights(), context);
    });
    return error ? error->message : "accepted";
  }
  // Replaces the value of one key of a JSON file of this folder.
  void change(const std::string& file, const std::string& key, Json value) {
    Json json = read_json_file(folder_ / file);
    json.set(key, std::move(value));
    write(file, json.dump());
  }

  HostDevice host_;
  test::TemporaryFolder temporary_;
  fs::path folder_ = temporary_ / "export";
};

TEST_F(SpoiltExport, IsSoundBeforeItIsSpoilt) {
  EXPECT_EQ(open_error(), "accepted");
  EXPECT_EQ(case_error(), "accepted");
  EXPECT_EQ(weights_error(), "accepted");
}

TEST_F(SpoiltExport, NamesAFolderThatIsNone) {
  folder_ /= "config.json";
  EXPECT_THAT(open_error(), HasSubstr("config.json: not a folder"));
  folder_ = folder_.parent_path();
}

TEST_F(SpoiltExport, NamesAMissingConfiguration) {
  fs::remove(folder_ / "config.json");
  EXPECT_THAT(open_error(), HasSubstr("config.json"));
}

TEST_F(SpoiltExport, NamesAnUnknownClass) {
  change("config.json", "_class_name", "StableUnknownModel");
  EXPECT_THAT(open_error(), HasSubstr("config.json: key '_class_name': no model is named 'StableUnknownModel'"));
}

TEST_F(SpoiltExport, SaysThatThereIsNoCase) {
  fs::remove(folder_ / "base.json");
  fs::remove(folder_ / "grid_ids.json");
  EXPECT_THAT(open_error(), HasSubstr("no case found"));
}

TEST_F(SpoiltExport, NamesMissingInputs) {
  fs::remove(folder_ / "base.inputs.safetensors");
  EXPECT_THAT(case_error(), HasSubstr("base.inputs.safetensors"));
}

TEST_F(SpoiltExport, NamesATensorThatTheCaseListsButTheFileLacks) {
  change("base.json", "tensor_args", Json::array({"hidden_states", "image"}));
  EXPECT_THAT(case_error(), HasSubstr("'image'"));
}

TEST_F(SpoiltExport, NamesATensorThatBelongsToNoArgument) {
  change("base.json", "tensor_args", Json::array({"hidden_states"}));
  EXPECT_THAT(case_error(), HasSubstr("tensor 'encoder_hidden_states' belongs to no argument of the case"));
}

TEST_F(SpoiltExport, DemandsOutputs) {
  change("base.json", "outputs", Json::array());
  EXPECT_THAT(case_error(), HasSubstr("a list of at least one output"));
}

TEST_F(SpoiltExport, NamesSettingsOfAnImpossibleKind) {
  Json settings = Json::object();
  settings.set("controlnet_blocks_repeat", Json::object());
  change("base.json", "args", settings);
  EXPECT_THAT(case_error(), HasSubstr("controlnet_blocks_repeat"));
}

TEST_F(SpoiltExport, ListsTheCasesWhereOneIsUnknown) {
  const auto error = thrown_by([&] { ExportDirectory(folder_).load_case("bas", host_); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("no case is named 'bas'; known: base, grid_ids"));
}

TEST_F(SpoiltExport, ListsWeightsThatAreMissingOrOfAnotherShape) {
  change("config.json", "num_layers", 2);
  EXPECT_THAT(weights_error(), HasSubstr("'transformer_blocks.1.norm1.linear.weight' is missing"));
  change("config.json", "num_layers", 1);
  change("config.json", "in_channels", 5);
  EXPECT_THAT(weights_error(), HasSubstr("'x_embedder.weight' has shape [48, 4], expected [48, 5]"));
}

TEST_F(SpoiltExport, ListsWeightsThatTheModelDoesNotHave) {
  change("config.json", "num_single_layers", 1);
  EXPECT_THAT(weights_error(), HasSubstr("is not a parameter of FluxTransformer2DModel"));
  EXPECT_THAT(weights_error(), HasSubstr("more"));
}

TEST_F(SpoiltExport, NamesTraceKeysThatAreNone) {
  const Tensor value = ops::zeros(host_, {1}, kFloat64);
  for (const char* key : {"0000x_embedder#0", "0000:x_embedder", "0000:x_embedder#-1", "0000:x_embedder#x"}) {
    const std::vector<NamedTensor> tensors{{key, value}};
    write_safetensors(folder_ / "base.trace.safetensors", tensors);
    const auto error = thrown_by([&] { ExportDirectory(folder_).trace_entries("base"); });
    ASSERT_TRUE(error) << key;
    EXPECT_THAT(error->message, HasSubstr("is not of the form NNNN:<module path>#<output index>"));
  }
}

}  // namespace
}  // namespace shardproof
