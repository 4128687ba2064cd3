#include "host/tools/settings_flags.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace gatun {

Status take_setting_flags(std::vector<std::string>* arguments, Settings* settings) {
  if (Status status = settings->load(arguments); !status.ok()) return status;
  for (const Settings::Row& row : Settings::table()) {
    const Settings::Origin& origin = settings->origin(row.key);
    if (origin.source != Settings::Source::kFlag) continue;
    std::string name = std::string("GATUN_") + row.key;
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    setenv(name.c_str(), origin.text.c_str(), 1);
  }
  if (!settings->file().empty()) setenv("GATUN_CONFIG", settings->file().c_str(), 1);
  return {};
}

}  // namespace gatun
