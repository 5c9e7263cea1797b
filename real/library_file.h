// Where a library of ours lies that is loaded at run time: beside the program, as a build has it, or in the library
// folder of the tree that the program is installed in; unless an environment variable says another place.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace shardproof {

struct LibraryFile {
  std::optional<std::string> path;  // none if it is in none of the places
  std::vector<std::string> places;  // where it was looked for
};

// `name` is that of the file, `variable` may name a path in its stead.
LibraryFile find_library_file(const char* name, const char* variable);

}  // namespace shardproof
