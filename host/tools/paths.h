// Where Gatun's other programs and modules are: beside this program first, so that a build folder and an installation both
// work from where they stand, then in PATH.
#pragma once

#include <string>
#include <vector>

namespace gatun {

std::string own_path();                             // of the running program
std::string find_program(const std::string& name);  // "" if it is nowhere
std::string find_module(const std::string& file);   // a shared library of ours; "" if it is nowhere
// What follows "gatun-" in the names of all programs found that way, sorted.
std::vector<std::string> external_subcommands();

}  // namespace gatun
