// The version of the library that this program has loaded, as text.
#pragma once

#include <string>

namespace gatun {

std::string version_text();  // of the library that is loaded: "0.1.0"

}  // namespace gatun
