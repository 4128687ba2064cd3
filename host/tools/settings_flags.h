// Settings given as flags of a tool, for the library in the same process and in children: it reads GATUN_<KEY>.
#pragma once

#include <string>
#include <vector>

#include "host/base/settings.h"

namespace gatun {

// Takes the settings' flags out of the arguments, reads the other sources, and puts what came by flag into the environment.
Status take_setting_flags(std::vector<std::string>* arguments, Settings* settings);

}  // namespace gatun
