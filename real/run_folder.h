// The folder in which the ranks of one run on this machine keep what they share in files, in memory where that is
// possible: it is removed with all that is in it when the run ends, and by a later run where no process was left to do
// it. A lock on the folder, which the system gives back whatever becomes of a process, tells the folders of living runs
// from those of dead ones.
#pragma once

#include <string>
#include <utility>

#include "real/socket.h"

namespace shardproof {

// Where such folders are: in memory, or where other temporary files are (TMPDIR). file_error if both are no place.
std::string run_folder_base(const std::string& memory = "/dev/shm");

// One process's hold on the folder of a run: nobody takes it for that of a dead one before all holds are gone.
class RunFolder {
 public:
  // A new one, with a name that no other has. Both this and the next remove first what dead runs of this user have left
  // in the base folder. file_error if none can be made or used.
  static RunFolder new_one(const std::string& base = run_folder_base());
  // The one of that name, which several processes ask for: whoever comes first makes it.
  static RunFolder shared(const std::string& name, const std::string& base = run_folder_base());
  // The one that another process has made, for whose life that process answers.
  static RunFolder made_by_another(const std::string& path);

  const std::string& path() const { return path_; }
  // With everything in it, whoever else holds it.
  void remove() const;

 private:
  RunFolder(std::string path, Socket lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  Socket lock_;  // a descriptor of the folder; not open where it cannot be locked
};

}  // namespace shardproof
