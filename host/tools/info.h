// `gatun info`: what is built, what this host can do, whether a switch answers, and where each setting comes from.
#pragma once

#include <string>
#include <vector>

namespace gatun {

int info_main(const std::vector<std::string>& arguments);  // the exit code

}  // namespace gatun
