// Where this program lies, so that it finds what belongs to it: the program of the zoo beside it, and data in
// share/shardproof beside its folder. The build has the same places as an installed tree.
#pragma once

#include <filesystem>
#include <string_view>

namespace shardproof {

// file_error if the system does not say.
std::filesystem::path program_folder();
// A file of share/shardproof, whether it exists or not.
std::filesystem::path data_file(std::string_view name);

}  // namespace shardproof
