// What the C API's handles are, for tests that make a communicator with something between it and its transports.
#pragma once

#include <memory>

#include "gatun/gatun.h"
#include "host/lib/communicator.h"

namespace gatun {

gatun_comm_t make_handle(std::unique_ptr<Communicator> communicator);

// Settings from their files and the environment, then what options says.
// store: the caller's, if the options name one.
Result<SettingValues> load_settings(const gatun_options_t* options, std::vector<std::string>* warnings,
                                    std::unique_ptr<Store>* store);

}  // namespace gatun
