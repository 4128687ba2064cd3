// Fd: owns one file descriptor and closes it. The one of host/base, so that daemon and library hold one kind.
#pragma once

#include "host/base/os.h"
