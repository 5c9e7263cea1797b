// The kinds of files that a stranger may feed to the program, each with its corpus, its reader and the judge of the
// answer: a value, or one Error that names the file and the place in it. Shared by the mutation loop and by the entry
// for libFuzzer, so that both judge alike.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace shardproof {

// One kind of file: its corpus, the name under which a mutation is stored, and what reads it.
struct FuzzTarget {
  std::vector<std::filesystem::path> corpus;
  std::string file_name;
  std::function<void(const std::filesystem::path& folder)> read;
};

// By name: safetensors, config, case, plan, index.
const std::map<std::string, FuzzTarget>& fuzz_targets();

std::string bytes_of(const std::filesystem::path& path);

// A fresh folder with the sound files that stand beside the mutated one.
std::filesystem::path prepared_folder(const std::string& target_name, std::string_view suffix);

// What is wrong with the answer to the file in the folder; empty if it is one that a reader may give.
std::string finding_about(const FuzzTarget& target, const std::filesystem::path& folder);

// What is wrong with a message about a file in the folder: it has to name the file or the folder, and besides that a
// key, a field, or an offset or length in bytes. Empty if it does.
std::string finding_about_message(std::string_view message, const std::filesystem::path& folder);

}  // namespace shardproof
