// An opened RDMA device, and owners of what libibverbs makes of it. Everything here holds a reference to the device, which
// is closed after the last of them.
//
// Threads: any, one at a time for each object.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "host/base/placement.h"
#include "host/transport/verbs.h"

namespace gatun {

// Destroys with one of libibverbs' functions, which return an int that nothing can be done about.
template <auto destroy>
struct VerbsDeleter {
  template <typename T>
  void operator()(T* object) const {
    destroy(object);
  }
};
using VerbsContext = std::unique_ptr<ibv_context, VerbsDeleter<ibv_close_device>>;
using VerbsDomain = std::unique_ptr<ibv_pd, VerbsDeleter<ibv_dealloc_pd>>;
using VerbsKey = std::unique_ptr<ibv_mr, VerbsDeleter<ibv_dereg_mr>>;
using VerbsChannel = std::unique_ptr<ibv_comp_channel, VerbsDeleter<ibv_destroy_comp_channel>>;
using VerbsCompletions = std::unique_ptr<ibv_cq, VerbsDeleter<ibv_destroy_cq>>;
using VerbsReceives = std::unique_ptr<ibv_srq, VerbsDeleter<ibv_destroy_srq>>;
using VerbsPair = std::unique_ptr<ibv_qp, VerbsDeleter<ibv_destroy_qp>>;

// Where one address of a device is.
struct VerbsAddress {
  uint8_t port = 0;
  uint8_t index = 0;  // in the port's GID table
  ibv_mtu mtu = IBV_MTU_1024;
};

class OpenDevice {
 public:
  // All devices of this host, or why there are none.
  static Result<std::vector<std::shared_ptr<OpenDevice>>> open_all();
  explicit OpenDevice(VerbsContext context);

  ibv_context* context() const { return context_.get(); }
  const ibv_device_attr& limits() const { return limits_; }
  std::string name() const { return ::ibv_get_device_name(context_->device); }
  std::vector<int> cores() const { return cores_near("class/infiniband/" + name() + "/device"); }

  // Only RoCE v2 entries count, and all 16 bytes. The sentence shows the table.
  Result<VerbsAddress> find(const VerbsGid& gid) const;
  std::string gid_table() const;
  std::string describe() const;  // ports and table, for people

  Result<VerbsDomain> make_domain() const;
  // access: IBV_ACCESS_*. otherwise: what helps beside a higher limit on locked memory.
  Result<VerbsKey> make_key(ibv_pd* domain, std::span<std::byte> memory, int access, const char* otherwise) const;

  // What the device has said of its ports, in words; "" if nothing. Does not block.
  std::string events();

 private:
  VerbsContext context_;
  ibv_device_attr limits_{};
  std::mutex mutex_;
  std::string events_;
};

// "cannot WHAT on rxe0: reason (errno text)".
Status verbs_error(const OpenDevice& device, const std::string& what, int error);

}  // namespace gatun
