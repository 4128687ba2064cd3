// DpdkPort: one Ethernet device of DPDK, opened, configured by what it says of itself, and running.
//
// A device is never stopped and started again (af_packet would send nothing afterwards): it is removed, and probed anew.
// One thread at a time uses a queue.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/transport/dpdk_module.h"

struct rte_eth_conf;
struct rte_eth_dev_info;
struct rte_mbuf;
struct rte_mempool;

namespace gatun {

struct DpdkPortFacts {
  uint16_t id = 0;
  Mac device_mac;
  uint32_t mtu = 0;
  uint32_t send_queues = 1, receive_queues = 1;
  uint32_t send_frames = 0, receive_frames = 0;  // that the device holds in one queue
  bool chains = false;                           // a frame may lie in several mbufs
  bool copies_at_once = false;                   // what is sent may change as soon as send() returns
  bool udp_checksum = false;                     // the device makes it
  bool ip4_checksum = false;                     // and at no cost: virtual devices make it in software
  std::vector<int> cores;                        // near it
  std::vector<int> sockets;                      // the kernel's, below the device: readable when frames have come
};

class DpdkPort {
 public:
  static Result<std::unique_ptr<DpdkPort>> open(const DpdkSpec& spec, const DpdkDeviceOptions& options);
  ~DpdkPort();
  DpdkPort(const DpdkPort&) = delete;
  DpdkPort& operator=(const DpdkPort&) = delete;

  const DpdkPortFacts& facts() const { return facts_; }
  uint32_t receive(uint32_t queue, rte_mbuf** out, uint32_t count);
  uint32_t send(uint32_t queue, rte_mbuf** mbufs, uint32_t count);
  rte_mempool* pool() const { return pool_; }  // of received frames
  Status health() const;                       // off the datapath

 private:
  explicit DpdkPort(const DpdkSpec& spec) : spec_(spec) {}
  Status probe();
  Status configure(const DpdkDeviceOptions& options);
  void choose_queues(const rte_eth_dev_info& info, uint32_t lanes, rte_eth_conf* conf);
  Status set_up_queues(const DpdkDeviceOptions& options);
  bool has_link() const;

  DpdkSpec spec_;
  DpdkPortFacts facts_;
  bool probed_ = false;
  rte_mempool* pool_ = nullptr;
};

// A pool whose threads may be interrupted anywhere without holding up the others. Null: there is no memory for it.
rte_mempool* make_mbuf_pool(uint32_t count, uint32_t data_bytes, uint32_t private_bytes, int socket);

}  // namespace gatun
