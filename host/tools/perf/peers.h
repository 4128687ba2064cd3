// The peers of a comparison, loaded from their modules (peer.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/tools/perf/peer.h"

namespace gatun::perf {

// A peer is to be met at its best, which Linux's defaults keep it from on the loopback interface. Every TCP socket of this
// process gets cubic (bbr, where it is the default, paces the loopback to a part of its speed) and a send buffer that holds
// several segments of 64 KiB (a full one waits for a delayed acknowledgement, 40 ms: a ring of four then takes seconds).
void tune_tcp();

class Peer {
 public:
  // name as given to --vs. "mpi", "mpi-tcp" and "mpi-shm" are one module: mpirun's settings make the difference.
  static std::unique_ptr<Peer> load(const std::string& name, std::string* error);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const std::string& name() const { return name_; }
  std::string describe() const { return "Peer " + name_ + ": " + api_->describe(); }
  // Each returns "" or why not.
  std::string early();
  std::string open(const gatun_peer_config& config);
  std::string prepare(int variant, void* data, size_t count, gatun_type_t type, gatun_op_t op);
  std::string run(int variant);
  void finish(int variant) { api_->finish(variant); }
  void abandon() { started_ = false; }  // after a failure: an orderly close could wait for ranks that are gone
  int variants(int nranks) const { return api_->variants(nranks); }
  std::string variant_name(int variant) const { return api_->variant_name(variant); }

 private:
  Peer(std::string name, void* library, const gatun_peer_api* api) : name_(std::move(name)), library_(library), api_(api) {}
  std::string named(int code, const char* error) const;

  std::string name_;
  void* library_;
  const gatun_peer_api* api_;
  bool started_ = false;
};

}  // namespace gatun::perf
