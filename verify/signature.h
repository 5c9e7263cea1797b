// What the wrong elements of a tensor look like: rows of zeros, rows of another place, a constant factor, one vector
// too much in every row. Such a pattern names a kind of mistake before anybody has read code. Source: verification
// specification, section 8.
#pragma once

#include <string>
#include <vector>

namespace shardproof {

struct SignatureInput {
  std::size_t channels = 1;                        // of a row
  std::vector<double> actual = {}, expected = {};  // rows of a rank, and what they should be
  std::vector<double> whole = {};                  // all rows of the dense run, if they have as many channels
  // False: elements are names of values, of which only equality and zero mean anything.
  bool are_numbers = true;
  double allowed = 0.0;  // difference that is none
  int ranks = 1;         // a factor of as many, or of its inverse, is told apart
};

// "rows of zeros: .."; empty if it looks like nothing of the table.
std::string signature_of(const SignatureInput& input);

}  // namespace shardproof
