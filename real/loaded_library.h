// A library of somebody else's that is opened when it is first needed instead of being linked: the program starts where
// it is missing, and who does not use it pays nothing for it. It is never closed again, because its threads, and those
// of what it watches, go on in its code; its symbols are nobody's but the caller's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace shardproof {

struct LibrarySearch {
  std::string_view library;         // its name in messages: "NCCL"
  std::string expected;             // what it has to be, in messages: "NCCL 2.28 or newer"
  std::string_view advice;          // how to come by it, in messages: "install it with the CUDA toolkit"
  const char* variable = "";        // the environment variable that may name its place, which is then the only one
  std::vector<std::string> places;  // in this order: paths, or names of files that the program loader looks for;
                                    // a name that is loaded in this process already goes before all of them
  ErrorKind error = ErrorKind::unsupported_error;
};

// Where a function begins. Its type is what the caller says: that of the variable in which it is kept.
struct FunctionAddress {
  void* address;
  template <class Function>
  operator Function*() const {
    return reinterpret_cast<Function*>(address);
  }
};

class LoadedLibrary {
 public:
  // Opens the first place that has the library. Throws the error of the search, with why no place would do and the name
  // of the variable, if none has.
  explicit LoadedLibrary(const LibrarySearch& search);

  // Throws the error of the search if the library has no function of that name.
  FunctionAddress function(const char* name) const;

  // Throws the error of the search: what was opened is not what was looked for, but as `problem` says.
  [[noreturn]] void reject(std::string_view problem) const;

  // What was opened, in quotes, for messages.
  const std::string& place() const { return place_; }

 private:
  std::string place_;
  std::string expected_;
  const char* variable_;
  ErrorKind error_;
  void* handle_ = nullptr;
};

}  // namespace shardproof
