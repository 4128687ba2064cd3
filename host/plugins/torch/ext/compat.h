// What differs between the PyTorch versions the extension builds for, in one place.
//
// A backend is a c10d::Backend from PyTorch 2.0 on and a c10d::ProcessGroup before. Only the virtual functions that all
// versions have carry "override" in this folder; newer ones are declared plainly, so that they override where they exist
// and are ordinary functions where they do not.
#pragma once

#include <torch/version.h>

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace gatun_torch {

#define GATUN_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if GATUN_TORCH_AT_LEAST(2, 0)
using Base = c10d::Backend;
#else
using Base = c10d::ProcessGroup;
#endif

#if GATUN_TORCH_AT_LEAST(2, 1)
using BackendError = c10::DistBackendError;  // torch.distributed.DistBackendError, a RuntimeError
#else
using BackendError = c10::Error;  // RuntimeError
#endif

using BasePtr = c10::intrusive_ptr<Base>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

template <typename T>
void shutdown_of(T& backend) {
  if constexpr (requires { backend.shutdown(); }) {
    backend.shutdown();
  }
}

template <typename T>
void abort_of(T& backend) {
  if constexpr (requires { backend.abort(); }) {
    backend.abort();
  }
}

}  // namespace gatun_torch
