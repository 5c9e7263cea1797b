// Hands the command `zoo` on to the program `shardproof-zoo` beside this one. It is a program of its own because it
// holds a copy of the algorithms in which faults can be switched on, which this program must not hold.
#pragma once

namespace shardproof {

// Becomes that program, with the same words; its exit status is then this one's. file_error naming the path that was
// tried if it cannot be started.
[[noreturn]] void become_zoo_program(const char* const* words);

}  // namespace shardproof
